#include "rules/facts/pause_rule.h"

#include <algorithm>
#include <bit>

#include "base/format.h"
#include "luff/profile/input.h"

namespace luff::rules {

const query::StepPhases* JudgedWorker::In(const StepView& view) {
  for (const query::StepPhases& phases : view.rows.phases) {
    if (worker_ < 0) worker_ = phases.worker;
    if (phases.worker == static_cast<std::uint32_t>(worker_)) return &phases;
  }
  return nullptr;
}

double SecondsOf(const query::StepPhases& phases, format::Phase phase) noexcept {
  return static_cast<double>(phases.ns[static_cast<std::size_t>(phase)]) * 1e-9;
}

int DetailOf(double seconds) noexcept {
  return seconds > 0
             ? static_cast<int>(std::bit_width(static_cast<std::uint64_t>(std::min(seconds * 8, 1e15))))
             : 0;
}

std::string PauseRule::Spent::Text() const {
  using profile::TimeText;
  // A clock on the wall shows more than these two figures.
  constexpr double kTold = 0.1;
  return fmt::format("takes {:.0f} % of the time ({} each, {} time{}: {} of {}{})", 100 * share(),
                     TimeText(each_s()), times, times == 1 ? "" : "s", TimeText(seconds), TimeText(run_s),
                     queued_s > kTold * (run_s + queued_s) ? ", both without waits for a core" : "");
}

void PauseRule::OnStep(const StepView& view, Sink& sink) {
  const query::StepInfo& info = view.rows.info;
  const query::StepPhases* phases = worker_.In(view);
  if (phases == nullptr) return;
  const bool trains = info.mode == query::Mode::kTrain;
  if (trains) spent_.steps += phases->head.steps;
  const double wall_s = static_cast<double>(phases->head.wall_ns) * 1e-9;
  Pause pause = Of(info, *phases);
  // Time without a core is nobody's fault. It is known of the step, and taken off it and its parts alike: a
  // share is of the time that was the run's own.
  double own = 1;
  if (phases->head.run_queue_ns > 0 && wall_s > 0)
    own -= std::min(static_cast<double>(phases->head.run_queue_ns) * 1e-9 / wall_s, 1.0);
  spent_.run_s += own * wall_s;
  spent_.queued_s += (1 - own) * wall_s;
  pause.seconds *= own;
  spent_.seconds += pause.seconds;
  spent_.times += pause.times;
  spent_.longest_s = std::max(spent_.longest_s, pause.seconds);
  if (since_ < 0 && pause.times > 0) since_ = step_;
  if (!trains) return;
  step_ = info.mode_step;
  global_ = info.global_step;
  update_ = info.update;
  Judge(view.trial, sink, false);
}

void PauseRule::OnEnd(const query::Trial& trial, Sink& sink) {
  if (open_) Judge(trial, sink, true);
}

void PauseRule::Judge(const query::Trial& trial, Sink& sink, bool last) {
  if (open_ && spent_.seconds < limits_.share / 2 * spent_.run_s) {
    open_ = false;
    sink.Heal(cause_, "", step_);
    return;
  }
  if (spent_.times < limits_.times || spent_.seconds < limits_.seconds ||
      spent_.seconds < limits_.share * spent_.run_s)
    return;
  if (open_ && !last && spent_.seconds < 1.1 * told_s_) return;
  query::StepInfo info;
  info.mode = query::Mode::kTrain;
  info.mode_step = step_;
  info.global_step = global_;
  info.update = update_;
  Finding finding = FindingAt(name_, cause_, trial, format::kNoId, worker_.number(), info);
  finding.since_step = std::min(std::max<std::int64_t>(since_, 0), step_);
  if (!Describe(trial, spent_, &finding)) return;
  finding.evidence.insert(finding.evidence.begin(), {{"spent_s", spent_.seconds},
                                                     {"run_s", spent_.run_s},
                                                     {"times", spent_.times},
                                                     // The texts are written anew as the time grows.
                                                     {"detail", DetailOf(spent_.seconds) + last}});
  if (finding.saving && spent_.run_s > 0) {
    const double steps = std::max(static_cast<double>(spent_.steps), 1.0);
    Saving& saving = *finding.saving;  // given in seconds of the whole run
    saving.share = saving.seconds_a_step / spent_.run_s;
    saving.seconds_a_step /= steps;
    saving.low /= steps;
    saving.high /= steps;
  }
  finding.threshold = fmt::format("{:g} % of the run's time, {:g} s and {} times (Luff)", 100 * limits_.share,
                                  limits_.seconds, limits_.times);
  open_ = true;
  told_s_ = spent_.seconds;
  sink.Report(std::move(finding));
}

void PauseRule::VisitFields(Fields& io) {
  worker_.VisitFields(io);
  io("seconds", spent_.seconds);
  io("run_s", spent_.run_s);
  io("queued_s", spent_.queued_s);
  io("longest_s", spent_.longest_s);
  io("times", spent_.times);
  io("steps", spent_.steps);
  io("told_s", told_s_);
  io("open", open_);
  io("since", since_);
  io("step", step_);
  io("global", global_);
  io("update", update_);
}

}  // namespace luff::rules
