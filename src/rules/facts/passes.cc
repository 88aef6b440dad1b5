#include "rules/facts/passes.h"

#include <algorithm>
#include <vector>

#include "rules/facts/sample.h"

namespace luff::rules {
namespace {
constexpr std::int64_t kMarkSteps = 16;  // samples are dense in these steps
}

void Passes::OnTrainStep(const StepView& view) {
  const std::vector<ModelInput>& inputs = ModelInputsOf(view);
  if (inputs.empty()) return;
  const auto sample = LoadSample(view, *inputs.front().entry);
  if (sample == nullptr) return;
  const std::int64_t step = view.rows.info.mode_step;
  const double weight =
      last_step_ < 0 ? 1.0 : static_cast<double>(std::clamp<std::int64_t>(step - last_step_, 1, 1024));
  last_step_ = step;
  for (const std::uint64_t hash : RowHashes(*sample)) {
    if (marks_.contains(hash)) {
      hits_ += weight;
      if (step < kMarkSteps && marks_.size() < kMarks) ++early_;
    } else if (step < kMarkSteps && marks_.size() < kMarks) {
      marks_.insert(hash);
      if (early_ > 0) ++early_new_;
    }
  }
}

double Passes::count() const noexcept {
  return marks_.empty() ? 0 : 1 + hits_ / static_cast<double>(marks_.size());
}

bool Passes::drawn_at_random() const noexcept {
  // In passes over a data set, no row is new once rows come again, except that a few rows may be in the data
  // twice.
  const double again = static_cast<double>(early_);
  const double fresh = static_cast<double>(early_new_);
  return fresh > 32 && again > 0.05 * fresh;
}

void Passes::VisitFields(Fields& io) {
  io("marks", marks_, kMarks + 4096);
  io("last_step", last_step_);
  io("hits", hits_);
  io("early", early_);
  io("early_new", early_new_);
}

}  // namespace luff::rules
