#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "luff/query/trial.h"
#include "luff/rules/choice.h"

/// The cost of rules' needs in a run's training process.
namespace luff::cli {

/// "raw, summary of role sample, every 4th TRAIN step and the first 16".
[[nodiscard]] std::string NeedText(const rules::Need& need);

/// Bytes read from the training's tensors, and bytes kept of them, in an average TRAIN step.
struct CaptureCost {
  double read = 0, kept = 0;
};

/// Computes the cost of needs from the tensors in a run. A tensor with several needs is read once, at the
/// densest interval, as in capture.
class CostModel {
 public:
  explicit CostModel(const query::Trial& trial);
  [[nodiscard]] CaptureCost CostOf(std::span<const rules::Need> needs) const;

 private:
  struct Tensor {
    query::TensorInfo info;
    double bytes;
  };
  std::vector<Tensor> tensors_;
};

/// The needs of capture without rules (losses, summaries of weights, biases and gradients).
[[nodiscard]] std::vector<rules::Need> DefaultNeeds();

}  // namespace luff::cli
