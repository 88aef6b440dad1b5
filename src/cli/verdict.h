#pragma once
#include <cstdint>
#include <optional>
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

/// How the training ended.
struct HowEnded {
  bool stopped = false;
  std::string failure;  // "" if it completed or was stopped
};

/// What the supervisor knows after the job has ended.
struct Ending {
  const SuperviseOptions& options;
  std::optional<ExitState> exit;  // of the command; nullopt if it has started several trainings
  const actions::Runner& runner;
  const std::vector<rules::Finding>& findings;  // of the whole run
  const std::set<std::string>& failed_rules;    // did not judge the whole run
  const RunPlace& place;
  const rules::CoverageSummary& coverage;  // without rules: unknown
  std::int64_t train_step = -1;            // how far the job was seen to get
  bool rules_failed = false;               // the rule worker did not see the whole run
  bool signalled = false;                  // the job was sent a signal because it would not leave
  std::optional<HowEnded> recorded = {};   // what `RecordOutcome` has returned
};

/// Reports processes that Luff should have watched but could not, from their notes in the run's directory.
/// Returns the first of them, "" if there is none.
std::string TellAside(const std::string& run);

/// Removes the run's directory if the job has left it empty.
void RemoveUnusedRun(const SuperviseOptions& options);

struct Verdict {
  enum class Kind : std::uint8_t {
    kOk,
    kNotOk,     // it completed, with findings, damage or losses
    kUnjudged,  // it completed, and no rule was to judge it here
    kStopped,   // by a finding
    kFailed,
    kNothing,  // no run
  } kind = Kind::kNothing;
  bool stop_found = false;  // a finding has severity stop
};

/// Writes the outcome into the run. nullopt if there is none yet, or no run.
[[nodiscard]] std::optional<HowEnded> RecordOutcome(const Ending& ending);

/// Writes the outcome into the run, unless that is done, and prints the verdict.
[[nodiscard]] Verdict Conclude(const Ending& ending);

/// "failed with exit code 1", "was ended by signal 9 (Killed)".
[[nodiscard]] std::string HowItEnded(const ExitState& exit);

}  // namespace luff::cli
