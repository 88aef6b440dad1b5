#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "luff/query/trial.h"
#include "luff/rules/finding.h"

/// What verbs draw: one number for each step.
namespace luff::cli {

struct Series {
  std::string name;
  std::vector<std::int64_t> step;
  std::vector<double> value;
  std::vector<bool> bad;  // some elements are NaN or Inf
};

/// Numbers the steps of all modes by TRAIN steps: any other step is where so many TRAIN steps came before it.
class TrainAxis {
 public:
  explicit TrainAxis(const query::Trial& trial);
  [[nodiscard]] std::int64_t Place(std::int64_t global_step) const;

 private:
  std::map<std::int64_t, std::int64_t> trained_;  // global step -> TRAIN step
};

/// Returns scalars as they are, one series for each mode; for tensors, the mean of a loss and the L2 norm of
/// others. Steps are numbered as `mode` counts them, or placed on `axis` if there is one: there an evaluation
/// has one place, and of a loss its mean.
[[nodiscard]] Result<std::vector<Series>> SeriesOf(const query::Trial& trial, query::TensorId id,
                                                   query::Mode mode, std::optional<std::uint32_t> worker,
                                                   const TrainAxis* axis);

/// The curve that shows a finding, from before the trouble began.
struct FindingCurve {
  std::string name;  // of the tensor and what is drawn of it; "": what the rule looked at
  std::vector<std::pair<std::int64_t, double>> points;
};
/// The rule's own curve, if it shows values from before the onset or there are none; otherwise what the run
/// holds of the finding's tensor around the onset. No points if neither exists.
[[nodiscard]] FindingCurve CurveOf(const query::Trial& trial, const rules::Finding& finding);

}  // namespace luff::cli
