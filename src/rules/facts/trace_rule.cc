#include "rules/facts/trace_rule.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "luff/profile/input.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/select.h"

namespace luff::rules {
namespace {

/// The last TRAIN step of a trace.
std::int64_t LastOf(const profile::TraceFile& file) noexcept { return file.first_step + file.steps - 1; }

constexpr std::uint64_t kLookEvery = 64;                         // TRAIN steps; and at the end
constexpr std::size_t kWorkersJudged = 64, kTracesJudged = 256;  // the latter of a worker

}  // namespace

void TraceRule::OnStep(const StepView& view, Sink& sink) {
  const query::StepInfo& info = view.rows.info;
  if (info.mode != query::Mode::kTrain) return;
  step_ = info.mode_step;
  global_ = info.global_step;
  update_ = info.update;
  for (const query::StepPhases& phases : view.rows.phases) {
    if (!phases.has_device()) continue;
    device_steps_ += phases.head.steps;
    idle_steps_ += phases.idle_steps;
  }
  if (run_ == nullptr) run_ = view.memo.SharedTraces();
  // Not steps of all modes: where a loop trains and evaluates in turns, each 64th may always be of one of
  // them.
  if (++trained_ % kLookEvery != 0) return;
  LookAt(view, sink);
  view.memo.RefreshTraces(view);
  Look(view.trial, false, sink);
}

void TraceRule::OnEnd(const query::Trial& trial, Sink& sink) {
  if (run_ == nullptr) run_ = std::make_shared<RunTraces>();  // the run ended right after a restart
  run_->Refresh(trial, true);
  Look(trial, true, sink);
}

void TraceRule::Look(const query::Trial& trial, bool at_end, Sink& sink) {
  for (const RunTraces::Seen& seen : run_->all()) {
    if (!at_end && LastOf(seen.file) > step_) continue;  // a look at a finished run sees later traces, too
    if (!judged_.contains(seen.worker) && judged_.size() == kWorkersJudged) continue;
    std::set<std::string>& judged = judged_[seen.worker];
    if (judged.size() < kTracesJudged && judged.insert(seen.file.file).second) Take(trial, seen, sink);
  }
}

void TraceRule::Take(const query::Trial& trial, const RunTraces::Seen& seen, Sink& sink) {
  const profile::DeviceTrace& devices = seen.devices;
  if (devices.span_s <= 0 || seen.file.steps <= 0 || seen.file.first_step < limits_.first) return;
  steps_ = seen.file.steps;
  std::optional<TraceClaim> claim;
  if (!devices.xplane || JudgesXplane()) claim = Judge(devices);
  if (claim && claim->saving_s == 0) claim.reset();  // with share = 0: there is none of it
  const auto open = open_.find(seen.worker);
  if (open != open_.end() && (!claim || claim->cause != open->second)) {
    const std::string cause = open->second;
    open_.erase(open);
    // Of several workers, it has healed when it has in all.
    if (std::ranges::none_of(open_, [&](const auto& one) { return one.second == cause; }))
      sink.Heal(cause, "", LastOf(seen.file));
  }
  if (!claim) return;
  if (open_.size() < kWorkersJudged) open_.insert_or_assign(seen.worker, claim->cause);
  query::StepInfo info;
  if (auto last = trial.FindStep(LastOf(seen.file), query::Mode::kTrain); last.ok()) {
    info = *last;
  } else {  // not recorded, e.g. thinned out since
    info.mode = query::Mode::kTrain;
    info.mode_step = LastOf(seen.file);
    info.global_step = global_;
    info.update = update_;
  }
  Finding finding = FindingAt(name_, claim->cause.c_str(), trial, format::kNoId, seen.worker, info);
  finding.since_step = seen.file.first_step;
  finding.what = std::move(claim->what);
  finding.why = std::move(claim->why);
  finding.remedy = std::move(claim->remedy);
  finding.causes = std::move(claim->causes);
  finding.evidence = std::move(claim->evidence);
  finding.evidence.emplace_back("traced_step", seen.file.first_step);
  finding.evidence.emplace_back("traced_steps", steps_);
  if (device_steps_ != 0) {  // of all steps, which were not traced
    finding.evidence.emplace_back("idle_share",
                                  static_cast<double>(idle_steps_) / static_cast<double>(device_steps_));
  }
  finding.threshold = std::move(claim->threshold);
  if (claim->saving_s >= 0) {
    const auto steps = static_cast<double>(steps_);
    finding.saving = {claim->saving_s / steps, claim->saving_s / devices.span_s, claim->low_s / steps,
                      claim->high_s / steps, std::move(claim->method)};
  }
  sink.Report(std::move(finding));
}

std::string TraceRule::OfStep(double seconds, const profile::DeviceTrace& trace) const {
  const auto steps = static_cast<double>(std::max<std::int64_t>(steps_, 1));
  return fmt::format("{} of {} a step", profile::TimeText(seconds / steps),
                     profile::TimeText(trace.span_s / steps));
}

void TraceRule::VisitFields(Fields& io) {
  io("judged", judged_, std::max(kWorkersJudged, kTracesJudged));
  io("open", open_, kWorkersJudged);
  io("trained", trained_);
  io("step", step_);
  io("global", global_);
  io("update", update_);
  io("device_steps", device_steps_);
  io("idle_steps", idle_steps_);
}

}  // namespace luff::rules
