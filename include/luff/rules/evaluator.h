#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "luff/base/result.h"
#include "luff/query/trial.h"
#include "luff/rules/choice.h"
#include "luff/rules/coverage.h"
#include "luff/rules/finding.h"

namespace luff::rules {

/// A rule's report about itself: it raised, was set aside, or lacked data.
struct RuleNote {
  std::string rule;
  std::string text;
  bool failed = false;  // it did not judge the whole run
};

struct EvaluatorOptions {
  /// Folder for checkpoint.json and findings.jsonl (created, mode 0700); "" keeps everything in memory.
  std::string folder;
  std::vector<Choice> choices;
  std::int64_t checkpoint_steps = 2000;               // a checkpoint after so many steps,
  double checkpoint_seconds = 10.0;                   // or so many seconds, whichever comes first
  std::size_t max_findings_per_rule = 64;             // more are counted, not written
  std::function<void(const RuleNote&)> on_note = {};  // called for each new one
};

/// Runs rules over the complete steps of a trial, each step once and in order.
///
/// **Thread-compatible.** Findings depend on the run alone. With a folder it is restartable: it continues
/// from the last checkpoint and writes no line that the findings file already holds. A rule whose version or
/// parameters differ from the checkpoint's starts at the first step. A lock file allows one evaluator per
/// folder at a time. A rule that throws is set aside for this run: a note reports it, its state is dropped,
/// and the others continue.
class Evaluator {
 public:
  /// Called for each finding that is new, changed or healed ("new", "update", "healed"), but not for those
  /// that a restart replays.
  using Listener = std::function<void(const Finding&, const std::string& event)>;

  /// Errors: kIo, kFailedPrecondition when another evaluator holds the folder.
  [[nodiscard]] static Result<std::unique_ptr<Evaluator>> Open(const EvaluatorOptions& options,
                                                               Listener listener);
  virtual ~Evaluator() = default;

  /// Evaluates at most `limit` complete steps that were not evaluated yet, and returns how many. Counts and
  /// skips steps that cannot be read (unreadable_steps). Errors: kIo if findings cannot be written. Failing
  /// to write a checkpoint is not an error: a restart then begins at an older one.
  virtual Result<std::size_t> Advance(const query::Trial& trial, std::size_t limit) = 0;
  /// Ends the evaluation: lets rules draw their last conclusions and writes the checkpoint. Call once, after
  /// Advance returned 0.
  virtual Status Finish(const query::Trial& trial) = 0;
  /// Writes a checkpoint now (no-op without a folder).
  virtual Status Checkpoint() = 0;

  /// All findings so far, in their newest form, in the order in which they were first seen.
  [[nodiscard]] virtual const std::vector<Finding>& findings() const noexcept = 0;
  [[nodiscard]] virtual std::size_t steps_done() const noexcept = 0;
  /// Steps that the slowest of the user's rules has yet to judge. Advance continues with them; Finish waits
  /// for them.
  [[nodiscard]] virtual std::size_t behind() const = 0;
  /// Notes in the order in which they came, at most 16 per rule.
  [[nodiscard]] virtual std::vector<RuleNote> notes() const = 0;
  /// Which rules found what they need so far, in the order of the choices.
  [[nodiscard]] virtual std::vector<RuleCoverage> coverage() const = 0;
  [[nodiscard]] virtual std::size_t unreadable_steps() const noexcept = 0;
  [[nodiscard]] virtual std::size_t suppressed_findings() const noexcept = 0;
  /// The run has ended and Advance returned 0: lets rules that run elsewhere draw their last conclusions,
  /// without waiting for them. True once Finish would not wait. For callers that evaluate several runs.
  virtual bool ReadyToFinish(const query::Trial& trial) = 0;
};

}  // namespace luff::rules
