#include "cli/html.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "base/format.h"
#include "base/output_file.h"
#include "base/text_escape.h"
#include "catalog/card.h"
#include "cli/boosting_report.h"
#include "cli/charts.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/series.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/rules/kept_findings.h"

/// `luff report RUN`: one self-contained HTML file with the findings and the losses around them.
namespace luff::cli {
namespace {

constexpr std::size_t kMaxLosses = 8;
constexpr const char* kStyle = R"css(
:root{--ink:#1c2430;--quiet:#5d6878;--line:#d9dee6;--paper:#fff;--card:#f6f8fa;--stop:#b42318;--warn:#9a6700;--ok:#1a7f37;--data:#0b62c4}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--quiet:#9aa7b5;--line:#30363d;--paper:#0d1117;--card:#161b22;--stop:#ff7b72;--warn:#e3b341;--ok:#3fb950;--data:#58a6ff}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:62rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem;margin:2rem 0 .5rem}p{margin:.3rem 0}
.quiet,dt{color:var(--quiet)}code{font:13px ui-monospace,monospace;overflow-wrap:anywhere}
article{background:var(--card);border:1px solid var(--line);border-left:4px solid var(--warn);border-radius:6px;padding:.8rem 1rem;margin:.8rem 0}
article.stop{border-left-color:var(--stop)}article.follows{margin-left:2rem}article.healed{opacity:.75}
article h3{font-size:1rem;margin:0 0 .3rem}.tag{font-weight:600;color:var(--warn)}.stop>h3>.tag{color:var(--stop)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem .9rem;margin:.5rem 0 0}dd{margin:0}
.matrix{border-collapse:collapse;font-size:13px}.matrix td,.matrix th{padding:.2rem .6rem;text-align:right;border:1px solid var(--line)}
.matrix th{color:var(--quiet);font-weight:500}
.verdict{font-size:1.1rem;font-weight:600}.verdict.ok{color:var(--ok)}.verdict.warn{color:var(--warn)}.verdict.stop{color:var(--stop)}
)css";

bool Stops(const rules::Finding& finding) { return finding.severity == rules::Severity::kStop; }

std::string Row(const char* label, const std::string& html) {
  return html.empty() ? "" : fmt::format("<dt>{}</dt><dd>{}</dd>", label, html);
}

std::string Article(const query::Trial& trial, const rules::Finding& finding) {
  std::string classes = Stops(finding) ? "stop" : "warn";
  if (!finding.leader.empty()) classes += " follows";
  if (finding.healed) classes += " healed";
  std::string html =
      fmt::format("<article class=\"{}\" id=\"{}\"><h3><span class=\"tag\">{}{}</span> {}: {}</h3><dl>",
                  classes, HtmlEscaped(finding.id), finding.forecast ? "forecast, " : "",
                  Stops(finding) ? "STOP" : "WARN", HtmlEscaped(finding.rule), HtmlEscaped(finding.what));
  if (!finding.leader.empty())
    html += Row("follows from",
                fmt::format("<a href=\"#{0}\"><code>{0}</code></a>", HtmlEscaped(finding.leader)));
  std::string tensors = finding.tensor.empty() ? "" : "<code>" + HtmlEscaped(finding.tensor) + "</code>";
  for (const std::string& other : finding.other_tensors)
    tensors += ", <code>" + HtmlEscaped(other) + "</code>";
  if (finding.other_count > 0) tensors += fmt::format(" and {} more", finding.other_count);
  html += Row("where", tensors);
  html +=
      Row("since", fmt::format("{}, seen at step {} (update {}, worker {}){}",
                               HtmlEscaped(StepText(finding.mode, finding.since_step)), finding.step,
                               finding.update, finding.worker,
                               finding.healed ? fmt::format("; healed at step {}", finding.last_step) : ""));
  if (finding.forecast && finding.lead_steps > 0)
    html += Row("expected", fmt::format("in about {} steps", finding.lead_steps));
  html += Row("why", HtmlEscaped(finding.why));
  std::string causes;
  for (const std::string& cause : finding.causes) causes += (causes.empty() ? "" : "; ") + HtmlEscaped(cause);
  html += Row("likely", causes);
  html += Row("to do", HtmlEscaped(finding.remedy));
  std::string evidence;
  for (const auto& [name, value] : finding.evidence)
    evidence += fmt::format("{}{} = {}", evidence.empty() ? "" : ", ", HtmlEscaped(name), NumberText(value));
  html += Row("found", evidence);
  html += Row("limit", HtmlEscaped(finding.threshold));
  html += "</dl>";
  const FindingCurve curve = CurveOf(trial, finding);
  html += CurvesSvg({.title = finding.rule + " around the finding",
                     .x_name = curve.name,
                     .curves = {{"", {curve.points.begin(), curve.points.end()}}},
                     .mark = static_cast<double>(finding.since_step),
                     .width = 520,
                     .height = 120});
  return html + "</article>\n";
}

std::string Losses(const query::Trial& trial, const std::vector<rules::Finding>& findings) {
  std::optional<double> mark;
  for (const rules::Finding& finding : findings) {
    if (finding.mode == "TRAIN" && finding.leader.empty() &&
        (!mark || static_cast<double>(finding.since_step) < *mark))
      mark = static_cast<double>(finding.since_step);
  }
  std::string html;
  std::size_t shown = 0;
  for (const query::Mode mode : {query::Mode::kTrain, query::Mode::kEval}) {
    for (query::TensorId id = 0; id < trial.tensor_count() && shown < kMaxLosses; ++id) {
      if (trial.tensor(id).role != query::Role::kLoss) continue;
      const auto scalars = trial.Scalars(id, mode);
      if (!scalars.ok()) continue;
      Curve curve;
      const bool eval = mode == query::Mode::kEval;
      for (const auto& scalar : eval ? catalog::MeansOfEvaluations(*scalars) : *scalars)
        curve.points.emplace_back(scalar.mode_step, scalar.value);
      const std::string title = fmt::format("{} ({}{})", trial.tensor(id).name, query::ModeName(mode),
                                            eval ? ", mean of each evaluation" : "");
      const std::string svg = CurvesSvg({.title = title,
                                         .curves = {std::move(curve)},
                                         .mark = mode == query::Mode::kTrain ? mark : std::nullopt,
                                         .height = 180});
      if (svg.empty()) continue;
      html += fmt::format("<p class=\"quiet\">{}</p>{}\n", HtmlEscaped(title), svg);
      ++shown;
    }
  }
  return html;
}

std::string Page(const query::Trial& trial, const rules::KeptFindings& kept) {
  const auto outcome = trial.outcome();
  const bool stop = std::any_of(kept.findings.begin(), kept.findings.end(), Stops);
  const char* verdict = kept.findings.empty() ? "ok" : stop ? "stop" : "warn";
  const std::size_t slash = trial.path().find_last_of('/', trial.path().size() - 2);
  const std::string name = slash == std::string::npos ? trial.path() : trial.path().substr(slash + 1);
  const std::time_t made = trial.created_unix_ns() / 1'000'000'000;
  std::tm broken{};
  gmtime_r(&made, &broken);
  char when[32];
  std::strftime(when, sizeof(when), "%Y-%m-%d %H:%M UTC", &broken);
  std::string html = fmt::format(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><meta http-equiv=\"Content-Security-Policy\" content=\"default-src "
      "'none'; "
      "style-src 'unsafe-inline'\"><title>Luff: {0}</title><style>{1}</style></head><body><h1>{0}</h1>"
      "<p class=\"quiet\">begun {2}; {3}{4}{5}; {6} training steps</p><p class=\"verdict {7}\">{8}</p>\n",
      HtmlEscaped(name), kStyle + ChartStyle(), when, HtmlEscaped(outcome.state),
      outcome.why.empty() ? "" : ": ", HtmlEscaped(outcome.why), trial.Steps(query::Mode::kTrain).size(),
      verdict, HtmlEscaped(FindingsInShort(kept.findings)));
  if (!kept.findings.empty()) {
    html += "<h2>Findings</h2>\n";
    for (const rules::Finding* finding : rules::InGroups(kept.findings)) html += Article(trial, *finding);
  }
  if (const std::string boosting = BoostingSections(trial); !boosting.empty()) {
    html += boosting;
  } else if (const std::string losses = Losses(trial, kept.findings); !losses.empty()) {
    html += "<h2>Losses</h2>\n" + losses;
  }
  if (const auto gaps = trial.Gaps(); !gaps.empty()) {
    html += "<h2>Not recorded</h2><dl>";
    for (std::size_t i = 0; i < std::min<std::size_t>(gaps.size(), 20); ++i) {
      const std::string& of = gaps[i].tensor.empty() ? gaps[i].collection : gaps[i].tensor;
      html += Row(
          HtmlEscaped(gaps[i].reason).c_str(),
          fmt::format("{} {} of <code>{}</code>, steps {} to {}", gaps[i].count, HtmlEscaped(gaps[i].forms),
                      HtmlEscaped(of.empty() ? "all" : of), gaps[i].first_step, gaps[i].last_step));
    }
    html += "</dl>";
  }
  return html + "</body></html>\n";
}

}  // namespace

Status WriteReport(const query::Trial& trial, const std::string& out, Existing existing) {
  const std::string page = Page(trial, rules::FindingsOfRun(trial.path()));
  if (out == "-") {
    fmt::print("{}", page);
    return Status::Ok();
  }
  const auto write = [&]() -> Status {
    LUFF_ASSIGN_OR_RETURN(const auto file, OutputFile::Create(out, existing));
    LUFF_RETURN_IF_ERROR(file->Append(page));
    return file->Commit();
  };
  return write().WithContext("the report cannot be written");
}

void AddReport(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("report", "One HTML file: findings, evidence, losses");
  static ReadOptions options;
  static std::string out = "luff-report.html";
  static bool force = false;
  verb->add_option("RUN", options.run, kRunHelp)->required();
  verb->add_option("-o,--out", out, "File; - for standard output");
  verb->add_flag("--force", force, "Replace an existing file");
  verb->callback([] {
    FindRunOrExit(&options.run);
    const auto trial = OpenOrExit(options);
    if (const Status written = WriteReport(*trial, out, force ? Existing::kReplace : Existing::kRefuse);
        !written.ok())
      ExitWithError(written);
    if (out != "-") fmt::print("{}\n", Escaped(out));
    ExitWith(kExitOk);
  });
}

}  // namespace luff::cli
