#include "luff/actions/coordinator.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "luff/store/after_stop.h"

namespace luff::actions {
namespace {

constexpr std::int64_t kRateWindowNs = 2'000'000'000;
constexpr double kNs = 1e9;
constexpr double kLeastWindowS =
    0.05;  // steps are published in batches, so a shorter window does not show their rate
constexpr std::size_t kMaxWaiting = 64;
constexpr std::uint64_t kTelling = 2;  // updates after the stop: one may be of the step that was stopped
// How often, and how far apart, their number must grow once the time is over: each worker writes it every
// 0.25 s, so what was trained before may be seen a little later.
constexpr int kGrowths = 3;
constexpr double kGrowthS = 0.5;
constexpr std::uint32_t kAccepted = 1, kTooLate = 2, kCarriedOut = 3, kRefused = 4, kFailed = 5, kAlone = 6;

double Seconds(std::int64_t from_ns, std::int64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) / kNs;
}

bool Lives(const query::WorkerInfo& worker) { return worker.alive && !worker.ended; }

std::uint32_t VerdictOf(std::uint32_t worker, std::uint64_t proposal, Coordinator::Acks acks) {
  std::uint32_t verdict = 0;
  for (const auto& [who, ack] : acks) {
    if (who == worker && ack.control == proposal) verdict = ack.verdict;
  }
  return verdict;
}

}  // namespace

ControlLog LogOf(const std::string& run_path) {
  return {[run_path](const store::ControlRecord& record) { return store::WriteControl(run_path, record); },
          [run_path](const store::ControlRecord& record) { return store::DecideControl(run_path, record); },
          [run_path](std::uint32_t worker) { return store::UpdatesAfterStop(run_path, worker); }};
}

bool Coordinator::Request(ActionRequest request) {
  if (stopping_) return false;
  if (request.kind == "stop") {
    stopping_ = true;
    waiting_.clear();  // actions that are not proposed yet are pointless now
    if (state_ == State::kHosts && current_.kind == "stop") {  // another host wants one, too
      current_ = std::move(request);
      own_ = true;
      proposals_ = 0;
      if (proposal_ != 0) Tell(ActionNews::What::kProposed);
      return true;
    }
    const bool unsaid = state_ == State::kHosts && followed_.empty() && offer_ == 0;
    if (state_ == State::kWanted || unsaid) state_ = State::kIdle;
  } else {
    const auto same = [&](const ActionRequest& other) { return other.id == request.id; };
    if (waiting_.size() >= kMaxWaiting || std::any_of(waiting_.begin(), waiting_.end(), same) ||
        (state_ != State::kIdle && same(current_))) {
      return false;
    }
  }
  waiting_.push_back(std::move(request));
  if (state_ == State::kIdle) Next();
  return true;
}

void Coordinator::Next() {
  state_ = State::kIdle;
  if (waiting_.empty()) return;
  current_ = std::move(waiting_.front());
  waiting_.pop_front();
  proposals_ = 0;
  proposal_ = 0;
  proposed_step_ = -1;
  state_ = State::kWanted;
}

Coordinator::Signal Coordinator::Poll(std::int64_t now_ns, std::uint32_t world,
                                      std::span<const query::WorkerInfo> workers, Acks acks) {
  std::int64_t furthest = -1;
  bool any_live = false;
  for (const query::WorkerInfo& worker : workers) {
    if (!Lives(worker)) continue;
    any_live = true;
    furthest = std::max(furthest, worker.last_train_step);
  }
  if (any_live) Observe(now_ns, furthest);
  if (hosts_ != nullptr) {
    if (const Signal late = CommittedLate(now_ns); late != Signal::kNone) return late;
  }
  if (hosts_ != nullptr && state_ < State::kHosts && hosts_->open() != nullptr)
    Follow(*hosts_->open(), now_ns);

  switch (state_) {
    case State::kIdle: return Signal::kNone;
    case State::kWanted:
      if (hosts_ != nullptr) {
        own_ = true;
        wanted_ns_ = -1;
        state_ = State::kHosts;
        return AcrossHosts(now_ns, world, furthest, any_live, workers, acks);
      }
      if (any_live) Propose(now_ns, furthest);
      return Signal::kNone;
    case State::kHosts: return AcrossHosts(now_ns, world, furthest, any_live, workers, acks);
    case State::kProposed:
      if (!any_live) return Signal::kNone;  // all workers have left on their own
      return Proposed(now_ns, world, furthest, workers, acks);
    case State::kCommitted:
      if (current_.kind == "stop") {
        const bool elsewhere = !workers.empty() && std::ranges::all_of(workers, &query::WorkerInfo::goes_on);
        return elsewhere ? Signal::kNone
                         : Leaving(now_ns, furthest, AfterStop(workers), any_live, !workers.empty());
      }
      CarryingOut(now_ns, workers, acks);
      return Signal::kNone;
    case State::kTerminating:
      if (Seconds(terminated_ns_, now_ns) < settings_.kill_s) return Signal::kNone;
      state_ = State::kKilling;
      remark_ += fmt::format("; it ignored SIGTERM for {:g} s and was killed", settings_.kill_s);
      Note(remark_);
      return Signal::kKill;
    case State::kKilling: return Signal::kNone;
  }
  return Signal::kNone;
}

void Coordinator::Observe(std::int64_t now_ns, std::int64_t furthest) {
  if (furthest >= 0 && (progress_.empty() || progress_.back().second < furthest))
    progress_.emplace_back(now_ns, furthest);
  while (progress_.size() > 2 && now_ns - progress_.front().first > kRateWindowNs) progress_.pop_front();
}

Coordinator::Answers Coordinator::Count(std::uint32_t world, std::span<const query::WorkerInfo> workers,
                                        Acks acks, std::string* why) {
  const bool stop = current_.kind == "stop";
  Answers answers = Answers::kAll;
  if (!stop && state_ != State::kHosts && workers.size() < world) {
    answers = Answers::kOpen;
    *why = fmt::format("only {} of {} ranks are watched", workers.size(), world);
  }
  for (const query::WorkerInfo& worker : workers) {
    // A stop ends a lost worker by signal; a correction needs an answer from every rank.
    if (worker.ended || (stop && !Lives(worker))) continue;
    const std::uint32_t verdict = VerdictOf(worker.worker, proposal_, acks);
    if (verdict == kRefused && !stop) {
      *why = current_.kind == "capture"
                 ? fmt::format(
                       "worker {} cannot record that: something in it is wrong, or the run has no room "
                       "for more collections",
                       worker.worker)
             : current_.kind == "trace" ? fmt::format(
                                              "worker {} cannot be traced: only PyTorch, TensorFlow and JAX "
                                              "can, and one training of a process at a time",
                                              worker.worker)
                                        : fmt::format("the training of worker {} has not opted in to {}",
                                                      worker.worker, current_.kind);
      return Answers::kRefused;
    }
    if (verdict == kTooLate || verdict == kRefused || verdict == kAlone) {
      answers = Answers::kLate;
      *why = "every proposed step was too late";
    } else if (verdict != kAccepted && verdict != kCarriedOut && answers != Answers::kLate) {
      answers = Answers::kOpen;
      *why = stop ? "a worker did not answer the proposals"
                  : fmt::format("worker {} did not answer", worker.worker);
    }
  }
  return answers;
}

Coordinator::Signal Coordinator::Proposed(std::int64_t now_ns, std::uint32_t world, std::int64_t furthest,
                                          std::span<const query::WorkerInfo> workers, Acks acks) {
  const bool stop = current_.kind == "stop";
  const bool overdue = Seconds(proposed_ns_, now_ns) >= settings_.answer_s;
  std::string why;
  Answers answers = proposal_ == 0 ? Answers::kOpen : Count(world, workers, acks, &why);
  if (proposal_ == 0) why = "the proposal could not be written into the run";
  if (answers == Answers::kAll) {
    const Result<store::ControlRecord> counts = Decide("commit");
    if (!counts.ok()) {  // retried until the proposal is overdue
      if (!overdue) return Signal::kNone;
      why = fmt::format("the decision could not be written into the run: {}", counts.status().message());
      if (stop) return Terminate(now_ns, why);
      return End(ActionNews::What::kFailed, why), Signal::kNone;
    }
    if (counts->phase == "commit") {
      Committed(now_ns);
      return Signal::kNone;
    }
    why = fmt::format("{} was faster: {}", counts->author, counts->reason);
    answers = Answers::kLate;
  } else {
    if (answers == Answers::kOpen && !overdue) return Signal::kNone;
    // An earlier attempt may have written the commit to the log although it returned an error.
    const Result<store::ControlRecord> counts = Decide("abort");
    if (counts.ok() && counts->phase == "commit") {
      Committed(now_ns);
      return Signal::kNone;
    }
  }
  Tell(ActionNews::What::kAborted, why);
  if (answers == Answers::kRefused || (!stop && (stopping_ || proposals_ >= settings_.proposals))) {
    End(ActionNews::What::kRefused, why);
  } else if (proposals_ >= settings_.proposals) {
    return Terminate(now_ns, why);
  } else {
    Propose(now_ns, furthest);
  }
  return Signal::kNone;
}

void Coordinator::Committed(std::int64_t now_ns) {
  state_ = State::kCommitted;
  committed_ns_ = now_ns;
  if (current_.kind == "stop") committed_step_ = proposed_step_;
  Tell(ActionNews::What::kCommitted);
}

std::uint64_t Coordinator::AfterStop(std::span<const query::WorkerInfo> workers) const {
  std::uint64_t updates = 0;
  for (const query::WorkerInfo& worker : workers) {
    if (worker.reason == format::EndReason::kStopped && !worker.goes_on && log_.after_stop)
      updates = std::max(updates, log_.after_stop(worker.worker));
  }
  return updates;
}

Coordinator::Signal Coordinator::Leaving(std::int64_t now_ns, std::int64_t furthest, std::uint64_t after_stop,
                                         bool any_live, bool any) {
  // A worker that obeys has ended: of what it trains then, its process only tells how much. A script that
  // ends its epoch, writes its last checkpoint and leaves trains no more by then: the number must grow once
  // the time is over.
  const bool beyond = furthest > committed_step_ + 1;
  if (swallowed_ns_ == 0) {
    if (beyond || after_stop >= kTelling) swallowed_ns_ = now_ns;
  } else if (Seconds(swallowed_ns_, now_ns) >= settings_.swallow_s) {
    if (after_stop > after_stop_ && (growths_ < 0 || Seconds(grown_ns_, now_ns) >= kGrowthS)) {
      after_stop_ = after_stop;
      grown_ns_ = now_ns;
      ++growths_;
    }
    if (beyond || growths_ >= kGrowths) {
      return Terminate(
          now_ns,
          fmt::format("the script went on after {} TRAIN steps: it swallowed StopTraining", committed_step_));
    }
  }
  if (!any_live && any && Seconds(committed_ns_, now_ns) < settings_.leave_s) return Signal::kNone;
  if (Seconds(committed_ns_, now_ns) >= settings_.leave_s) {
    return Terminate(
        now_ns, fmt::format("the job had not left {:g} s after the stop was decided", settings_.leave_s));
  }
  return Signal::kNone;
}

void Coordinator::CarryingOut(std::int64_t now_ns, std::span<const query::WorkerInfo> workers, Acks acks) {
  std::vector<std::uint32_t> failed;
  std::vector<std::uint32_t> silent;
  std::vector<std::uint32_t> alone;
  std::size_t done = 0;
  for (const query::WorkerInfo& worker : workers) {
    switch (VerdictOf(worker.worker, proposal_, acks)) {
      case kCarriedOut: ++done; break;
      case kFailed: failed.push_back(worker.worker); break;
      case kAlone: alone.push_back(worker.worker); break;
      case kAccepted: silent.push_back(worker.worker); break;
      default: break;  // the worker ended before the proposal
    }
  }
  const bool others_wait = hosts_ != nullptr && hosts_->open() != nullptr;
  const double patience =
      stopping_ || others_wait ? std::min(settings_.answer_s, settings_.leave_s) : settings_.leave_s;
  const bool over = Seconds(committed_ns_, now_ns) >= patience;
  const bool waits = std::any_of(workers.begin(), workers.end(), [&](const query::WorkerInfo& worker) {
    return Lives(worker) && std::find(silent.begin(), silent.end(), worker.worker) != silent.end();
  });
  if (waits && !over) return;
  std::string why;
  if (!failed.empty()) why = fmt::format("the call-back failed in worker {}", fmt::join(failed, ", "));
  if (!alone.empty())
    why += fmt::format("{}worker {} could not read the decision and went on without", why.empty() ? "" : "; ",
                       fmt::join(alone, ", "));
  if (!silent.empty())
    why +=
        fmt::format("{}worker {} ended, or did not answer", why.empty() ? "" : "; ", fmt::join(silent, ", "));
  if (!why.empty() && done > 0) why += fmt::format("; {} carried it out", done);
  End(why.empty() ? ActionNews::What::kCarriedOut : ActionNews::What::kFailed, why);
}

std::int64_t Coordinator::StepAhead(std::int64_t furthest, double lead_s) const {
  double rate = 100;  // TRAIN steps per second of the fastest worker; a guess until it can be measured
  if (progress_.size() >= 2) {
    const double seconds = Seconds(progress_.front().first, progress_.back().first);
    if (seconds >= kLeastWindowS)
      rate = static_cast<double>(progress_.back().second - progress_.front().second) / seconds;
  }
  const double lead = lead_s * std::pow(2.0, proposals_);
  return furthest + 2 + static_cast<std::int64_t>(std::ceil(std::max(0.0, rate) * lead));
}

void Coordinator::Propose(std::int64_t now_ns, std::int64_t furthest) {
  store::ControlRecord record;
  record.kind = current_.kind;
  record.phase = "propose";
  record.train_step = StepAhead(furthest, settings_.lead_s);
  record.deadline_s = settings_.decision_s;
  record.reason = current_.reason;
  record.finding = current_.finding;
  record.body = current_.body;
  record.author = "luff run";
  const Result<std::uint64_t> number = log_.write(record);
  ++proposals_;
  proposed_ns_ = now_ns;
  proposed_step_ = record.train_step;
  proposal_ = number.ok() ? number.value() : 0;
  state_ = State::kProposed;
  if (proposal_ != 0) Tell(ActionNews::What::kProposed);
}

Result<store::ControlRecord> Coordinator::Decide(const char* phase) {
  if (proposal_ == 0) return FailedPrecondition("there is no proposal");
  store::ControlRecord record;
  record.kind = current_.kind;
  record.phase = phase;
  record.proposal = proposal_;
  record.train_step = proposed_step_;
  record.reason = current_.reason;
  record.finding = current_.finding;
  record.body = current_.body;
  record.author = "luff run";
  return log_.decide(record);
}

Coordinator::Signal Coordinator::Terminate(std::int64_t now_ns, std::string why) {
  state_ = State::kTerminating;
  terminated_ns_ = now_ns;
  remark_ = std::move(why) + "; it was sent SIGTERM";
  Note(remark_);
  Tell(ActionNews::What::kFailed, remark_);
  return Signal::kTerminate;
}

void Coordinator::End(ActionNews::What what, std::string detail) {
  Tell(what, std::move(detail));
  Next();
}

void Coordinator::Tell(ActionNews::What what, std::string detail) {
  news_.push_back({what, current_, proposed_step_, std::move(detail)});
}

void Coordinator::Note(const std::string& text) {
  store::ControlRecord record;
  record.kind = "note";
  record.reason = text;
  record.finding = current_.finding;
  record.author = "luff run";
  const Result<std::uint64_t> written = log_.write(record);  // an audit line; nothing depends on it
  static_cast<void>(written);
}

}  // namespace luff::actions
