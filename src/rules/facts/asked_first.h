#pragma once
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "luff/rules/rule.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/sample.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// Whether a model is asked before most TRAIN steps, by passes without gradients that measure nothing. It may
/// make the targets, as a target network does: a value that is learnt from its own estimate. Such targets
/// depend on more than the inputs, and their errors grow with the values that are learnt.
///
/// Two kinds of passes are none of these: over rows that were asked about before, together, as a script that
/// measures by hand asks about its test set; and of another model with rows of another length, as a frozen
/// encoder that makes the inputs.
class AskedFirst {
 public:
  void OnTrainStep(const StepView& view) {
    ++steps_;
    with_ += std::exchange(asked_, false) ? 1 : 0;
    for (const ModelInput& input : ModelInputsOf(view)) {
      const auto sample =
          models_.size() < kMost && widths_.size() < kMost ? LoadSample(view, *input.entry) : nullptr;
      if (sample == nullptr) continue;
      models_.insert(input.model);
      widths_.insert(static_cast<std::int64_t>(RowsOf(*sample).width));
    }
  }
  /// A pass of another mode; `measures`: it has a loss.
  void OnPass(const StepView& view, bool measures) {
    if (!asked_ && !measures) asked_ = MayMakeTargets(view);
  }
  [[nodiscard]] bool mostly() const noexcept { return 2 * with_ > steps_; }

  void VisitFields(Fields& io) {
    io("steps", steps_);
    io("with", with_);
    io("asked", asked_);
    io("models", models_, kMost + 64);
    io("widths", widths_, kMost + 64);
    io("batches", batches_, kBatches);
  }

 private:
  static constexpr std::size_t kMost = 16, kBatches = 256;
  static constexpr std::size_t kSet = 8;  // rows: fewer may come again by chance, as states of a small game

  bool MayMakeTargets(const StepView& view) {
    const std::vector<ModelInput>& inputs = ModelInputsOf(view);
    const auto sample = inputs.empty() ? nullptr : LoadSample(view, *inputs.front().entry);
    if (sample == nullptr) return true;
    const Rows rows = RowsOf(*sample);
    if (!models_.empty() && !models_.contains(inputs.front().model) &&
        !widths_.contains(static_cast<std::int64_t>(rows.width)))
      return false;
    if (rows.count < kSet) return true;
    std::uint64_t all = 1;
    for (const std::uint64_t row : RowHashes(*sample)) all = (all * 31 + row) & ((1ULL << 52) - 1);
    if (batches_.contains(all)) return false;
    if (batches_.size() >= kBatches) batches_.clear();
    batches_.insert(all);
    return true;
  }

  std::int64_t steps_ = 0, with_ = 0;
  bool asked_ = false;
  std::set<std::string> models_;               // that are trained
  std::set<std::int64_t> widths_;              // of rows that they get
  std::unordered_set<std::uint64_t> batches_;  // that were asked about
};

}  // namespace luff::rules
