#include "capture/governor.h"

#include <algorithm>

namespace luff::capture {

bool Governor::AllowRaw() noexcept {
  if (skipped_ + 1 < stride()) {
    ++skipped_;
    return false;
  }
  skipped_ = 0;
  return true;
}

void Governor::EndStep(std::int64_t capture_ns, std::int64_t step_ns) noexcept {
  ++steps_;
  const auto capture = static_cast<double>(capture_ns);
  const auto training = static_cast<double>(std::max<std::int64_t>(step_ns - capture_ns, 1));
  const double weight = steps_ < 32 ? 1.0 / static_cast<double>(steps_) : 1.0 / 32;
  capture_mean_ns_ += (capture - capture_mean_ns_) * weight;
  training_mean_ns_ += (training - training_mean_ns_) * weight;
  const double ratio = capture_mean_ns_ / training_mean_ns_;
  ratio_.store(ratio, std::memory_order_relaxed);
  if (max_overhead_ <= 0 || steps_ <= kFirstStep || steps_ - last_change_ < 32) return;
  const std::uint32_t now = stride();
  if (ratio > max_overhead_ && capture_mean_ns_ > static_cast<double>(kFloorNs) && now < kMaxStride) {
    stride_.store(now * 2, std::memory_order_relaxed);
    last_change_ = steps_;
  } else if (now > 1 && ratio < max_overhead_ * 0.4) {  // half the stride would still hold the limit
    stride_.store(now / 2, std::memory_order_relaxed);
    last_change_ = steps_;
  }
}

}  // namespace luff::capture
