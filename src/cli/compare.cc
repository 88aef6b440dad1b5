#include "catalog/compare.h"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "base/text_escape.h"
#include "cli/compare_sweep.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

/// `luff compare`: what distinguishes runs.
namespace luff::cli {
namespace {

struct CompareOptions {
  std::vector<std::string> runs;
  std::string sweep, by, html;
  bool json = false;
};

std::string StepsOfCard(const catalog::Card& card) {
  std::string text;
  for (const auto& [mode, count] : card.steps)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, mode);
  return text.empty() ? "none" : text;
}

std::vector<std::vector<std::string>> Head(const std::vector<catalog::Compared>& runs,
                                           const std::vector<std::string>& names) {
  std::vector<std::vector<std::string>> rows{{""}, {"verdict"}, {"steps"}, {"loss"}, {"best loss"}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const catalog::Card& card = runs[i].card;
    const catalog::Scalar* loss = catalog::FindScalar(card, card.loss, false);
    rows[0].push_back(Cell(Escaped(names[i])));
    rows[1].push_back(card.verdict == "findings" ? Plural(card.findings, "finding", "findings")
                                                 : card.verdict);
    rows[2].push_back(StepsOfCard(card));
    rows[3].push_back(loss != nullptr ? NumberText(loss->last) : "-");
    rows[4].push_back(loss != nullptr ? NumberText(loss->min) : "-");
  }
  return rows;
}

void PrintSettings(const std::vector<catalog::Compared>& runs) {
  const catalog::Settings settings = catalog::CompareSettings(runs);
  if (settings.rows.empty()) {
    fmt::print("\nAll {} settings are the same.\n", settings.same);
    return;
  }
  fmt::print("\nSettings that differ ({} are the same):\n", settings.same);
  std::vector<std::vector<std::string>> rows;
  for (const catalog::SettingRow& row : settings.rows) {
    rows.push_back({row.kind, Cell(Escaped(row.name))});
    for (const auto& value : row.values) rows.back().push_back(value ? Cell(Escaped(*value)) : "-");
  }
  PrintRows(rows);
  if (settings.left_out > 0) fmt::print("  and {} more\n", settings.left_out);
}

void PrintFindings(const std::vector<catalog::Compared>& runs) {
  const auto findings = catalog::CompareFindings(runs);
  if (findings.empty()) {
    fmt::print("\nNo findings stand in any of them.\n");
    return;
  }
  fmt::print("\nFindings:\n");
  std::vector<std::vector<std::string>> rows;
  for (const catalog::FindingRow& row : findings) {
    rows.push_back({fmt::format("{} ({})", row.rule, row.cause)});
    for (const catalog::FindingRow::Of& of : row.runs) {
      const std::string step = of.mode == "TRAIN" ? fmt::format("step {}", of.since_step)
                                                  : fmt::format("{} step {}", of.mode, of.since_step);
      rows.back().push_back(of.count == 0
                                ? "-"
                                : Cell(fmt::format("{} since {}{}", of.severity, step,
                                                   of.count > 1 ? fmt::format(", {} times", of.count) : "")));
    }
  }
  PrintRows(rows);
}

void Compare(const CompareOptions& options) {
  const auto runs = ValueOrExit(catalog::OpenCompared(options.runs));
  if (options.json) {
    const auto json = ValueOrExit(catalog::CompareRuns(runs));
    fmt::print("{}\n", JsonEscaped(JsonText(json, 2)));
    ExitWith(kExitOk);
  }
  const std::vector<std::string> names = catalog::NamesOf(runs);
  PrintRows(Head(runs, names));
  PrintSettings(runs);
  PrintFindings(runs);
  bool noise = false;
  for (std::size_t i = 1; i < runs.size(); ++i) {
    const auto divergence = ValueOrExit(catalog::FindDivergence(*runs[0].trial, *runs[i].trial));
    noise = noise || divergence.any.has_value();
    fmt::print("\n{} against {}:\n", Escaped(names[i]), Escaped(names[0]));
    for (const std::string& sentence : catalog::SentencesOf(divergence, runs[0], runs[i], names[0], names[i]))
      fmt::print("  {}\n", Wrapped(Escaped(sentence), 2, TerminalWidth(), 2));
  }
  if (noise) fmt::print("\n{}\n", Wrapped(catalog::kNoiseText, 0, TerminalWidth()));
  ExitWith(kExitOk);
}

// The page is made of what --json tells.
[[noreturn]] void SweepPage(const CompareOptions& options) {
  if (options.json) ExitWithError(InvalidArgument("--json and --html are two outputs; give one of them"));
  std::vector<std::string> words{"--html=" + options.html, "--sweep=" + options.sweep, "--by=" + options.by};
  if (!options.runs.empty()) words.insert(words.end(), {"--", options.runs.front()});
  BecomePythonThatAsks("sweep_page", std::move(words),
                       "the page of a sweep is written by Luff's Python package");
}

}  // namespace

void AddCompare(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "compare", "What distinguishes runs: settings, findings, the first step that differs");
  auto options = std::make_shared<CompareOptions>();
  verb->add_option(
      "RUN", options->runs,
      "2 to 8 runs, each against the first: directories, names, or @1, @2, ... (luff runs); with "
      "--sweep: the directory of the runs");
  verb->add_option(
      "--sweep", options->sweep,
      "All trials of this sweep: which were bad, why, what they share, what stopping them saved");
  verb->add_option("--by", options->by, "With --sweep: parameters shown of each trial, e.g. lr,batch_size");
  verb->add_option("--html", options->html, "With --sweep: writes one page, without scripts, into this file");
  verb->add_flag("--json", options->json, "As JSON (docs/spec/catalog.md, sections 5 and 6)");
  verb->callback([verb, options] {
    if (verb->count("--sweep") > 0) {
      if (options->runs.size() > 1)
        ExitWithError(
            InvalidArgument("--sweep compares all trials of a sweep; name at most one directory with it"));
      if (!options->html.empty()) SweepPage(*options);
      CompareSweep(options->runs.empty() ? "" : options->runs.front(), options->sweep, options->by,
                   options->json);
    }
    if (!options->html.empty())
      ExitWithError(InvalidArgument("--html writes the page of --sweep NAME; give that, too"));
    if (!options->by.empty())
      ExitWithError(InvalidArgument("--by chooses columns of --sweep NAME; give that, too"));
    for (std::string& run : options->runs) FindRunOrExit(&run);
    Compare(*options);
  });
}

}  // namespace luff::cli
