#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "luff/rules/rule.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/sample.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Counts calls of losses whose target is, number by number, an input of the model in
/// the same step, and those whose target is not, in training and in evaluations. Remembers at most 32 calls.
class CopiedTargets {
 public:
  struct Counts {
    std::int64_t copied = 0, other = 0, evaluated_copied = 0, evaluated_other = 0;
    void VisitFields(Fields& io) {
      io("copied", copied);
      io("other", other);
      io("evaluated_copied", evaluated_copied);
      io("evaluated_other", evaluated_other);
    }
  };

  /// Call at each step with samples.
  void Add(const StepView& view, bool train) {
    for (const LossCall& call : LossReader::Read(view)) {
      if (!call.output.is_float() || call.target.values.size() < kElements) continue;
      if (losses_.size() >= LossReader::kMaxKinds && !losses_.contains(call.key)) continue;
      const bool copied = IsInput(view, call.target);
      Counts& counts = losses_[call.key];
      ++(train ? (copied ? counts.copied : counts.other)
               : (copied ? counts.evaluated_copied : counts.evaluated_other));
    }
  }
  /// By key of the call.
  [[nodiscard]] const std::map<std::string, Counts>& losses() const noexcept { return losses_; }
  void VisitFields(Fields& io) { io("losses", losses_, LossReader::kMaxKinds); }

 private:
  static constexpr std::size_t kElements = 16;

  // Whether a target that varies is an input, as far as both are kept.
  static bool IsInput(const StepView& view, const SampleValues& target) {
    if (std::adjacent_find(target.values.begin(), target.values.end(), std::not_equal_to<>()) ==
        target.values.end())
      return false;
    return std::any_of(ModelInputsOf(view).begin(), ModelInputsOf(view).end(), [&](const ModelInput& input) {
      const auto sample = LoadSample(view, *input.entry);
      if (sample == nullptr || sample->whole_shape != target.whole_shape) return false;
      const std::size_t count = std::min(sample->values.size(), target.values.size());
      return count >= kElements &&
             std::equal(sample->values.begin(), sample->values.begin() + static_cast<std::ptrdiff_t>(count),
                        target.values.begin());
    });
  }

  std::map<std::string, Counts> losses_;
};

}  // namespace luff::rules
