#include "rules/facts/machine_rule.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/format.h"
#include "luff/profile/input.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/select.h"

namespace luff::rules {
namespace {

constexpr std::int64_t kWindowNs = 10'000'000'000;
constexpr std::int64_t kLookEveryNs = 1'000'000'000;  // while samples are awaited
constexpr std::size_t kMostWaiting = 16;

}  // namespace

const profile::MachineUse* MachineWindow::own() const noexcept {
  for (const profile::MachineUse& use : machines) {
    for (const profile::RankUse& rank : use.ranks) {
      if (rank.worker == worker) return &use;
    }
  }
  return nullptr;
}

bool MachineWindow::OwnsGpus(const profile::MachineUse& use) const noexcept {
  return !on_host && static_cast<std::size_t>(std::ranges::count_if(use.gpus, Works)) <= use.ranks.size();
}

void MachineRule::Open::VisitFields(Fields& io) {
  // Without a sign, because a signed whole number of a state ends at 2^53.
  auto from = static_cast<std::uint64_t>(from_ns), to = static_cast<std::uint64_t>(to_ns);
  io("from", from);
  io("to", to);
  io.Check(std::max(from, to) < std::uint64_t{1} << 62U, "a time");
  from_ns = static_cast<std::int64_t>(from);
  to_ns = static_cast<std::int64_t>(to);
  io("first_step", first_step);
  io("last_step", last_step);
  io("steps", steps);
  io("global_step", global_step);
  io("update", update);
  io("mode_step", mode_step);
  io("wall", wall_s);
  io("wait", wait_s);
  io("queue", queue_s);
  io("worker", worker);
  io("number", number);
  io("queue_known", queue_known);
  io("first", first);
}

void MachineRule::VisitFields(Fields& io) {
  io("now", now_);
  io("waiting", waiting_, kMostWaiting);
  io("run_s", run_s_);
  io("lost_s", lost_s_);
  io("streak", streak_);
  io("free", free_);
  io("since", since_);
  io("judged", judged_);
  io("begin_step", begin_step_);
  io("told", told_);
  io("open", open_);
  io("begun", begun_);
  io("cause", cause_);
}

void MachineRule::OnStep(const StepView& view, Sink& sink) {
  const query::StepInfo& info = view.rows.info;
  const std::int64_t end_ns = info.wall_unix_ns;
  if (info.mode != query::Mode::kTrain || end_ns <= 0 || end_ns >= std::int64_t{1} << 62U) return;
  if (run_ == nullptr) run_ = view.memo.Machines();
  if (now_.from_ns == 0 || end_ns < now_.from_ns) {  // the first, or the wall clock was set back
    now_ = {};
    now_.from_ns = end_ns;
    now_.first_step = info.mode_step;
    now_.first = !std::exchange(begun_, true);
    if (now_.first) begin_step_ = info.mode_step;
  }
  if (end_ns - now_.from_ns >= kWindowNs && now_.steps > 0) {
    if (waiting_.size() < kMostWaiting) waiting_.push_back(now_);
    now_ = {};
    now_.from_ns = waiting_.back().to_ns;
    now_.first_step = info.mode_step;
  }
  now_.to_ns = end_ns;
  now_.last_step = now_.mode_step = info.mode_step;
  now_.global_step = info.global_step;
  now_.update = info.update;
  now_.number = view.number;
  ++now_.steps;
  if (!view.rows.phases.empty()) {
    const query::StepPhases& phases = view.rows.phases.front();
    const profile::StepTime time = profile::TimeOf(phases);
    now_.worker = phases.worker;
    now_.wall_s += time.wall_s;
    now_.wait_s += time.wait_s;
    run_s_ += time.wall_s;
    if (time.queue_s >= 0)
      now_.queue_s += time.queue_s;
    else
      now_.queue_known = false;
  } else {
    now_.queue_known = false;
  }
  if (waiting_.empty() || (looked_ns_ != 0 && end_ns - looked_ns_ < kLookEveryNs && end_ns >= looked_ns_))
    return;
  looked_ns_ = end_ns;
  JudgeOpen(view.trial, end_ns, false, sink);
  if (waiting_.empty()) looked_ns_ = 0;
}

void MachineRule::OnEnd(const query::Trial& trial, Sink& sink) {
  if (now_.steps > 0 && now_.to_ns - now_.from_ns >= kWindowNs / 2) waiting_.push_back(now_);
  now_ = {};
  JudgeOpen(trial, 0, true, sink);
}

void MachineRule::JudgeOpen(const query::Trial& trial, std::int64_t now_ns, bool all, Sink& sink) {
  if (run_ == nullptr) run_ = std::make_shared<RunMachines>();  // the run ended right after a restart
  if (!run_->Refresh(trial, now_ns)) {
    waiting_.clear();  // a trial that is no run: nothing was measured
    return;
  }
  while (!waiting_.empty()) {
    const Open open = waiting_.front();
    if (!run_->Cover(open.to_ns) && !all && now_ns - open.to_ns < kSamplesLateNs) return;
    waiting_.erase(waiting_.begin());
    if (open.first) continue;
    MachineWindow window;
    window.trial = &trial;
    window.number = open.number;
    window.from_unix_ns = open.from_ns;
    window.to_unix_ns = open.to_ns;
    window.first_step = open.first_step;
    window.last_step = open.last_step;
    window.steps = open.steps;
    const double clock_s = static_cast<double>(open.to_ns - open.from_ns) * 1e-9;
    window.wall_s = open.wall_s > 0 ? open.wall_s : clock_s;
    window.wait_s = open.wait_s;
    window.queue_s = open.queue_known ? open.queue_s : -1;
    window.worker = static_cast<std::uint32_t>(open.worker);
    if (const auto loader = profile::TrainingLoader(trial.Document("loaders")))
      window.epoch_steps = loader->batches;
    window.machines = run_->In(open.from_ns, open.to_ns);
    const auto has_gpus = [](const profile::MachineUse& use) { return !use.gpus.empty(); };
    if (std::ranges::any_of(window.machines, has_gpus)) {
      const ModelFacts model = ModelFacts::Of(trial);
      const auto on_host = [](const OptimizerFacts& one) { return one.device == "cpu"; };
      window.on_host = !model.optimizers().empty() && std::ranges::all_of(model.optimizers(), on_host);
    }
    if (!window.machines.empty()) Take(trial, open, window, sink);
  }
}

void MachineRule::Take(const query::Trial& trial, const Open& open, const MachineWindow& window, Sink& sink) {
  ++judged_;
  std::optional<MachineClaim> claim = Judge(window);
  if (!claim || (open_ && claim->cause != cause_)) {  // another cause waits until the open one has healed
    streak_ = 0;
    if (open_ && ++free_ >= 3) {
      open_ = false;
      sink.Heal(cause_, "", open.mode_step);
    }
    return;
  }
  if (claim->cause != cause_) streak_ = 0;
  cause_ = claim->cause;
  // What holds in the first window that is judged may have held in the one that is left out.
  if (streak_++ == 0) since_ = judged_ == 1 ? begin_step_ : window.first_step;
  free_ = 0;
  const bool timed = claim->saving_s >= 0;
  if (timed) lost_s_ += claim->saving_s;
  if (streak_ < limits_.windows && !open_) return;
  if (timed && (lost_s_ < limits_.seconds || lost_s_ < limits_.worth * run_s_)) return;
  open_ = true;
  query::StepInfo info;
  info.mode = query::Mode::kTrain;
  info.mode_step = open.mode_step;
  info.global_step = open.global_step;
  info.update = open.update;
  Finding finding = FindingAt(name_, cause_.c_str(), trial, format::kNoId, window.worker, info);
  finding.since_step = since_;
  finding.what = std::move(claim->what);
  if (timed)
    finding.what +=
        fmt::format("; about {} of {} so far", profile::TimeText(lost_s_), profile::TimeText(run_s_));
  finding.why = std::move(claim->why);
  finding.remedy = std::move(claim->remedy);
  finding.causes = std::move(claim->causes);
  finding.evidence = std::move(claim->evidence);
  if (timed) finding.evidence.emplace_back("saved_s", lost_s_);
  // The texts are written anew whenever the trouble has lasted twice as long.
  finding.evidence.emplace_back("detail", std::bit_width(static_cast<std::uint64_t>(++told_)));
  finding.threshold = std::move(claim->threshold);
  if (timed && window.steps > 0) {
    const auto steps = static_cast<double>(window.steps);
    finding.saving = {claim->saving_s / steps, window.share(claim->saving_s), claim->low_s / steps,
                      claim->high_s / steps, std::move(claim->method)};
  }
  sink.Report(std::move(finding));
}

}  // namespace luff::rules
