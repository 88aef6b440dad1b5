#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"
#include "luff/rules/finding.h"

/// Decides which action follows which finding: rules, severities, rate limit, quiet time, escalation, dry
/// run. For users: docs/actions.md.
namespace luff::actions {

enum class ActionKind : std::uint8_t {
  kStop,
  kWebhook,
  kMail,
  kCommand,
  kLowerLr,
  kSkipBatch,
  kRollback,
  kTrace
};

/// "stop", "webhook", ...; as in the configuration file.
[[nodiscard]] std::string_view KindName(ActionKind kind) noexcept;
/// Errors: kInvalidArgument with the nearest names.
[[nodiscard]] Result<ActionKind> ParseKind(std::string_view text);
/// True for webhook and mail, which only send messages.
[[nodiscard]] constexpr bool OnlyTells(ActionKind kind) noexcept {
  return kind == ActionKind::kWebhook || kind == ActionKind::kMail;
}
/// True for what changes neither the training nor anything outside of it: no dry run unless the configuration
/// says so.
[[nodiscard]] constexpr bool IsHarmless(ActionKind kind) noexcept {
  return OnlyTells(kind) || kind == ActionKind::kTrace;
}
/// True if a separate process carries it out, not the training.
[[nodiscard]] constexpr bool IsDelivery(ActionKind kind) noexcept {
  return OnlyTells(kind) || kind == ActionKind::kCommand;
}

/// One [[action]] of the configuration file.
struct ActionSpec {
  std::string name;
  ActionKind kind = ActionKind::kWebhook;
  std::vector<std::string> rules;  // empty: all
  bool consequences =
      false;  // also act for findings that follow from another one; for those of named rules always
  rules::Severity severity = rules::Severity::kWarn;  // at least
  int findings = 1;                                   // acts from this many matching findings on
  int limit = 20;                                     // acts at most this many times ...
  double per_s = 3600;                                // ... in this many seconds
  double quiet_s = 0;                                 // after acting for a cause, ignores it for this long
  std::string escalates;                              // name of the action that did not help
  double after_s = -1;                                // -1: not by time
  std::int64_t after_steps = -1;                      // -1: not by TRAIN steps
  bool dry_run = true;

  std::vector<std::string> argv;  // command
  double timeout_s = 10;          // of one attempt; of a command in all
  double give_up_s = 120;         // of all attempts
  double factor = 0;              // lower_lr
  std::int64_t trace_steps = 3;   // trace: TRAIN steps
  bool trace_stacks = false;      // trace: with functions of Python
  double trace_share = 0.005;     // trace: of the run's time that its traces may take
  std::string settings_json;      // webhook, mail: what notify.py reads; names of secrets, never secrets
};

/// What to do now about a finding.
struct Decision {
  enum class What : std::uint8_t { kAct, kDryRun, kSilenced, kLimited };
  const ActionSpec* spec = nullptr;
  rules::Finding finding;
  std::string event;  // "new", "worse", "escalation"
  What what = What::kAct;
  std::string detail;  // why not
};

/// Decides only by its input, deterministically; uses no clock and no file. `now_s` are seconds of a clock
/// that nobody sets and that stops while the machine sleeps (CLOCK_MONOTONIC). **Thread-compatible.**
class Policy {
 public:
  explicit Policy(std::vector<ActionSpec> specs) : specs_(std::move(specs)) {}

  /// `event` as in findings.jsonl; `worse`: an update with a higher severity.
  [[nodiscard]] std::vector<Decision> OnFinding(const rules::Finding& finding, std::string_view event,
                                                bool worse, double now_s, std::int64_t train_step);
  /// The training began at `now_s`. A trace waits until the run is long enough for what it costs.
  void TrainsSince(double now_s) { trains_since_s_ = now_s; }
  /// Returns the escalations that are due, and traces that have waited for their time or their limit.
  [[nodiscard]] std::vector<Decision> Tick(double now_s, std::int64_t train_step);
  /// Takes what an earlier supervisor of the run did, from the audit. `at_s` may be negative.
  void Remember(const std::string& action, const std::string& finding, const std::string& cause, double at_s);
  /// Takes a finding that the earlier supervisor left open. Arms the escalations of actions that have acted
  /// for it; their time counts from now, since the job may have changed in the meantime.
  void Resume(const rules::Finding& finding, double now_s, std::int64_t train_step);

  [[nodiscard]] const std::vector<ActionSpec>& specs() const noexcept { return specs_; }
  [[nodiscard]] const ActionSpec* Find(std::string_view name) const noexcept;
  /// True if something waits: Tick must be called now and then.
  [[nodiscard]] bool waits() const noexcept { return !watches_.empty() || !held_.empty(); }

 private:
  struct When {
    double s;
    std::int64_t step;  // -1: not known
  };
  struct Watch {
    const ActionSpec* spec;
    rules::Finding finding;
    When since;
  };
  /// A trace that waits: it has not acted, and neither limits nor quiet times know of it.
  struct Held {
    const ActionSpec* spec;
    rules::Finding finding;
    std::string event;
  };
  [[nodiscard]] bool MustWait(const ActionSpec& spec, const rules::Finding& finding, double now_s);
  /// Decides, or lets it wait.
  void DecideInTime(const ActionSpec& spec, const rules::Finding& finding, std::string event, When now,
                    std::vector<Decision>* decisions);
  Decision Decide(const ActionSpec& spec, const rules::Finding& finding, std::string event, When now);
  /// Arms the escalations of actions that have acted for the finding in its present form. `anew`: their time
  /// counts from now, not from the action.
  void WatchFor(const rules::Finding& finding, When now, bool anew = false);

  const std::vector<ActionSpec> specs_;
  std::map<std::string, std::set<std::string>> matched_;         // action -> findings; bounded
  std::map<std::string, std::map<std::string, When>> acted_;     // action -> findings it first acted for
  std::map<std::string, std::deque<double>> times_;              // action -> when, inside its window
  std::map<std::pair<std::string, std::string>, double> quiet_;  // (action, cause) -> when it acted last
  std::vector<Watch> watches_;
  std::vector<Held> held_;      // in the order in which they came; bounded
  double trains_since_s_ = -1;  // -1: not known
};

/// "RULE/CAUSE", which a quiet time applies to; that of a trace, which shows all causes at once, to the rule.
[[nodiscard]] std::string CauseOf(const rules::Finding& finding);

}  // namespace luff::actions
