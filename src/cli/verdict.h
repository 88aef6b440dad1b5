#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cli/run_place.h"
#include "cli/supervise.h"
#include "luff/actions/process.h"
#include "luff/actions/runner.h"
#include "luff/rules/coverage.h"
#include "luff/rules/finding.h"

/// The end of `luff run`: the outcome in the run, the verdict on standard error.
namespace luff::cli {

/// What the supervisor knows when the job has ended.
struct Ending {
  const SuperviseOptions& options;
  actions::ExitState exit;
  const actions::Runner& runner;
  const std::vector<rules::Finding>& findings;
  const std::set<std::string>& failed_rules;  // did not judge all of the run
  const RunPlace& place;
  const rules::CoverageSummary& coverage;  // no rules in it: not known
  std::int64_t train_step = -1;            // how far the job was seen to come
  bool rules_failed = false;               // the rule worker did not see all of the run
  bool signalled = false;                  // the job was sent a signal because it would not leave
};

/// Removes the run's directory when the job has left it empty.
void RemoveUnusedRun(const SuperviseOptions& options);

/// Writes the outcome into the run and says the verdict. Returns luff's exit code.
[[nodiscard]] int Conclude(const Ending& ending);

}  // namespace luff::cli
