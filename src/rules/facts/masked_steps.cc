#include "rules/facts/masked_steps.h"

#include <algorithm>

namespace luff::rules {

void MaskedSteps::Add(const SampleValues& sample) {
  if (sample.shape.size() != (ids_ ? 2U : 3U) || !sample.whole()) return;
  const auto rows = static_cast<std::size_t>(std::max<std::int64_t>(sample.shape[0], 0));
  const auto steps = static_cast<std::size_t>(std::max<std::int64_t>(sample.shape[1], 0));
  const auto width = ids_ ? 1 : static_cast<std::size_t>(std::max<std::int64_t>(sample.shape[2], 0));
  if (steps < 2 || width == 0 || width > kMaxFeatures || sample.values.size() != rows * steps * width) return;
  for (std::size_t row = 0; row < rows; ++row) {
    std::int64_t holes = 0;    // since the last step that is left
    std::int64_t between = 0;  // masked steps with such on both sides
    std::int64_t left = 0;
    for (std::size_t step = 0; step < steps; ++step) {
      const double* at = &sample.values[(row * steps + step) * width];
      if (std::all_of(at, at + width,
                      [&](double v) { return static_cast<float>(v) == static_cast<float>(value_); })) {
        ++masked_;
        holes += left > 0 ? 1 : 0;
        continue;
      }
      ++left;
      between += holes;
      inner_runs_ += holes > 0 ? 1 : 0;
      holes = 0;
      if (first_.empty()) first_.assign(at, at + width);
      alike_ = alike_ && first_.size() == width && std::equal(at, at + width, first_.begin());
      if (ids_ && seen_.size() <= kIds) seen_.insert(*at);
    }
    ++rows_;
    steps_ += static_cast<std::int64_t>(steps);
    inner_ += left + between;
    inner_masked_ += between;
    holed_ += between > 0 ? 1 : 0;
  }
}

double MaskedSteps::share() const noexcept {
  return steps_ == 0 ? 0 : static_cast<double>(masked_) / static_cast<double>(steps_);
}

MaskedSteps::Fault MaskedSteps::fault() const {
  if (rows_ < kRows || share() < kLeast) return Fault::kNone;
  if (masked_ == steps_) return Fault::kAll;
  if (alike_) return Fault::kAlike;
  if (!ids_ || seen_.size() > kIds || static_cast<double>(holed_) < kHoled * static_cast<double>(rows_))
    return Fault::kNone;
  const double usual = 0.5 / static_cast<double>(seen_.size() + 1);
  const bool often = static_cast<double>(inner_masked_) >= usual * static_cast<double>(inner_);
  return often && inner_masked_ < kMostInARow * inner_runs_ ? Fault::kAmong : Fault::kNone;
}

void MaskedSteps::VisitFields(Fields& io) {
  io("value", value_);
  io("ids", ids_);
  io("rows", rows_);
  io("steps", steps_);
  io("masked", masked_);
  io("inner", inner_);
  io("inner_masked", inner_masked_);
  io("inner_runs", inner_runs_);
  io("holed", holed_);
  io("alike", alike_);
  io("first", first_, kMaxFeatures);
  io("seen", seen_, kIds + 1);
}

}  // namespace luff::rules
