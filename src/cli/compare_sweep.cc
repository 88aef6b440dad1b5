#include "cli/compare_sweep.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "base/nearest_names.h"
#include "base/text_escape.h"
#include "catalog/sweep.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/runs_folder.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

namespace luff::cli {
namespace {

constexpr std::size_t kRows = 40, kColumns = 4;

// Parameters that are not the same in all trials.
std::set<std::string> Differing(const catalog::Sweep& sweep) {
  std::set<std::string> differ;
  std::map<std::string, catalog::Parameter> first;
  std::map<std::string, std::size_t> seen;
  for (const catalog::SweepTrial& trial : sweep.trials) {
    for (const auto& [name, value] : trial.parameters) {
      ++seen[name];
      if (const auto [at, is_new] = first.try_emplace(name, value); !is_new && at->second != value)
        differ.insert(name);
    }
  }
  for (const auto& [name, count] : seen) {
    if (count != sweep.trials.size()) differ.insert(name);
  }
  return differ;
}

std::vector<std::string> ColumnsOrExit(const catalog::Sweep& sweep, const std::string& by) {
  const std::set<std::string> differ = Differing(sweep);
  std::vector<std::string> columns;
  if (by.empty()) {
    for (const catalog::Separation& one : sweep.separations) {
      if (columns.size() < kColumns) columns.push_back(one.parameter);
    }
    for (const std::string& name : differ) {
      if (columns.size() < kColumns && std::ranges::find(columns, name) == columns.end())
        columns.push_back(name);
    }
    return columns;
  }
  std::set<std::string> known;
  for (const catalog::SweepTrial& trial : sweep.trials)
    for (const auto& [name, value] : trial.parameters) known.insert(name);
  for (std::size_t begin = 0; begin <= by.size();) {
    const std::size_t end = std::min(by.find(',', begin), by.size());
    const std::string name = by.substr(begin, end - begin);
    begin = end + 1;
    if (!known.contains(name))
      ExitWithError(InvalidArgument(
          fmt::format("--by: no trial has a parameter '{}'{}", Escaped(name),
                      Escaped(NearestText(name, std::vector<std::string>(known.begin(), known.end()))))));
    columns.push_back(name);
  }
  return columns;
}

std::string ValueText(const catalog::SweepTrial& trial, const std::string& name) {
  const auto at = trial.parameters.find(name);
  return at == trial.parameters.end() ? "-" : Cell(Escaped(catalog::ParameterText(at->second)));
}

std::string Took(double seconds) {
  if (seconds < 120) return fmt::format("{:.1f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.1f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

void PrintTrials(const std::vector<const catalog::SweepTrial*>& trials,
                 const std::vector<std::string>& columns, bool bad) {
  std::vector<std::vector<std::string>> rows{{"trial", "verdict", "steps", "took"}};
  if (bad) rows[0].insert(rows[0].begin() + 2, "finding");
  if (!bad) rows[0].insert(rows[0].end(), {"loss", "best"});
  for (const std::string& name : columns) rows[0].push_back(Cell(Escaped(name)));
  for (std::size_t i = 0; i < std::min(trials.size(), kRows); ++i) {
    const catalog::SweepTrial& trial = *trials[i];
    std::vector<std::string> row{Cell(Escaped(trial.name)), trial.verdict};
    if (bad) {
      const std::string finding =
          trial.rule.empty() ? trial.why
                             : fmt::format("{} since {}", trial.rule, StepText(trial.mode, trial.since_step));
      row.push_back(Cell(Escaped(finding)));
    }
    row.push_back(std::to_string(trial.steps));
    row.push_back(Took(trial.took_s));
    if (!bad) {
      row.push_back(trial.loss ? NumberText(*trial.loss) : "-");
      row.push_back(trial.best_loss ? NumberText(*trial.best_loss) : "-");
    }
    for (const std::string& name : columns) row.push_back(ValueText(trial, name));
    rows.push_back(std::move(row));
  }
  PrintRows(rows);
  if (trials.size() > kRows) fmt::print("  and {} more (--json)\n", trials.size() - kRows);
}

void PrintTold(const char* title, const std::vector<std::string>& told) {
  if (told.empty()) return;
  fmt::print("\n{}:\n", title);
  for (const std::string& sentence : told)
    fmt::print("  {}\n", Wrapped(Escaped(sentence), 2, TerminalWidth(), 2));
}

// "40 trials: 13 bad, 26 without, 1 running".
std::string CountsText(const catalog::Sweep& sweep) {
  std::size_t bad = 0, running = 0, nothing = 0;
  for (const catalog::SweepTrial& trial : sweep.trials) {
    bad += trial.bad ? 1 : 0;
    running += trial.outcome == "running" ? 1 : 0;
    nothing += trial.outcome != "running" && !trial.ended ? 1 : 0;
  }
  std::string text = fmt::format("{}: {} bad, {} not", Plural(sweep.trials.size(), "trial", "trials"), bad,
                                 sweep.trials.size() - bad - running - nothing);
  if (running > 0) text += fmt::format(", {} running", running);
  if (nothing > 0) text += fmt::format(", {} empty or damaged", nothing);
  return text;
}

}  // namespace

void CompareSweep(const std::string& folder, const std::string& name, const std::string& by, bool json) {
  const catalog::Sweep sweep =
      ValueOrExit(catalog::ReadSweep(IndexFile(), RunsFolderOrExit(folder), name, PrintReading));
  const std::vector<std::string> columns = ColumnsOrExit(sweep, by);
  for (const std::string& note : sweep.notes) fmt::print(stderr, "luff: {}\n", Escaped(note));
  if (json) {
    fmt::print("{}\n", JsonEscaped(JsonText(ToJson(sweep), 2)));
    ExitWith(kExitOk);
  }
  fmt::print("{}: {}\n", Escaped(sweep.name), CountsText(sweep));
  std::vector<const catalog::SweepTrial*> bad, others;
  for (const catalog::SweepTrial& trial : sweep.trials) (trial.bad ? bad : others).push_back(&trial);
  const auto loss = [](const catalog::SweepTrial* trial) {
    return trial->best_loss && !std::isnan(*trial->best_loss) ? *trial->best_loss : HUGE_VAL;
  };
  std::ranges::stable_sort(others, {}, loss);
  if (!bad.empty()) {
    fmt::print("\nBad (stopped by a finding, failed, or a finding of severity stop stands):\n");
    PrintTrials(bad, columns, true);
  }
  if (!others.empty()) {
    fmt::print("\nThe others, that with the best loss first:\n");
    PrintTrials(others, columns, false);
  }
  PrintTold("What the bad ones share", catalog::SharedText(sweep));
  PrintTold("The same numbers", catalog::SameText(sweep));
  PrintTold("Device time", {catalog::SavedText(sweep.saved)});
  ExitWith(kExitOk);
}

}  // namespace luff::cli
