#pragma once
#include <atomic>
#include <cstdint>

namespace luff::capture {

/// Keeps the time that capture takes in the training thread below a share of the step time, by widening the
/// interval of **raw values** only. Does not act in the first 200 steps, nor while capture takes less than
/// 200 us a step.
///
/// Step calls come from one thread at a time; any thread may read `overhead_ratio` and `stride`.
class Governor {
 public:
  static constexpr std::int64_t kFirstStep = 200;
  static constexpr std::int64_t kFloorNs = 200'000;
  static constexpr std::uint32_t kMaxStride = 64;

  explicit Governor(double max_overhead) : max_overhead_(max_overhead) {}

  /// Whether raw values may be captured in a step in which they are due.
  [[nodiscard]] bool AllowRaw() noexcept;
  /// Call after each step, with the time spent in capture and in the whole step, both in ns.
  void EndStep(std::int64_t capture_ns, std::int64_t step_ns) noexcept;

  [[nodiscard]] double overhead_ratio() const noexcept { return ratio_.load(std::memory_order_relaxed); }
  /// Raw values are captured every `stride`-th time they are due.
  [[nodiscard]] std::uint32_t stride() const noexcept { return stride_.load(std::memory_order_relaxed); }

 private:
  const double max_overhead_;  // 0: no limit
  std::int64_t steps_ = 0;
  std::int64_t last_change_ = 0;
  std::uint32_t skipped_ = 0;
  double capture_mean_ns_ = 0, training_mean_ns_ = 0;
  std::atomic<double> ratio_{0};
  std::atomic<std::uint32_t> stride_{1};
};

}  // namespace luff::capture
