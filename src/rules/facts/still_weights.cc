#include "rules/facts/still_weights.h"

#include <algorithm>
#include <bit>

#include "rules/facts/model_facts.h"
#include "rules/kit/step_index.h"

namespace luff::rules {

void StillWeights::OnTrainStep(const StepView& view) {
  using format::EventKind;
  using format::Role;
  if (moved_) return;
  moved_ = !view.index.events(EventKind::kOptimizerStep).empty() ||
           !view.index.events(EventKind::kStepSkipped).empty();
  for (const query::EventAt& event : view.index.events(EventKind::kForward)) {
    const std::uint64_t bits = event.row.argument;
    trains_ = trains_ || ((bits & kTold) != 0 && (bits & kTraining) != 0);
  }
  for (const ReachFacts& reach : ReachesOf(view.index)) {
    reached_ = std::max(reached_, reach.reached_count);
    // Saliency maps, attacks and transfers of style ask for the gradient of an input.
    inputs_ = inputs_ || std::any_of(reach.foreign.begin(), reach.foreign.end(),
                                     [](const auto& leaf) { return leaf.optimizer.empty(); });
  }
  backwards_ += view.index.events(EventKind::kBackward).empty() ? 0 : 1;
  std::uint64_t sums = 0;
  std::int64_t count = 0;
  for (const Role role : {Role::kWeight, Role::kBias}) {
    for (const auto& [entry, tensor] : view.index.summaries(role)) {
      if (entry.worker != view.index.first_worker()) continue;
      ++count;
      sums = (sums ^ std::bit_cast<std::uint64_t>(entry.summary.sum)) * kMix;
      sums = (sums ^ std::bit_cast<std::uint64_t>(entry.summary.sum_sq)) * kMix;
    }
  }
  sums &= kSumBits;
  if (count == 0) return;
  if (first_ < 0) {
    first_ = view.rows.info.mode_step;
    sums_ = sums;
    weights_ = count;
  }
  if (count != weights_) return;
  moved_ = moved_ || sums != sums_;
  newest_ = view.rows.info.mode_step;
}

std::int64_t StillWeights::backwards() const noexcept {
  if (moved_ || !trains_ || inputs_ || reached_ == 0 || first_ < 0) return 0;
  return std::min(backwards_, newest_ - first_ + 1);
}

void StillWeights::VisitFields(Fields& io) {
  io("moved", moved_);
  io("trains", trains_);
  io("inputs", inputs_);
  io("reached", reached_);
  io("backwards", backwards_);
  io("first", first_);
  io("newest", newest_);
  io("weights", weights_);
  io("sums", sums_);
}

}  // namespace luff::rules
