#pragma once
#include <cstdint>
#include <memory>

#include "rules/kit/kept_rule.h"

/// The parts of rules that judge boosting runs. Each belongs to the rule of its name.
namespace luff::rules {

/// Combines two rules into one: each judges what the other does not.
[[nodiscard]] std::unique_ptr<KeptRule> Together(std::unique_ptr<KeptRule> one,
                                                 std::unique_ptr<KeptRule> other);

struct BoostedOverfitLimits {
  std::int64_t rounds = 3;
  double rise = 0.35, of_start = 0.1, fall = 0.5;
};
/// Overfit: an evaluation loss that has risen from its best, or that never fell, while the training loss
/// fell.
[[nodiscard]] std::unique_ptr<KeptRule> BoostedOverfit(const BoostedOverfitLimits& limits);

struct BoostedOvertrainingLimits {
  std::int64_t rounds = 20;
  double rise = 0.15, of_start = 0.05;
};
/// Overtraining: the best round is long past, and training continues.
[[nodiscard]] std::unique_ptr<KeptRule> BoostedOvertraining(const BoostedOvertrainingLimits& limits);

/// LossNotDecreasing: a training loss that rises, or that the planned rounds will hardly lower.
[[nodiscard]] std::unique_ptr<KeptRule> BoostedLossNotDecreasing();

struct BoostedDepthLimits {
  double depth = 8, lone_share = 0.25;
  std::int64_t rounds = 3;
};
/// TreeDepth: deep trees whose leaves hold single samples, and evaluations that no longer improve.
[[nodiscard]] std::unique_ptr<KeptRule> BoostedTreeDepth(const BoostedDepthLimits& limits);

struct BoostedImportanceLimits {
  double threshold = 0.8, rest = 0.15;
  std::int64_t features = 1, least = 8, from = 5;
};
/// FeatureImportanceOverweight: one feature carries the model, and the model is almost perfect.
[[nodiscard]] std::unique_ptr<KeptRule> BoostedFeatureImportance(const BoostedImportanceLimits& limits);

/// DataLeak: an evaluation whose rows are rows of the training.
[[nodiscard]] std::unique_ptr<KeptRule> BoostedDataLeak();
/// TrainValSkew: features or labels of an evaluation that were scaled otherwise than those of the training.
[[nodiscard]] std::unique_ptr<KeptRule> BoostedTrainValSkew();
/// TargetRange: labels of a training that are all one value.
[[nodiscard]] std::unique_ptr<KeptRule> BoostedTargetRange();

}  // namespace luff::rules
