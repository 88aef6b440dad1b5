#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cli/run_place.h"
#include "cli/supervise.h"
#include "luff/actions/runner.h"
#include "luff/base/process.h"
#include "luff/rules/coverage.h"
#include "luff/rules/finding.h"

/// The end of `luff run`: records the outcome in the run and prints the verdict.
namespace luff::cli {

/// What the supervisor knows after the job has ended.
struct Ending {
  const SuperviseOptions& options;
  ExitState exit;
  const actions::Runner& runner;
  const std::vector<rules::Finding>& findings;
  const std::set<std::string>& failed_rules;  // did not judge the whole run
  const RunPlace& place;
  const rules::CoverageSummary& coverage;  // without rules: unknown
  std::int64_t train_step = -1;            // how far the job was seen to get
  bool rules_failed = false;               // the rule worker did not see the whole run
  bool signalled = false;                  // the job was sent a signal because it would not leave
};

/// Removes the run's directory if the job has left it empty.
void RemoveUnusedRun(const SuperviseOptions& options);

/// Writes the outcome into the run and prints the verdict. Returns luff's exit code.
[[nodiscard]] int Conclude(const Ending& ending);

}  // namespace luff::cli
