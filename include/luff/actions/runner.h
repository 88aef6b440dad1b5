#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "luff/actions/audit.h"
#include "luff/actions/coordinator.h"
#include "luff/actions/delivery.h"
#include "luff/actions/policy.h"

/// All actions of one run: what the policy decides goes to the coordinator or into a process, and into the
/// audit.
namespace luff::actions {

struct RunnerOptions {
  std::string run;      // absolute
  std::string command;  // the job's program, for those who are told
  std::vector<ActionSpec> specs;
  bool stop_on_finding = false;  // a finding of severity stop ends the job, whatever the specs say
  StopSettings stop;
  std::vector<std::string> notifier;  // argv of notify.py
};

/// Never waits. `now_ns` is monotonic. **Thread-compatible.**
class Runner {
 public:
  explicit Runner(RunnerOptions options);

  /// Once the run exists: reads what an earlier supervisor has done, and begins deliveries again that have no
  /// end.
  void Begin(std::int64_t now_ns);
  /// Findings of an earlier supervisor that have not healed. Their escalations begin with the first TRAIN
  /// step that is known.
  void Resume(std::vector<rules::Finding> findings) { resumed_ = std::move(findings); }
  void OnFinding(const rules::Finding& finding, std::string_view event, bool worse, std::int64_t train_step,
                 std::int64_t now_ns);
  /// To be called often: every 20 ms while the coordinator is busy, else every second or two. `workers` and
  /// `acks` are looked at only while it is busy.
  Coordinator::Signal Poll(std::int64_t now_ns, std::int64_t train_step, std::uint32_t world,
                           std::span<const query::WorkerInfo> workers, Coordinator::Acks acks);
  /// The job has ended: nothing more is begun, deliveries go on until `Deliveries::Cancel`.
  void JobEnded();
  /// Lines for the terminal, each with its line break.
  [[nodiscard]] std::vector<std::string> TakeSayings() { return std::exchange(sayings_, {}); }

  [[nodiscard]] const Coordinator& coordinator() const noexcept { return coordinator_; }
  [[nodiscard]] Deliveries& deliveries() noexcept { return deliveries_; }
  [[nodiscard]] const Deliveries& deliveries() const noexcept { return deliveries_; }
  /// The finding that the stop was asked for.
  [[nodiscard]] const rules::Finding& stop_finding() const noexcept { return stop_finding_; }

 private:
  void Carry(const Decision& decision, std::int64_t train_step);
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
  std::set<std::string> committed_;         // ids of actions that a proposal was committed for
  std::map<std::string, AuditLine> begun_;  // by id: what is under way
  std::set<std::string> limit_said_;
  std::vector<std::string> sayings_;
  std::vector<rules::Finding> resumed_;
  rules::Finding stop_finding_;
  bool ended_ = false, audit_failed_ = false;
};

}  // namespace luff::actions
