#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "base/json.h"
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

/// Returns the finding with the id `name`, or the first of the rule `name`, or else the only one whose id
/// begins with `name` (at least 4 characters).
const rules::Finding* Find(const std::vector<rules::Finding>& findings, const std::string& name) {
  for (const rules::Finding& finding : findings) {
    if (finding.id == name || finding.rule == name) return &finding;
  }
  const rules::Finding* found = nullptr;
  for (const rules::Finding& finding : findings) {
    if (name.size() < 4 || !finding.id.starts_with(name)) continue;
    if (found != nullptr) return nullptr;  // more than one
    found = &finding;
  }
  return found;
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
      line("led to", fmt::format("{} {} at {}: {}", Escaped(other.rule), Escaped(other.id),
                                 StepText(other.mode, other.step), Escaped(other.what)));
  }
  if (const auto records = store::ReadControl(trial.path(), 0, nullptr); records.ok()) {
    const auto marks = actions::MarksIn(*records);
    if (const auto mark = marks.find(finding.id); mark != marks.end())
      line("marked", Escaped(actions::SaidOf(mark->second)));
  }
  line("id", Escaped(finding.id));
}

void Explain(const std::string& name, ReadOptions* options) {
  const auto trial = OpenOrExit(*options);  // reports an error if it is not a run
  const std::vector<rules::Finding> findings = rules::FindingsOfRun(trial->path()).findings;
  if (name.empty()) {
    for (const rules::Finding* finding : rules::InGroups(findings)) {
      fmt::print("{}{} {} {} at {}: {}\n",
                 finding->leader.empty() ? "" : "  because of it: ", Escaped(finding->id),
                 finding->severity == rules::Severity::kStop ? "STOP" : "WARN", Escaped(finding->rule),
                 StepText(finding->mode, finding->step), Escaped(finding->what));
    }
    if (findings.empty()) fmt::print("no findings: {}\n", Escaped(options->run));
    return;
  }
  const rules::Finding* finding = Find(findings, name);
  if (finding == nullptr) {
    std::string known;
    for (const rules::Finding& one : findings)
      known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", one.id, one.rule);
    ExitWithError(
        NotFound(fmt::format("no finding, or more than one, is called '{}'; there are: {}; in {}",
                             Escaped(name), known.empty() ? "none" : Escaped(known), options->run)));
  }
  if (options->json) {
    PrintJson(ParseJson(rules::ToJson(*finding, "state")));
  } else {
    Print(*trial, *finding, findings);
  }
}

}  // namespace

void AddExplain(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("explain", "Everything that a run holds about a finding");
  static ReadOptions options;
  static std::string name;
  verb->add_option("FINDING", name, "Its id (or the first letters), or a rule; without it all are listed");
  verb->add_option("--run", options.run, "The run; default: @1, the newest of $LUFF_HOME/runs");
  verb->add_flag("--json", options.json, "The finding as JSON");
  verb->callback([] {
    if (options.run.empty()) options.run = "@1";
    FindRunOrExit(&options.run);
    Explain(name, &options);
    ExitWith(kExitOk);
  });
}

}  // namespace luff::cli
