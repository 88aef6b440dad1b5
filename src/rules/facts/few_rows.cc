#include "rules/facts/few_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "rules/facts/step_rows.h"
#include "rules/kit/step_index.h"

namespace luff::rules {
namespace {
constexpr std::int64_t kMostInBatch = 1LL << 40;
}

void FewRows::OnStep(const StepView& view) {
  if (many_ || view.rows.info.superseded) return;
  const query::Mode mode = view.rows.info.mode;
  if (mode == query::Mode::kTrain) {
    bool whole = true;
    const bool first = trained_.empty();
    for (const std::uint64_t row : RowsOfStep(view, &whole)) {
      const bool late = times() >= static_cast<double>(kLate);
      ++seen_;
      if (trained_.insert(row).second) {
        late_ += late ? 1 : 0;
        several_ = several_ || !first;
      }
      evaluated_.erase(row);
    }
    double sum = 0;
    const std::vector<LossValue>& losses = view.index.losses();
    for (const LossValue& loss : losses) sum += loss.worker == losses.front().worker ? loss.value : 0;
    if (!losses.empty() && std::isfinite(sum)) {
      if (steps_ < static_cast<double>(kSteps)) {
        first_ += sum;
        ++steps_;
      }
      losses_.push_back(sum);
      if (losses_.size() > kSteps) losses_.pop_front();
    }
    many_ = !whole || trained_.size() > kMost;
    if (many_) *this = {}, many_ = true;
  } else if (mode == query::Mode::kEval) {
    bool others = true;
    for (const std::uint64_t row : RowsOfStep(view)) {
      others = others && !trained_.contains(row);
      if (evaluated_.size() < kMore * kMost && !trained_.contains(row)) evaluated_.insert(row);
    }
    const std::vector<ModelInput>& inputs = ModelInputsOf(view);
    if (!others || inputs.empty()) return;
    const auto sample = LoadSample(view, *inputs.front().entry);  // of a large batch the first rows are kept
    if (sample != nullptr && !sample->whole_shape.empty())
      batch_ = std::max(batch_, std::clamp<std::int64_t>(sample->whole_shape.front(), 0, kMostInBatch));
  }
}

double FewRows::loss_left() const noexcept {
  if (steps_ < static_cast<double>(kSteps) || !(first_ > 0) || losses_.empty()) return 1;
  const double newest = std::accumulate(losses_.begin(), losses_.end(), 0.0);
  return newest / static_cast<double>(losses_.size()) / (first_ / steps_);
}

void FewRows::VisitFields(Fields& io) {
  io("trained", trained_, kMost);
  io("evaluated", evaluated_, kMore * kMost);
  io("late", late_);
  io("several", several_);
  io("seen", seen_);
  io("batch", batch_);
  io.Check(batch_ >= 0, "a number of rows");
  io("many", many_);
  io("losses", losses_, kSteps);
  io("first", first_);
  io("steps", steps_);
}

}  // namespace luff::rules
