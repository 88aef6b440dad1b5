#pragma once
#include <poll.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "keys/public_key.h"
#include "keys/secret_key.h"
#include "luff/actions/runner.h"
#include "luff/base/process.h"
#include "luff/base/result.h"
#include "luff/query/trial.h"
#include "luff/rules/choice.h"
#include "luff/rules/evaluator.h"
#include "luff/store/owner.h"
#include "watch/numbers.h"

/// One of many runs that a process judges.
namespace luff::watch {

/// What is asked of all runs.
struct RunSettings {
  std::vector<rules::Choice> choices;
  bool stop_on_finding = false;
  actions::StopSettings stop;
  std::vector<actions::ActionSpec> actions;
  std::vector<std::string> notifier;           // argv of the program that sends webhooks and mails
  std::vector<keys::PublicKey> keys;           // whose signatures count; none: those that each run names
  std::shared_ptr<const keys::SecretKey> key;  // signs what supervisors are asked for; may be null
  /// Of copies of runs in a bucket: puts a signed request to the job. Nothing is then written into a run but
  /// what rules keep, and nobody else judges or commands the copy.
  std::function<bool(const std::string& run_id, const std::string& object)> ask = {};
};

/// An event of a finding, as rules reported it.
struct Event {
  rules::Finding finding;
  std::string event;
};

/// Judge() may run in another thread than the rest; a mutex keeps them apart.
class WatchedRun {
 public:
  /// Errors: kAlreadyExists if another process judges the run; kUnavailable if it cannot be read yet; those
  /// of CheckOwner and of opening. `name`: relative to the directory that is watched.
  [[nodiscard]] static Result<std::unique_ptr<WatchedRun>> Open(std::string path, std::string name,
                                                                const RunSettings& settings);

  // ---- The lane's thread ----

  struct Turn {
    std::size_t steps = 0;
    std::int64_t cost_ns = 0;
    bool more = false;  // steps wait that the turn had no time for
    bool dear = false;  // a few steps took the whole turn
    bool soon = false;  // rules in other processes are about to answer
  };
  /// Judges at most `limit` steps, and begins no more once `budget_ns` have passed. Returns at once if the
  /// run is in use.
  [[nodiscard]] Turn Judge(std::size_t limit, std::int64_t budget_ns, Numbers* numbers);

  // ---- The main thread ----

  [[nodiscard]] std::vector<Event> TakeEvents();
  /// Whether there are any to take.
  [[nodiscard]] bool has_events() const { return has_events_.load(); }
  /// Passes an event on to the actions.
  void Act(const Event& event, bool worse);
  /// Asks for a stop that was decided before, if the event is one and this object has not asked for it.
  /// Another process may have: a job takes it once.
  void AskAgain(const Event& event);
  /// What was asked for through a door may be lost.
  void ForgetAsked();
  /// Findings of before that stand.
  void Resume(std::vector<rules::Finding> open);
  /// Carries out what was decided and asked. Call it every second, and every 20 ms while busy(). Unless it is
  /// busy, no delivery is under way.
  void Poll();
  [[nodiscard]] bool busy() const { return busy_.load(); }
  /// A stop is to be asked for in a bucket, and was not yet.
  [[nodiscard]] bool asking() const { return asking_.load(); }
  /// Poll() found the run in use: Judge() ends its turn early, and whoever calls it lets the main thread go
  /// first.
  [[nodiscard]] bool wanted() const { return wanted_.load(); }
  [[nodiscard]] std::vector<std::string> TakeSayings();
  /// What rules look at and the run was not to record, in words, once when it shows; "" else.
  [[nodiscard]] std::string TakeNotRecorded();
  void AddTo(std::vector<pollfd>* fds) const { runner_.deliveries().AddTo(fds); }
  bool ChildEnded(pid_t pid, const ExitState& state) { return runner_.deliveries().Ended(pid, state); }
  void ReapChildren() { runner_.deliveries().Reap(); }
  /// Everything that was found was taken, and nothing is being delivered.
  [[nodiscard]] bool settled();
  /// It is judged to its end, or cannot be judged any further: over() or failure() tells, perhaps later.
  [[nodiscard]] bool at_end() const { return at_end_.load(); }
  /// The run has ended, all its steps are judged, and it is settled.
  [[nodiscard]] bool over();
  /// It cannot be judged any further: why. What was found may still be on its way.
  [[nodiscard]] Status failure() const;
  /// Writes a checkpoint, so that the next process goes on here.
  [[nodiscard]] Status Leave();
  /// Ends deliveries that are under way.
  void Cancel();

  /// Wall time of the oldest step that is not judged; 0: none waits.
  [[nodiscard]] std::int64_t oldest_unix_ns() const { return oldest_unix_ns_.load(); }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::string& run_id() const noexcept { return run_id_; }
  [[nodiscard]] std::size_t steps_done() const;

  // The fleet's own notes; the main thread's.
  std::int64_t next_look_ns = 0, next_poll_ns = 0, idle_ns = 0;
  std::size_t dear_turns = 0;
  std::atomic<bool> slow = false;         // judged by the slow lane
  std::atomic<bool> cheap_again = false;  // the slow lane gives it back

 private:
  WatchedRun(std::string path, std::string name, const RunSettings& settings, bool commands);
  /// Whether the training has ended, and all that it wrote was read.
  bool HasEnded();
  void Fail(const Status& why);
  void Finish();
  void NoteFound(rules::Finding finding, std::string event);
  void WriteOutcome();
  [[nodiscard]] bool StopsOthers(const rules::Finding& finding) const;
  void AskToStop(const rules::Finding& finding);
  void AskInBucket();
  /// False: not now.
  [[nodiscard]] bool AskToStopInBucket(const rules::Finding& finding);
  std::int64_t TrainStep() const;

  const std::string path_, name_;
  std::string run_id_;
  const std::shared_ptr<const keys::SecretKey> key_;
  const bool commands_;  // we hold the supervisor's lock; false: another process carries out what is asked
  const bool stop_on_finding_;
  const std::function<bool(const std::string&, const std::string&)> ask_;
  std::shared_ptr<store::SupervisorLock> lock_;
  std::unique_ptr<query::Trial> trial_;
  std::unique_ptr<rules::Evaluator> evaluator_;
  actions::Runner runner_;
  mutable std::mutex mutex_;  // of trial_, evaluator_, events_, failure_
  std::vector<Event> events_;
  std::vector<std::string> sayings_;
  std::set<std::string> asked_;                              // findings whose stop was asked for in a bucket
  std::map<std::string, rules::Finding> proven_;             // stops that the rules here have found, by id
  std::vector<std::pair<std::string, std::string>> to_ask_;  // ids of stops, and their rules
  Status failure_;
  std::int64_t dead_since_ns_ = -1;
  bool finished_ = false, ended_told_ = false, stop_asked_ = false;
  bool not_recorded_told_ = false;
  bool concluding_ = false;  // rules in other processes draw their last conclusions
  std::atomic<bool> busy_ = false, wanted_ = false, asking_ = false, has_events_ = false, at_end_ = false;
  std::atomic<std::int64_t> oldest_unix_ns_ = 0;
};

}  // namespace luff::watch
