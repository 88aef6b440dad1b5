#include "rules/facts/few_rows.h"

#include "rules/facts/step_rows.h"

namespace luff::rules {

void FewRows::OnStep(const StepView& view) {
  if (many_ || view.rows.info.superseded) return;
  const query::Mode mode = view.rows.info.mode;
  if (mode == query::Mode::kTrain) {
    bool whole = true;
    for (const std::uint64_t row : RowsOfStep(view, &whole)) {
      ++seen_;
      trained_.insert(row);
      evaluated_.erase(row);
    }
    many_ = !whole || trained_.size() > kMost;
    if (many_) *this = {}, many_ = true;
  } else if (mode == query::Mode::kEval && evaluated_.size() < kMore * kMost) {
    for (const std::uint64_t row : RowsOfStep(view))
      if (evaluated_.size() < kMore * kMost && !trained_.contains(row)) evaluated_.insert(row);
  }
}

void FewRows::VisitFields(Fields& io) {
  io("trained", trained_, kMost);
  io("evaluated", evaluated_, kMore * kMost);
  io("seen", seen_);
  io("many", many_);
}

}  // namespace luff::rules
