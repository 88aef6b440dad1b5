#include "rules/engine/grouping.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace luff::rules {
namespace {

// How learning fails: it stands still, or values blow up.
enum Failure : unsigned { kNone = 0, kStands = 1, kBlowsUp = 2, kBoth = 3 };

struct Place {
  std::string_view rule;
  int tier;
  Failure is;      // the failure that the finding itself reports
  Failure causes;  // the failures of other rules that follow from it
};

// Rules whose findings stand alone (Overfit, DataLeak, ...) neither explain failures of others nor follow
// from them. They are not listed here; kConsequences holds the few that have one certain cause.
constexpr std::array kPlaces = std::to_array<Place>({
    {"AccumulationScale", 0, kNone, kBoth},
    {"BatchOrder", 0, kNone, kBoth},
    {"ContrastivePairs", 0, kNone, kStands},
    {"DeadEmbeddingRows", 0, kNone, kStands},
    {"FrozenAtInit", 0, kNone, kStands},
    {"GradientNotCleared", 0, kNone, kBoth},
    {"HighDropout", 0, kNone, kStands},
    {"InitialLoss", 0, kBlowsUp, kBoth},
    {"InputScale", 0, kNone, kBoth},
    {"LossFormula", 0, kNone, kBoth},
    {"LossInputContract", 0, kNone, kBoth},
    {"LossShapeMismatch", 0, kNone, kStands},
    {"MissingActivation", 0, kNone, kStands},
    {"NoGradient", 0, kNone, kStands},
    {"OptimizerSettings", 0, kNone, kBoth},
    {"ParamNotOptimized", 0, kNone, kStands},
    {"PrecisionLoss", 0, kNone, kStands},
    {"RegularizationDominates", 0, kNone, kStands},  // small weights give no NaN
    {"SampleMixing", 0, kNone, kStands},
    {"ScheduleCollapse", 0, kNone, kStands},
    {"StepSkipped", 0, kNone, kStands},
    {"SymmetricUnits", 0, kNone, kStands},
    {"TargetRange", 0, kNone, kBoth},
    {"UnusedResult", 0, kNone, kBoth},
    {"NonFinite", 1, kBlowsUp, kBoth},
    {"ExplodingTensor", 1, kBlowsUp, kBoth},
    {"LossSpike", 1, kBlowsUp, kBoth},
    {"PoorWeightInitialization", 1, kBoth, kBoth},
    {"WeightUpdateRatio", 1, kBoth, kBoth},
    {"AttentionCollapse", 1, kBoth, kStands},
    {"DeadRelu", 1, kBoth, kStands},
    {"SaturatedActivation", 1, kBoth, kStands},
    {"VanishingGradient", 1, kStands, kStands},
    {"ClipSaturated", 2, kBlowsUp, kNone},
    {"AllZero", 2, kStands, kNone},
    {"ClassImbalance", 2, kStands, kNone},
    {"Confusion", 2, kStands, kNone},
    {"ConstantOutput", 2, kStands, kNone},
    {"LossNotDecreasing", 2, kBoth, kNone},
    {"NoBetterThanConstant", 2, kStands, kNone},
    {"TensorVariance", 2, kBoth, kNone},
    {"UnchangedTensor", 2, kStands, kNone},
    {"Underfit", 2, kStands, kNone},
    {"WorseThanSimple", 2, kStands, kNone},
});

// Findings of rules above that say less than the others of their rule: they explain no failure to learn.
struct Exception {
  std::string_view rule, cause;
};
constexpr std::array kExceptions = std::to_array<Exception>({
    {"BatchOrder", "same_order"},
    {"DeadEmbeddingRows", "other_column"},
    {"DeadEmbeddingRows", "unused"},
    {"FrozenAtInit", "freeze_without_effect"},
    {"FrozenAtInit", "loads_itself"},
    {"FrozenAtInit", "restores_worst"},
    {"NoGradient", "backward_unused"},
    {"NoGradient", "first_step_only"},
    {"NoGradient", "norm_of_one"},
    {"NoGradient", "softmax_of_one"},
    {"NoGradient", "unused_twin"},
    {"NonFinite", "evaluation"},
    {"ScheduleCollapse", "other_optimizer"},
    {"UnusedResult", "mode_not_called"},
    {"UnusedResult", "never_read"},
});

// Findings of `rule` with `cause` follow from findings of `leader` with `of`.
struct Consequence {
  std::string_view leader, of, rule, cause;  // "" as a cause: any
};
constexpr std::array kConsequences = std::to_array<Consequence>({
    // Sorted batches, and rows that differ from those of evaluations, hide what inputs tell of targets.
    {"BatchOrder", "sorted", "LabelNoise", "unrelated"},
    {"ClassImbalance", "weights_upside_down", "Confusion", ""},
    {"ClassImbalance", "weights_upside_down", "NoBetterThanConstant", ""},
    // Gradients that were cut to next to nothing are no reason to raise the rate.
    {"ClipSaturated", "scaled", "LossNotDecreasing", ""},
    {"ClipSaturated", "scaled", "NoBetterThanConstant", ""},
    {"ClipSaturated", "scaled", "RegularizationDominates", ""},
    {"ClipSaturated", "scaled", "Underfit", ""},
    {"ClipSaturated", "scaled", "UnchangedTensor", "unchanged"},
    {"ClipSaturated", "scaled", "VanishingGradient", ""},
    {"ClipSaturated", "scaled", "WeightUpdateRatio", ""},
    {"DeadRelu", "", "NoGradient", "zero_gradient"},
    // A trace says why the device has little to do.
    {"AllocatorThrash", "", "GpuUnderused", "underused"},
    {"CopyNotOverlapped", "", "GpuUnderused", "underused"},
    {"HostSync", "", "GpuUnderused", "underused"},
    {"LaunchBound", "", "GpuUnderused", "underused"},
    {"PageableCopy", "", "GpuUnderused", "underused"},
    // What is copied from pageable memory is copied while the host waits, and nothing else runs.
    {"PageableCopy", "", "HostSync", "copy"},
    // Giving memory back to the driver waits for the device.
    {"AllocatorThrash", "", "HostSync", "synchronize"},
    // What a model answers itself leaves classes out, and changes.
    {"LabelNoise", "own_answers", "ClassImbalance", ""},
    {"LabelNoise", "own_answers", "LabelNoise", "contradiction"},
    // Rows that never meet their own targets contradict each other, and tell nothing of them.
    {"LabelNoise", "two_loaders", "LabelNoise", "contradiction"},
    {"LabelNoise", "two_loaders", "LabelNoise", "unrelated"},
    {"LabelNoise", "", "Overfit", ""},
    {"LabelNoise", "", "Overtraining", ""},
    {"Overfit", "", "Overtraining", ""},
    // Where the loss does not depend on the answers, only rounding and decay move weights.
    {"LossNotDecreasing", "constant", "RegularizationDominates", "shrinkage"},
    {"LossNotDecreasing", "constant", "NoGradient", "zero_gradient"},
    // Labels that stand where answers are expected are answers where labels are.
    {"LossInputContract", "arguments_exchanged", "TargetRange", ""},
    {"NLPSequenceRatio", "", "DeadEmbeddingRows", ""},
    {"NoGradient", "backward_unused", "VanishingGradient", ""},
    {"NoGradient", "first_step_only", "VanishingGradient", ""},
    {"NoGradient", "graphless_term", "NoGradient", "no_gradient"},
    // InitialLoss speaks of the output layer, PoorWeightInitialization names the layers.
    {"PoorWeightInitialization", "scale", "InitialLoss", "too_high"},
    // Evaluations with statistics of the start say nothing of the weights.
    {"RunningStatistics", "left_behind", "NoBetterThanConstant", ""},
    {"RunningStatistics", "left_behind", "Overfit", ""},
    {"RunningStatistics", "left_behind", "Overtraining", ""},
    {"RunningStatistics", "left_behind", "Underfit", ""},
    {"SaturatedActivation", "", "NoGradient", "zero_gradient"},
    // The loader waits for storage; more of its workers would, too.
    {"StorageBound", "", "InputBound", ""},
    // What is swapped is read from storage again.
    {"Swapping", "", "StorageBound", ""},
    {"Swapping", "", "InputBound", ""},
    {"TrainValSkew", "", "NoBetterThanConstant", ""},
    {"TrainValSkew", "", "Overfit", ""},
    // Weights of zero give zeros, and pass nothing back.
    {"SymmetricUnits", "zeros", "ConstantOutput", ""},
    {"SymmetricUnits", "zeros", "DeadRelu", ""},
    {"SymmetricUnits", "zeros", "NoGradient", ""},
    {"TrainValSkew", "absent", "LabelNoise", "unrelated"},
    {"TrainValSkew", "mixed", "LabelNoise", "unrelated"},
    {"TrainValSkew", "absent", "TrainValSkew", "mixed"},  // what never varies is correlated with nothing
    // Evaluations of another model say nothing of this one.
    {"UnchangedTensor", "evaluated", "NoBetterThanConstant", ""},
    {"UnchangedTensor", "evaluated", "Overfit", ""},
    {"UnchangedTensor", "evaluated", "Overtraining", ""},
    {"UnchangedTensor", "evaluated", "Underfit", ""},
    // That something simple does better says that something is wrong; these say what, or as much.
    {"CausalLeak", "", "WorseThanSimple", "model"},
    {"ClassImbalance", "", "WorseThanSimple", "model"},
    {"ClipSaturated", "", "WorseThanSimple", "model"},
    {"Confusion", "", "WorseThanSimple", "evaluation_data"},
    {"ConstantOutput", "", "WorseThanSimple", ""},
    {"LabelNoise", "", "WorseThanSimple", ""},
    {"LossNotDecreasing", "", "WorseThanSimple", "model"},
    {"ModeMismatch", "", "WorseThanSimple", ""},
    {"NoBetterThanConstant", "", "WorseThanSimple", ""},
    {"OptimizerStateReset", "", "WorseThanSimple", "model"},
    {"Overfit", "", "WorseThanSimple", "evaluation"},
    {"Overfit", "", "WorseThanSimple", "evaluation_data"},
    {"RunningStatistics", "", "WorseThanSimple", "evaluation"},
    {"TrainValSkew", "", "WorseThanSimple", ""},
    {"Underfit", "", "WorseThanSimple", ""},
    {"UnchangedTensor", "", "WorseThanSimple", ""},
    // A mode that was named and not set is the wrong one.
    {"UnusedResult", "mode_not_called", "ModeMismatch", ""},
    {"UnusedResult", "mode_not_called", "RunningStatistics", ""},
    // Updates that outgrow the weights make the loss diverge, if they began first. A warm-up that is stepped
    // once
    // per epoch makes updates too small.
    {"ScheduleCollapse", "warm_up_per_epoch", "WeightUpdateRatio", "small"},
    {"WeightUpdateRatio", "", "ExplodingTensor", "divergence"},
    // What shrinks to nothing is moved by as much by any update.
    {"RegularizationDominates", "shrinkage", "WeightUpdateRatio", "large"},
    // Decay cannot move weights by more than their size: a rate that does also decays too fast.
    {"WeightUpdateRatio", "thrown", "RegularizationDominates", ""},
    {"WeightUpdateRatio", "overwritten", "RegularizationDominates", ""},
    {"WeightUpdateRatio", "leaps", "RegularizationDominates", ""},
    // Units that die after an update that moved all weights too far died of it.
    {"WeightUpdateRatio", "leaps", "DeadRelu", ""},
    {"WeightUpdateRatio", "thrown", "DeadRelu", ""},
    // Weights that are replaced by far larger ones saturate what follows.
    {"WeightUpdateRatio", "replaced", "DeadRelu", ""},
    {"WeightUpdateRatio", "replaced", "SaturatedActivation", ""},
    {"WeightUpdateRatio", "replaced", "VanishingGradient", ""},
    // A loss that is scaled to nothing leaves weight decay alone, and Adam its eps; updates are small then.
    {"WeightUpdateRatio", "faint", "RegularizationDominates", "shrinkage"},
    {"WeightUpdateRatio", "faint", "WeightUpdateRatio", "damped"},
    {"WeightUpdateRatio", "faint", "WeightUpdateRatio", "creeping"},
    {"WeightUpdateRatio", "faint", "WeightUpdateRatio", "small"},
    {"WeightUpdateRatio", "damped", "WeightUpdateRatio", "creeping"},
    {"WeightUpdateRatio", "damped", "WeightUpdateRatio", "small"},
    {"WeightUpdateRatio", "creeping", "WeightUpdateRatio", "small"},
});

bool IsConsequence(const Finding& leader, const Finding& other) noexcept {
  const auto is = [](std::string_view wanted, const std::string& cause) {
    return wanted.empty() || wanted == cause;
  };
  return std::any_of(kConsequences.begin(), kConsequences.end(), [&](const Consequence& one) {
    return one.leader == leader.rule && one.rule == other.rule && is(one.of, leader.cause) &&
           is(one.cause, other.cause);
  });
}

const Place* Find(const std::string& rule) noexcept {
  const auto* it =
      std::find_if(kPlaces.begin(), kPlaces.end(), [&](const Place& place) { return place.rule == rule; });
  return it == kPlaces.end() ? nullptr : it;
}

bool IsException(const Finding& finding) noexcept {
  return std::any_of(kExceptions.begin(), kExceptions.end(), [&](const Exception& one) {
    return one.rule == finding.rule && one.cause == finding.cause;
  });
}

bool Explains(const Finding& leader, const Finding& other) {
  if (leader.healed || leader.forecast || !leader.leader.empty()) return false;
  if (IsConsequence(leader, other)) return true;
  if (IsException(leader)) return false;
  if (IsConsequence(other, leader) && other.since_step <= leader.since_step) return false;
  const Place* from = Find(leader.rule);
  const Place* to = Find(other.rule);
  return from != nullptr && to != nullptr && from != to && (from->causes & to->is) != 0 &&
         from->tier <= to->tier;
}

}  // namespace

int TierOf(const std::string& rule) noexcept {
  const Place* place = Find(rule);
  return place == nullptr ? 3 : place->tier;
}

std::string LeaderOf(const Finding& finding, std::span<const Finding> known) {
  const auto closeness = [](const Finding& one) { return std::pair(TierOf(one.rule), one.global_step); };
  const Finding* best = nullptr;
  for (const Finding& other : known) {
    if (!Explains(other, finding) || other.global_step > finding.global_step) continue;
    if (TakesOver(finding, other)) continue;
    if (best == nullptr || closeness(other) < closeness(*best)) best = &other;
  }
  return best == nullptr ? std::string() : best->id;
}

bool TakesOver(const Finding& leader, const Finding& earlier) {
  return Explains(leader, earlier) &&
         (TierOf(leader.rule) < TierOf(earlier.rule) || IsConsequence(leader, earlier)) && !earlier.healed &&
         earlier.leader.empty() && leader.since_step <= earlier.since_step;
}

}  // namespace luff::rules
