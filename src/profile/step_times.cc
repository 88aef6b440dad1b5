#include "profile/step_times.h"

#include <algorithm>
#include <utility>

namespace luff::profile {
namespace {

constexpr std::size_t kLeftOut = 25;  // one in so many: the longest

}  // namespace

void TimeQuantiles::Put(double seconds, std::uint64_t steps) {
  Alike& to = alike_[seconds];
  to.steps += steps;
  to.sum += seconds * static_cast<double>(steps);
}

void TimeQuantiles::Add(double seconds, std::uint64_t steps) {
  if (alike_.empty() && steps <= kMostExact - all_.size()) {
    all_.insert(all_.end(), static_cast<std::size_t>(steps), static_cast<float>(seconds));
    return;
  }
  if (!all_.empty()) {
    for (const float one : std::exchange(all_, {})) Put(static_cast<double>(one), 1);
  }
  Put(seconds, steps);
}

double TimeQuantiles::At(double share) const {
  if (alike_.empty()) {
    if (all_.empty()) return 0;
    std::vector<float> sorted = all_;
    const auto place = static_cast<std::ptrdiff_t>(share * static_cast<double>(sorted.size() - 1));
    std::nth_element(sorted.begin(), sorted.begin() + place, sorted.end());
    return static_cast<double>(sorted[static_cast<std::size_t>(place)]);
  }
  std::uint64_t all = 0;
  alike_.EachUntil([&](const Alike& one) {
    all += one.steps;
    return true;
  });
  auto before = static_cast<std::uint64_t>(share * static_cast<double>(all - 1));
  double found = 0;
  alike_.EachUntil([&](const Alike& one) {
    if (before >= one.steps) {
      before -= one.steps;
      return true;
    }
    found = one.sum / static_cast<double>(one.steps);
    return false;
  });
  return found;
}

void StepSums::Add(const StepTime& one) noexcept {
  steps += 1;
  wall_s += one.wall_s;
  wait_s += one.wait_s;
  if (one.queue_s < 0 || one.cpu_s < 0) return;
  timed_s += one.wall_s;
  queue_s += one.queue_s;
  cpu_s += one.cpu_s;
}

void StepSums::Add(const StepSums& more, double share) noexcept {
  steps += share * more.steps;
  wall_s += share * more.wall_s;
  wait_s += share * more.wait_s;
  timed_s += share * more.timed_s;
  queue_s += share * more.queue_s;
  cpu_s += share * more.cpu_s;
}

Means MeansOf(const StepSums& sums) noexcept {
  Means means;
  means.steps = static_cast<std::size_t>(std::lround(sums.steps));
  means.step_s = sums.wall_s;
  means.wait_s = sums.wait_s;
  if (means.step_s <= 0) return means;
  const double kept = sums.timed_s > 0 ? 1 - std::min(sums.queue_s / sums.timed_s, 1.0) : 1;
  if (sums.timed_s * 2 > means.step_s) {
    const double slept = std::max(kept - sums.cpu_s / sums.timed_s, 0.0);
    means.blocked_s = slept * means.step_s / sums.steps;
  }
  means.step_s *= kept / sums.steps;
  means.wait_s *= kept / sums.steps;
  return means;
}

Means MeansOf(std::vector<StepTime> steps) {
  std::ranges::sort(steps, {}, &StepTime::wall_s);
  steps.resize(steps.size() - steps.size() / kLeftOut);
  StepSums sums;
  for (const StepTime& one : steps) sums.Add(one);
  return MeansOf(sums);
}

void StepTimes::Add(const StepTime& one) {
  if (alike_.empty() && all_.size() < kMostExact) {
    all_.push_back(one);
    return;
  }
  if (!all_.empty()) {
    for (const StepTime& known : std::exchange(all_, {})) alike_[known.wall_s].Add(known);
  }
  alike_[one.wall_s].Add(one);
}

Means StepTimes::Take() {
  if (alike_.empty()) return MeansOf(std::exchange(all_, {}));
  double left = 0;  // to be taken, the shortest first
  alike_.EachUntil([&](const StepSums& one) {
    left += one.steps;
    return true;
  });
  left -= std::floor(left / static_cast<double>(kLeftOut));
  StepSums sums;
  alike_.EachUntil([&](const StepSums& one) {
    if (one.steps > 0) sums.Add(one, std::min(left / one.steps, 1.0));
    left -= one.steps;
    return left > 0;
  });
  return MeansOf(sums);
}

}  // namespace luff::profile
