#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "luff/actions/host_log.h"
#include "luff/base/result.h"
#include "luff/query/trial.h"
#include "luff/store/control.h"

/// Actions that all workers of a job carry out at the same step: the stop, corrections, captures and traces.
/// Contract: docs/spec/control.md.
namespace luff::actions {

/// Deadlines in seconds.
struct StopSettings {
  double lead_s =
      0.25;  // how far ahead of the fastest worker the first proposal names its step; doubled each time
  double answer_s = 5.0;     // how long to wait for all answers before the proposal is aborted
  double decision_s = 10.0;  // how long a worker waits at the step for commit or abort
  int proposals = 5;         // after that a stop is sent by signal, and a correction is given up
  double leave_s = 60.0;     // after commit, for call-backs and leaving; then SIGTERM
  double swallow_s = 3.0;    // after a worker passed the step (it swallowed the exception); then SIGTERM
  double kill_s = 10.0;      // after SIGTERM; then SIGKILL
  // Of a job of several hosts that share a bucket only. Each word between them takes about a second.
  double hosts_lead_s = 3.0;     // as lead_s
  double hosts_answer_s = 12.0;  // as answer_s; a host waits 3 s longer for the decision, then decides abort
  double hosts_wait_s = 30.0;    // as decision_s
  double hosts_doubt_s = 300.0;  // no decision can be read, and no step is finished for so long; then SIGTERM
};

/// The two operations on a run's control records, which may fail and be called again, and what workers say
/// after a stop.
struct ControlLog {
  std::function<Result<std::uint64_t>(const store::ControlRecord&)> write;  // returns its number
  std::function<Result<store::ControlRecord>(const store::ControlRecord&)>
      decide;  // returns the decision that counts
  std::function<std::uint64_t(std::uint32_t worker)> after_stop =
      {};  // updates made since it ended as stopped; null: nobody knows
};
/// Uses the control records of a run.
[[nodiscard]] ControlLog LogOf(const std::string& run_path);

/// What all workers should do.
struct ActionRequest {
  std::string kind = "stop";  // one of kRequestable
  std::string id;             // of the action; goes into the proposal
  std::string reason;         // for people
  std::string finding;        // id, or ""
  std::string body;           // JSON object text of the proposal, or ""
  bool elsewhere = false;     // another host of the job wants it
  std::string cause = {};     // "RULE/CAUSE" of the finding, or ""; if `elsewhere`: HostLog::CauseKey of it
};

/// The outcome of a request.
struct ActionNews {
  /// kElsewhere: another host does it, for the same cause.
  enum class What : std::uint8_t {
    kProposed,
    kCommitted,
    kAborted,
    kCarriedOut,
    kRefused,
    kFailed,
    kElsewhere
  };
  What what = What::kProposed;
  ActionRequest request;
  std::int64_t train_step = -1;
  std::string detail;  // kAborted, kRefused, kFailed: why
};

/// Makes decisions. Never waits, and never touches a process or a clock itself. Handles one proposal at a
/// time; a stop comes before everything else that waits. **Thread-compatible.**
class Coordinator {
 public:
  enum class State : std::uint8_t { kIdle, kWanted, kHosts, kProposed, kCommitted, kTerminating, kKilling };
  enum class Signal : std::uint8_t { kNone, kTerminate, kKill };
  using Acks = std::span<const std::pair<std::uint32_t, format::AckRow>>;

  /// `hosts`: the other hosts of the job, with which actions are agreed upon; null: all ranks are in this
  /// run.
  Coordinator(const StopSettings& settings, ControlLog log, std::shared_ptr<HostLog> hosts = nullptr)
      : settings_(settings),
        log_(std::move(log)),
        hosts_(std::move(hosts)) {}

  /// Requests an action. The first stop counts, and nothing comes after it; other actions run once for each
  /// id. False if it is not taken: after a stop, a second time, or because too many wait.
  bool Request(ActionRequest request);
  /// Call it often (every 20 ms while busy). `now_ns` is monotonic, `world` the number of ranks. Returns the
  /// signal that the caller must now send to all processes of the job; it asks for each signal once.
  Signal Poll(std::int64_t now_ns, std::uint32_t world, std::span<const query::WorkerInfo> workers,
              Acks acks);
  /// Reports how far the fastest worker is, even while there is no request: its rate determines how far ahead
  /// a proposal lies.
  void Observe(std::int64_t now_ns, std::int64_t furthest);
  /// What another process has to know to obey, in place of this one, what the hosts decide: their open
  /// proposal, the number of the record by which the workers here were asked, and what was heard before.
  struct Bequest {
    std::string followed;
    std::uint64_t proposal = 0;
    std::shared_ptr<const HostLog::Past> past = {};
  };
  /// Nothing where no decision is awaited. It is told before this host can consent.
  [[nodiscard]] std::optional<Bequest> bequest() const;
  /// Goes on in place of a coordinator that has died. `asked`: the record of the bequest. Says nothing to the
  /// other hosts.
  void Inherit(const Bequest& bequest, const store::ControlRecord& asked, std::int64_t now_ns);
  /// What happened since the last call.
  [[nodiscard]] std::vector<ActionNews> TakeNews() { return std::exchange(news_, {}); }

  /// True if an action waits or is under way.
  [[nodiscard]] bool busy() const noexcept {
    return state_ != State::kIdle ||
           (hosts_ != nullptr && (hosts_->open() != nullptr || hosts_->has_late_commit()));
  }
  /// True if a stop was requested here, or all hosts have agreed on one.
  [[nodiscard]] bool stopping() const noexcept { return stopping_; }
  /// True if the stop was committed, or is sent by signal.
  [[nodiscard]] bool stop_decided() const noexcept {
    return current_.kind == "stop" && state_ >= State::kCommitted;
  }
  [[nodiscard]] State state() const noexcept { return state_; }
  /// The step committed for the stop; -1: none.
  [[nodiscard]] std::int64_t committed_step() const noexcept { return committed_step_; }
  /// A message for people, e.g. why a signal was needed; "" if there is none.
  [[nodiscard]] const std::string& remark() const noexcept { return remark_; }

 private:
  enum class Answers : std::uint8_t { kOpen, kAll, kLate, kRefused };
  Answers Count(std::uint32_t world, std::span<const query::WorkerInfo> workers, Acks acks, std::string* why);
  void Next();
  /// A step ahead of `furthest` by what the fastest worker does in the lead time.
  [[nodiscard]] std::int64_t StepAhead(std::int64_t furthest, double lead_s) const;
  void Propose(std::int64_t now_ns, std::int64_t furthest);
  Signal Proposed(std::int64_t now_ns, std::uint32_t world, std::int64_t furthest,
                  std::span<const query::WorkerInfo> workers, Acks acks);
  Signal Leaving(std::int64_t now_ns, std::int64_t furthest, std::uint64_t after_stop, bool any_live,
                 bool any);
  [[nodiscard]] std::uint64_t AfterStop(std::span<const query::WorkerInfo> workers) const;
  void CarryingOut(std::int64_t now_ns, std::span<const query::WorkerInfo> workers, Acks acks);
  Result<store::ControlRecord> Decide(const char* phase);
  // What all hosts of the job agree upon: coordinator_hosts.cc.
  void Follow(const HostMessage& proposal, std::int64_t now_ns);
  void Offer(std::int64_t now_ns, std::int64_t furthest, bool any_live);
  Signal AcrossHosts(std::int64_t now_ns, std::uint32_t world, std::int64_t furthest, bool any_live,
                     std::span<const query::WorkerInfo> workers, Acks acks);
  void AnswerHosts(std::int64_t now_ns, std::uint32_t world, std::int64_t furthest, bool any_live,
                   std::span<const query::WorkerInfo> workers, Acks acks);
  void DecideForHosts(std::int64_t now_ns, std::uint32_t world);
  Signal HostsCommitted(std::int64_t now_ns);
  Signal CommittedLate(std::int64_t now_ns);
  Signal Apart(std::int64_t now_ns, const std::string& why);
  void Unfollow();
  void Withdraw();
  void HostsAborted(const std::string& why, bool late);
  void GiveUp(const std::string& why);
  Signal Doubt(std::int64_t now_ns, std::int64_t furthest, std::span<const query::WorkerInfo> workers);
  /// A proposal of ours has arrived when who asked for it had been told that nothing happens.
  [[nodiscard]] bool GivenUp() const;
  void Committed(std::int64_t now_ns);
  Signal Terminate(std::int64_t now_ns, std::string why);
  void End(ActionNews::What what, std::string detail);
  void Tell(ActionNews::What what, std::string detail = {});
  void Note(const std::string& text);

  const StopSettings settings_;
  const ControlLog log_;
  const std::shared_ptr<HostLog> hosts_;
  State state_ = State::kIdle;
  bool stopping_ = false;
  std::deque<ActionRequest> waiting_;
  ActionRequest current_;
  std::vector<ActionNews> news_;
  std::string remark_;
  std::deque<std::pair<std::int64_t, std::int64_t>> progress_;  // (ns, furthest TRAIN step), the last seconds
  int proposals_ = 0;
  std::uint64_t proposal_ = 0;
  std::int64_t proposed_step_ = -1, proposed_ns_ = 0;
  std::int64_t committed_step_ = -1, committed_ns_ = 0, swallowed_ns_ = 0, terminated_ns_ = 0;
  std::uint64_t after_stop_ =
      0;  // updates after the stop, when the time for swallowing it was over; then the latest
  std::int64_t grown_ns_ = 0;  // when that was taken
  int growths_ = -1;           // how often there were more then; -1: it was not taken
  // Of kHosts.
  bool own_ = false;      // current_ was requested here; else another host wants it
  std::string followed_;  // the hosts' proposal that is under way; "": none
  std::int64_t followed_ns_ = 0;
  std::uint64_t offer_ = 0;                  // the message with our own proposal; 0: none is on its way
  std::string offered_;                      // id of the request that it is about
  std::int64_t wanted_ns_ = -1;              // since when there is something to offer
  std::int64_t reached_ = -1;                // TRAIN steps that are finished on some host
  std::uint64_t answer_ = 0, decision_ = 0;  // messages about followed_ that were sent; 0: none yet
  bool commits_ = false;                     // the decision that was sent
  bool agreed_ = false;                      // the answer was yes
  bool inherited_ = false;                   // it may have been: the supervisor that gave it has died
  std::int64_t covered_ns_ = -1;             // since when every rank stands in an answer
  std::int64_t unwritten_ns_ = -1, doubt_since_ns_ = -1, doubt_ns_ = -1, doubt_step_ = -1;
};

}  // namespace luff::actions
