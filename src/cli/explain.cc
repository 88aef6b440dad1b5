#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/format.h"
#include "base/json.h"
#include "catalog/catalog.h"
#include "cli/finding_names.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/series.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/actions/marks.h"
#include "luff/rules/kept_findings.h"

/// `luff explain FINDING`: everything that a run holds about one finding.
namespace luff::cli {
namespace {

/// One line of blocks; a value that is not finite is an x.
std::string Sparkline(const std::vector<std::pair<std::int64_t, double>>& series) {
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  double low = HUGE_VAL;
  double high = -HUGE_VAL;
  for (const auto& [step, value] : series) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  std::string line;
  for (const auto& [step, value] : series) {
    if (!std::isfinite(value)) {
      line += "x";
    } else {
      const double place = high > low ? (value - low) / (high - low) : 0;
      line += kBlocks[static_cast<std::size_t>(std::clamp(place * 7.999, 0.0, 7.0))];
    }
  }
  return line;
}

/// An arrow below the sparkline where the trouble began, if the line shows what was before.
void PrintOnset(const std::vector<std::pair<std::int64_t, double>>& points, std::int64_t since) {
  const auto at =
      std::find_if(points.begin(), points.end(), [&](const auto& point) { return point.first >= since; });
  if (at == points.begin() || at == points.end()) return;
  fmt::print("luff:   {:<8}{}▲ step {}\n", "",
             std::string(static_cast<std::size_t>(at - points.begin()), ' '), since);
}

void Print(const query::Trial& trial, const rules::Finding& finding, const std::vector<rules::Finding>& all) {
  const bool colour = isatty(STDOUT_FILENO) != 0 && StderrHasColour();
  fmt::print("{}", FindingText(finding, colour, TerminalWidth()));
  const auto line = [](const char* label, const std::string& text) {
    fmt::print("luff:   {:<8}{}\n", label, Wrapped(text, 16, TerminalWidth()));
  };
  if (!finding.threshold.empty()) line("limit", Escaped(finding.threshold));
  for (const auto& [name, value] : finding.evidence)
    line("found", fmt::format("{} = {}", Escaped(name), NumberText(value)));
  if (const FindingCurve curve = CurveOf(trial, finding); curve.points.size() > 1) {
    fmt::print("luff:   {:<8}{}  steps {} to {}{}{}\n", "series", Sparkline(curve.points),
               curve.points.front().first, curve.points.back().first, curve.name.empty() ? "" : ", ",
               Escaped(curve.name));
    PrintOnset(curve.points, finding.since_step);
  }
  line("lasted", finding.healed ? fmt::format("until step {}, then it healed", finding.last_step)
                                : fmt::format("to step {} at least", finding.last_step));
  for (const rules::Finding& other : all) {
    if (other.id == finding.leader)
      line("because",
           fmt::format("of {} {}: {}", Escaped(other.rule), Escaped(other.id), Escaped(other.what)));
    if (other.leader == finding.id)
      line("led to", fmt::format("{} {}, since {}: {}", Escaped(other.rule), Escaped(other.id),
                                 StepText(other.mode, other.since_step), Escaped(other.what)));
  }
  if (const auto records = store::ReadControl(trial.path(), 0, nullptr); records.ok()) {
    const auto marks = actions::MarksIn(*records);
    if (const auto mark = marks.find(finding.id); mark != marks.end())
      line("marked", Escaped(actions::SaidOf(mark->second)));
  }
  line("id", Escaped(finding.id));
}

/// The other findings that a rule's name means, too.
void PrintOthers(const std::vector<const rules::Finding*>& meant) {
  constexpr std::size_t kShown = 10;
  if (meant.size() < 2) return;
  std::string others;
  for (std::size_t i = 1; i < std::min(meant.size(), kShown + 1); ++i)
    others += fmt::format("{}{}{}{}, since {}", i == 1 ? "" : "; ", Escaped(meant[i]->id),
                          meant[i]->tensor.empty() ? "" : " ", Escaped(meant[i]->tensor),
                          StepText(meant[i]->mode, meant[i]->since_step));
  if (meant.size() > kShown + 1) others += fmt::format("; and {} more", meant.size() - kShown - 1);
  fmt::print("luff:   {:<8}{}\n", "others",
             Wrapped(fmt::format("{} of {}, by their ids: {}", meant.size() - 1, Escaped(meant.front()->rule),
                                 others),
                     16, TerminalWidth()));
}

/// In groups; the finding that a verdict names comes first.
std::vector<const rules::Finding*> LeadFirst(const std::vector<rules::Finding>& findings) {
  std::vector<const rules::Finding*> ordered = rules::InGroups(findings);
  const rules::Finding* lead = rules::LeadOf(findings).finding;
  const auto begin = std::ranges::find(ordered, lead);
  if (begin == ordered.end()) return ordered;
  const auto end = std::find_if(begin + 1, ordered.end(),
                                [&](const rules::Finding* one) { return one->leader != lead->id; });
  std::rotate(ordered.begin(), begin, end);
  return ordered;
}

void PrintList(const std::vector<rules::Finding>& findings, const std::string& run) {
  for (const rules::Finding* finding : LeadFirst(findings)) {
    fmt::print("{}{} {} {}{}{}, since {}{}: {}\n",
               finding->leader.empty() ? "" : "  because of it: ", Escaped(finding->id),
               finding->severity == rules::Severity::kStop ? "STOP" : "WARN", Escaped(finding->rule),
               finding->tensor.empty() ? "" : " ", Escaped(finding->tensor),
               StepText(finding->mode, finding->since_step), finding->healed ? " (healed)" : "",
               Escaped(finding->what));
  }
  if (findings.empty()) fmt::print("no findings: {}\n", Escaped(run));
}

Json ListOf(const std::vector<rules::Finding>& findings) {
  Json list = Json::array();
  for (const rules::Finding* finding : LeadFirst(findings))
    list.push_back(TryParseOrderedJson(rules::ToJson(*finding, "state")));
  return list;
}

struct ExplainOptions : ReadOptions {
  std::string first, second;  // words of the command line: [RUN] [FINDING]
};

/// The finding that the words name; "" if they name none. Sets the run's path. A word alone is a finding of
/// the newest run, or else a run.
std::string FindingOrExit(ExplainOptions* options) {
  if (!options->second.empty() && !options->run.empty())
    ExitWithError(InvalidArgument("the run is named twice, as the first word and by --run"));
  const bool alone = options->second.empty() && options->run.empty();
  std::string name = options->second.empty() ? options->first : options->second;
  if (!options->second.empty()) options->run = options->first;
  if (options->run.empty()) options->run = "@1";
  if (alone && name.find('/') != std::string::npos) {  // no finding is called so
    options->run = std::exchange(name, "");
  } else if (alone && !name.empty()) {
    const auto newest = catalog::FindRun("@1");
    const bool is_finding =
        newest.ok() && !FindingsMeantBy(name, rules::FindingsOfRun(*newest).findings).empty();
    if (!is_finding && (name.front() == '@' || IsUrl(name) || catalog::FindRun(name).ok()))
      options->run = std::exchange(name, "");
  }
  FindRunOrExit(&options->run);
  return name;
}

void Explain(ExplainOptions* options) {
  const std::string name = FindingOrExit(options);
  const auto trial = OpenOrExit(*options);  // reports an error if it is not a run
  const std::vector<rules::Finding> findings = rules::FindingsOfRun(trial->path()).findings;
  if (name.empty()) return options->json ? PrintJson(ListOf(findings)) : PrintList(findings, options->run);
  const auto meant = FindingsMeantBy(name, findings);
  // Of a rule, the first of its findings is meant.
  if (meant.empty() || (meant.size() > 1 && meant.front()->rule != name))
    ExitWithError(NoSuchFinding(name, findings, options->run));
  if (options->json) {
    PrintJson(ParseJson(rules::ToJson(*meant.front(), "state")));
  } else {
    Print(*trial, *meant.front(), findings);
    PrintOthers(meant);
  }
}

}  // namespace

void AddExplain(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("explain", "Everything that a run holds about a finding");
  auto options = std::make_shared<ExplainOptions>();
  verb->add_option("RUN", options->first,
                   "The run, as for the other verbs; default: @1, the newest of $LUFF_HOME/runs");
  verb->add_option("FINDING", options->second,
                   "Its id (or the first letters), or a rule; without it all are listed");
  verb->add_option("--run", options->run, "Another way to name the run");
  verb->add_flag("--json", options->json, "The finding, or all of them, as JSON");
  verb->footer("A word alone is a finding of the newest run, or else a run.");
  verb->callback([options] {
    Explain(options.get());
    ExitWith(kExitOk);
  });
}

}  // namespace luff::cli
