#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "luff/actions/arrivals.h"
#include "luff/actions/audit.h"
#include "luff/actions/coordinator.h"
#include "luff/actions/delivery.h"
#include "luff/actions/inbox.h"
#include "luff/actions/policy.h"

/// Runs all actions of one run: passes what the policy decides to the coordinator or to a process, and
/// records it in the audit.
namespace luff::actions {

struct RunnerOptions {
  std::string run;      // absolute
  std::string command;  // the job's program, for messages
  std::vector<ActionSpec> specs;
  bool stop_on_finding = false;  // a finding of severity stop ends the job, whatever the specs say
  StopSettings stop;
  std::vector<std::string> notifier;  // argv of notify.py
  bool commands = true;  // false: another process holds the supervisor's lock, and carries out what is asked
  std::shared_ptr<Gate> gate = nullptr;  // null: whoever can write into the run is heard, and no bucket is
  bool tell_keys = false;  // write into the run what `gate` is: true only if it comes from a configuration
  std::shared_ptr<HostLog> hosts = nullptr;  // the other hosts of the job; null: it has none
  bool not_all_here = false;  // its ranks are on other hosts, too, and nobody speaks to these for this run
};

/// Never waits. `now_ns` is monotonic. **Thread-compatible.**
class Runner {
 public:
  explicit Runner(RunnerOptions options);

  /// Call it once the run exists. Reads what an earlier supervisor did, and restarts deliveries that did not
  /// end.
  void Begin(std::int64_t now_ns);
  /// Takes findings of an earlier supervisor that have not healed. Their escalations count from the first
  /// known TRAIN step.
  void Resume(std::vector<rules::Finding> findings) { resumed_ = std::move(findings); }
  void OnFinding(const rules::Finding& finding, std::string_view event, bool worse, std::int64_t train_step,
                 std::int64_t now_ns);
  /// Call it often: every 20 ms while the coordinator is busy, else every second or two. Reads `workers` and
  /// `acks` only while the coordinator is busy.
  Coordinator::Signal Poll(std::int64_t now_ns, std::int64_t train_step, std::uint32_t world,
                           std::span<const query::WorkerInfo> workers, Coordinator::Acks acks);
  /// The number of a mark or label that this process wrote by itself.
  void Trust(std::uint64_t record) { inbox_.Trust(record); }
  /// The job has ended: starts nothing more; deliveries continue until `Deliveries::Cancel`.
  void JobEnded();
  /// Returns lines for the terminal, each with its line break.
  [[nodiscard]] std::vector<std::string> TakeSayings() { return std::exchange(sayings_, {}); }

  [[nodiscard]] const Coordinator& coordinator() const noexcept { return coordinator_; }
  [[nodiscard]] Deliveries& deliveries() noexcept { return deliveries_; }
  [[nodiscard]] const Deliveries& deliveries() const noexcept { return deliveries_; }
  /// The finding that caused the stop; its id is "" if there is none.
  [[nodiscard]] const rules::Finding& stop_finding() const noexcept { return stop_finding_; }
  /// Who asked for the stop, and why; "" if nobody did.
  [[nodiscard]] const std::string& stop_asked() const noexcept { return stop_asked_; }

 private:
  void Carry(const Decision& decision, std::int64_t train_step);
  /// The training is known to have begun: by a step, or a finding.
  void Trains(std::int64_t now_ns);
  void Take(const Heard& heard);
  /// Writes whose signatures count into the run, where that is not what it says yet.
  void TellKeys(const std::vector<store::ControlRecord>& records);
  /// Takes what came from a bucket, and tells of what was refused there or of marks and labels.
  void HearOthers(std::int64_t now_ns);
  /// Reads what the other hosts say, and tells of what counts for nothing.
  void HearHosts(std::int64_t now_ns);
  /// All hosts of the job have done that for the same cause, after what was found. `train_step`: up to which
  /// was judged.
  [[nodiscard]] bool DoneElsewhere(const Decision& decision, std::int64_t train_step) const;
  /// The line of the audit behind an action's news; null if there is none.
  const AuditLine* BegunOf(const ActionNews& news);
  /// Answers the request behind an action, if there is one that has no answer.
  void Reply(const std::string& id, Asked::State state, std::int64_t train_step, const std::string& why);
  void Deliver(const ActionSpec& spec, const std::string& id, const std::string& document);
  void HearDeliveries();
  void HearCoordinator();
  AuditLine LineOf(const Decision& decision, const std::string& id, std::string event) const;
  void Write(AuditLine line);
  std::string Document(const Decision& decision, const std::string& id, std::int64_t train_step) const;

  const RunnerOptions options_;
  Policy policy_;
  Coordinator coordinator_;
  Deliveries deliveries_;
  std::optional<Audit> audit_;
  std::string run_id_;
  std::set<std::string> committed_;         // ids of actions with a committed proposal
  std::map<std::string, AuditLine> begun_;  // by id: what is under way
  std::set<std::string> limit_said_;
  // What other hosts have asked for because of a finding: kind and HostLog::CauseKey, TRAIN steps after which
  // it was done.
  std::map<std::pair<std::string, std::string>, std::int64_t> elsewhere_;
  std::vector<std::string> sayings_;
  std::vector<rules::Finding> resumed_;
  bool trains_ = false;
  rules::Finding stop_finding_;
  Inbox inbox_;
  Arrivals arrivals_;
  std::size_t refused_ = 0, untold_ = 0;        // of arrivals, marks and labels
  std::int64_t tell_ns_ = 0;                    // not before
  std::int64_t tell_hosts_ns_ = 0;              // likewise
  std::map<std::string, std::uint64_t> asked_;  // by id of the action: the request behind it
  std::string stop_asked_;
  bool ended_ = false, audit_failed_ = false;
  bool not_all_here_ = false;  // the job has ranks on other hosts, and we speak to none: nothing reaches all
};

}  // namespace luff::actions
