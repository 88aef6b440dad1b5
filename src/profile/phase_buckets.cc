#include "luff/profile/phase_buckets.h"

#include <algorithm>
#include <cmath>

namespace luff::profile {
namespace {

constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();

/// The smallest number of bits for which at most `points` buckets cover the steps that there are.
int BitsFor(const query::Trial& trial, const BucketQuestion& q) {
  const std::size_t count = trial.step_count();
  if (count == 0) return 0;
  const std::int64_t from = std::max(q.from, trial.step_at(0).global_step);
  const std::int64_t to = std::min(q.to, trial.step_at(count - 1).global_step);
  int bits = 0;
  while (from <= to && static_cast<std::uint64_t>((to >> bits) - (from >> bits)) >= q.points) ++bits;
  return bits;
}

/// A band that is being made: its means are sums until all are there.
struct OpenBand {
  Band* band = nullptr;
  std::vector<double> sums;
  void Join(double value, std::int64_t steps, std::size_t at) {
    sums.resize(band->mean.size(), 0);
    sums[at] += value * static_cast<double>(steps);
    const auto number = static_cast<float>(value);
    band->lo[at] = std::fmin(band->lo[at], number);
    band->hi[at] = std::fmax(band->hi[at], number);
  }
  void Finish(const std::vector<std::int64_t>& steps) {
    sums.resize(band->mean.size(), 0);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const auto mean = static_cast<float>(sums[i] / static_cast<double>(steps[i]));
      band->mean[i] = std::clamp(mean, band->lo[i], band->hi[i]);
    }
  }
};

/// Fills the buckets of one worker.
class Filler {
 public:
  Filler(PhaseBuckets* to, int bits) : to_(*to), bits_(bits) {
    wall_.band = &to_.wall;
    for (std::size_t i = 0; i < format::kPhaseCount; ++i) phases_[i].band = &to_.phases[i];
  }

  void Add(const query::StepInfo& step, const query::StepPhases& phases) {
    const format::PhasesHead& head = phases.head;
    if (to_.last.empty() || to_.last.back() >> bits_ != step.global_step >> bits_) Open(step, phases);
    const std::size_t at = to_.step.size() - 1;
    to_.last[at] = step.global_step;
    to_.train_last[at] = step.mode_step;
    to_.end_unix_ns[at] = phases.ended_unix_ns;
    to_.steps[at] += head.steps;
    const auto each = [&](std::int64_t ns) { return static_cast<double>(ns) * 1e-9 / head.steps; };
    wall_.Join(each(head.wall_ns), head.steps, at);
    for (std::size_t i = 0; i < format::kPhaseCount; ++i) {
      if (phases.ns[i] == 0 && phases.begins[i] == 0 && to_.phases[i].mean.empty()) continue;
      if (to_.phases[i].mean.empty()) Begin(i, head.steps);
      phases_[i].Join(each(phases.ns[i]), head.steps, at);
    }
    if (head.cpu_ns < 0 || head.run_queue_ns < 0) return;
    timed_ns_ += static_cast<double>(head.wall_ns);
    cpu_ns_ += static_cast<double>(head.cpu_ns);
    queue_ns_ += static_cast<double>(head.run_queue_ns);
  }
  void Finish() {
    Close();
    wall_.Finish(to_.steps);
    for (OpenBand& band : phases_) {
      if (!band.band->mean.empty()) band.Finish(to_.steps);
    }
  }

 private:
  void Open(const query::StepInfo& step, const query::StepPhases& phases) {
    Close();
    // A merged row stands for the steps before it, too.
    const std::int64_t before = std::min<std::int64_t>(phases.head.steps - 1, step.mode_step);
    to_.step.push_back(std::max<std::int64_t>(step.global_step - before, 0));
    to_.last.push_back(step.global_step);
    to_.train.push_back(step.mode_step - before);
    to_.train_last.push_back(step.mode_step);
    to_.begin_unix_ns.push_back(phases.ended_unix_ns - phases.head.wall_ns);
    to_.end_unix_ns.push_back(phases.ended_unix_ns);
    to_.steps.push_back(0);
    to_.cpu.push_back(kUnknown);
    to_.run_queue.push_back(kUnknown);
    to_.wall.Grow(to_.step.size());
    for (Band& band : to_.phases) {
      if (!band.mean.empty()) band.Grow(to_.step.size());
    }
  }
  void Close() {
    if (to_.cpu.empty()) return;
    if (timed_ns_ > 0) {
      to_.cpu.back() = static_cast<float>(std::min(1.0, cpu_ns_ / timed_ns_));
      to_.run_queue.back() = static_cast<float>(std::min(1.0, queue_ns_ / timed_ns_));
    }
    timed_ns_ = cpu_ns_ = queue_ns_ = 0;
  }
  /// A phase that occurs for the first time: the steps before, and those of this bucket so far, have none.
  void Begin(std::size_t phase, std::uint32_t steps_now) {
    Band& band = to_.phases[phase];
    const std::size_t size = to_.step.size();
    band.lo.assign(size, 0);
    band.hi.assign(size, 0);
    band.mean.assign(size, 0);
    if (to_.steps[size - 1] == steps_now) band.lo[size - 1] = band.hi[size - 1] = kUnknown;
  }

  PhaseBuckets& to_;
  const int bits_;
  OpenBand wall_;
  std::array<OpenBand, format::kPhaseCount> phases_;
  double timed_ns_ = 0, cpu_ns_ = 0, queue_ns_ = 0;
};

}  // namespace

void Band::Grow(std::size_t size) {
  for (auto* values : {&lo, &hi, &mean}) values->resize(size, kUnknown);
}

Result<PhaseBuckets> BucketsOf(const query::Trial& trial, const BucketQuestion& question) {
  PhaseBuckets buckets;
  const int bits = BitsFor(trial, question);
  buckets.bucket_steps = std::int64_t{1} << bits;
  Filler filler(&buckets, bits);
  std::optional<std::uint32_t> worker = question.worker;
  LUFF_RETURN_IF_ERROR(
      query::VisitPhases(trial, [&](const query::StepInfo& step, const query::StepPhases& phases) {
        if (buckets.workers.empty() || buckets.workers.back() != phases.worker)
          buckets.workers.push_back(phases.worker);
        if (!worker) worker = phases.worker;
        if (phases.worker != *worker || step.mode != query::Mode::kTrain) return;
        if (step.global_step >= question.from && step.global_step <= question.to) filler.Add(step, phases);
      }));
  filler.Finish();
  if (question.worker && !buckets.workers.empty() &&
      std::ranges::find(buckets.workers, *question.worker) == buckets.workers.end())
    return NotFound("worker " + std::to_string(*question.worker) + " recorded no phases");
  buckets.worker = worker.value_or(0);
  return buckets;
}

}  // namespace luff::profile
