#include "luff/actions/stop.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace luff::actions {
namespace {

constexpr std::int64_t kRateWindowNs = 2'000'000'000;
constexpr double kNs = 1e9;

double Seconds(std::int64_t from_ns, std::int64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) / kNs;
}

bool Lives(const query::WorkerInfo& worker) { return worker.alive && !worker.ended; }

}  // namespace

void StopCoordinator::Request(const std::string& reason, const std::string& finding_id) {
  if (state_ != State::kIdle) return;
  state_ = State::kWanted;
  reason_ = reason;
  finding_ = finding_id;
}

StopCoordinator::Signal StopCoordinator::Poll(
    std::int64_t now_ns, std::span<const query::WorkerInfo> workers,
    std::span<const std::pair<std::uint32_t, format::AckRow>> acks) {
  std::int64_t furthest = -1;
  bool any_live = false;
  for (const query::WorkerInfo& worker : workers) {
    if (!Lives(worker)) continue;
    any_live = true;
    furthest = std::max(furthest, worker.last_train_step);
  }
  if (any_live && (progress_.empty() || progress_.back().second != furthest))
    progress_.emplace_back(now_ns, furthest);
  while (progress_.size() > 2 && now_ns - progress_.front().first > kRateWindowNs) progress_.pop_front();

  switch (state_) {
    case State::kIdle: return Signal::kNone;
    case State::kWanted:
      if (any_live) Propose(now_ns, furthest);
      return Signal::kNone;
    case State::kProposed: {
      if (!any_live) return Signal::kNone;  // they have left by themselves
      bool all = true;
      bool late = false;
      for (const query::WorkerInfo& worker : workers) {
        if (!Lives(worker)) continue;
        std::uint32_t verdict = 0;
        for (const auto& [who, ack] : acks) {
          if (who == worker.worker && ack.control == proposal_) verdict = ack.verdict;
        }
        all = all && (verdict == 1 || verdict == 3);
        late = late || verdict == 2 || verdict == 4;
      }
      if (all) {
        if (!Decide("commit")) {  // tried again until the proposal's time is up
          if (Seconds(proposed_ns_, now_ns) < settings_.answer_s) return Signal::kNone;
          return Terminate(now_ns, "the decision could not be written into the run");
        }
        state_ = State::kCommitted;
        committed_step_ = proposed_step_;
        committed_ns_ = now_ns;
        return Signal::kNone;
      }
      if (!late && Seconds(proposed_ns_, now_ns) < settings_.answer_s) return Signal::kNone;
      (void)Decide("abort");
      if (proposals_ >= settings_.proposals) {
        return Terminate(now_ns,
                         late ? "every proposed step was too late" : "a worker did not answer the proposals");
      }
      Propose(now_ns, furthest);
      return Signal::kNone;
    }
    case State::kCommitted: {
      if (!any_live && !workers.empty() && Seconds(committed_ns_, now_ns) < settings_.leave_s)
        return Signal::kNone;
      if (furthest > committed_step_ + 1 && swallowed_ns_ == 0) swallowed_ns_ = now_ns;
      if (swallowed_ns_ != 0 && Seconds(swallowed_ns_, now_ns) >= settings_.swallow_s) {
        return Terminate(now_ns, fmt::format("the script went on beyond step {}: it swallowed StopTraining",
                                             committed_step_));
      }
      if (Seconds(committed_ns_, now_ns) >= settings_.leave_s) {
        return Terminate(
            now_ns, fmt::format("the job had not left {:g} s after the stop was decided", settings_.leave_s));
      }
      return Signal::kNone;
    }
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

void StopCoordinator::Propose(std::int64_t now_ns, std::int64_t furthest) {
  double rate = 100;  // TRAIN steps a second, of the fastest worker; a guess until two steps were seen
  if (progress_.size() >= 2) {
    const double seconds = Seconds(progress_.front().first, progress_.back().first);
    if (seconds > 0) rate = static_cast<double>(progress_.back().second - progress_.front().second) / seconds;
  }
  const double lead = settings_.lead_s * std::pow(2.0, proposals_);
  store::ControlRecord record;
  record.kind = "stop";
  record.phase = "propose";
  record.train_step = furthest + 2 + static_cast<std::int64_t>(std::ceil(std::max(0.0, rate) * lead));
  record.deadline_s = settings_.decision_s;
  record.reason = reason_;
  record.finding = finding_;
  record.author = "luff run";
  Result<std::uint64_t> number = write_(record);
  ++proposals_;
  proposed_ns_ = now_ns;
  proposed_step_ = record.train_step;
  proposal_ = number.ok() ? number.value() : 0;
  state_ = State::kProposed;
}

bool StopCoordinator::Decide(const char* phase) {
  if (proposal_ == 0) return false;
  store::ControlRecord record;
  record.kind = "stop";
  record.phase = phase;
  record.proposal = proposal_;
  record.train_step = proposed_step_;
  record.reason = reason_;
  record.finding = finding_;
  record.author = "luff run";
  // A decision that cannot be written leaves the workers to their deadline: they go on as after an abort.
  return write_(record).ok();
}

StopCoordinator::Signal StopCoordinator::Terminate(std::int64_t now_ns, std::string why) {
  state_ = State::kTerminating;
  terminated_ns_ = now_ns;
  remark_ = std::move(why) + "; it was sent SIGTERM";
  Note(remark_);
  return Signal::kTerminate;
}

void StopCoordinator::Note(const std::string& text) {
  store::ControlRecord record;
  record.kind = "note";
  record.reason = text;
  record.finding = finding_;
  record.author = "luff run";
  const Result<std::uint64_t> written = write_(record);  // an audit line; nothing depends on it
  static_cast<void>(written);
}

}  // namespace luff::actions
