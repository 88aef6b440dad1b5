#pragma once
#include <algorithm>
#include <array>
#include <string_view>

/// Parts of losses that cannot be meant, as the event `formula_part` names them: docs/rules/loss_formula.md.
namespace luff::rules::loss_formula {

struct FaultyPart {
  std::string_view name;
  const char* what;
  const char* why;
  const char* remedy;
  const char* cause;
};

inline constexpr std::array kParts = std::to_array<FaultyPart>({
    {"deviation_unlike", "codes are drawn with another deviation than that of their divergence",
     "a code is mean + deviation * noise, and the divergence of the loss takes another power of the same "
     "quantity for the variance: what is decoded is not drawn from the distribution that is held to N(0, 1)",
     "let both name one distribution: if the divergence has log_var and log_var.exp(), draw with "
     "(0.5 * log_var).exp(); if it has 2 * log_std and (2 * log_std).exp(), with log_std.exp()",
     "the variance, or its logarithm, in the place of the deviation"},
    {"uniform_noise",
     "codes are drawn with uniform noise, and their divergence is that of a normal distribution",
     "a code is mean + deviation * noise with noise evenly spread over an interval, while the loss holds the "
     "same mean and deviation to N(0, 1): decoders see codes that no sample of N(0, 1) looks like, all on "
     "one "
     "side of the mean where the interval begins at 0",
     "draw the noise by torch.randn_like(std)", "rand or rand_like in the place of randn or randn_like"},
    {"category_divergence_maximised", "the training makes the divergence of its categories large",
     "the loss holds -q * (log q - log p), summed, for the shares q from which a code is drawn by Gumbel's "
     "noise: minus the divergence from p",
     "add the divergence: + (q * (log q - log p)).sum(-1)", "a minus too many before the divergence"},
    {"means_compared", "PPO's clip compares two means, not the samples",
     "the loss takes the smaller of the mean of ratio * advantage and the mean of the clipped ratio * "
     "advantage: one of the two holds for all samples, so that no sample's ratio is limited by itself",
     "take the minimum first: -torch.min(ratio * advantage, clipped * advantage).mean()",
     "mean() inside of the minimum"},
    {"surrogate_upside_down", "PPO's clipped objective is upside down",
     "the loss subtracts the larger of ratio * advantage and clipped ratio * advantage, or adds the smaller: "
     "the bound then lies on the wrong side, and steps that should be limited are not",
     "subtract the smaller: loss = -torch.min(ratio * advantage, clipped * advantage).mean()",
     "max in the place of min, or a minus that is missing"},
    {"ratio_without_exp", "PPO's ratio is a difference or quotient of log-probabilities",
     "what is clipped to around 1 is log p - log q or log p / log q, which is no ratio of probabilities: the "
     "former lies around 0, so that the clip gives the same number for nearly all samples",
     "take the exponential: ratio = (log_prob - old_log_prob).exp()", "the exp() of the ratio is missing"},
    {"gain_clipped", "PPO's clip limits the advantage, not the ratio",
     "the limits around 1 are applied to the advantage, or to its product with the ratio",
     "clip the ratio alone: ratio.clamp(1 - eps, 1 + eps) * advantage",
     "a parenthesis, or the wrong argument of clamp()"},
    {"clip_without_gain", "PPO's clipped ratio is not multiplied by the advantage",
     "the minimum compares ratio * advantage with the clipped ratio itself",
     "multiply both by the advantage: torch.min(ratio * advantage, ratio.clamp(1 - eps, 1 + eps) * "
     "advantage)",
     "the advantage is missing in one operand"},
    {"clip_around_zero", "PPO's ratio is clipped to around 0, not around 1",
     "ratios of probabilities lie around 1: the limits -eps and eps give the same number for all samples",
     "clip to 1 - eps and 1 + eps", "the 1 of both limits is missing"},
    {"values_smaller", "the clipped loss of values takes the smaller of two errors",
     "the error of values that are kept near to the old ones is a bound only if the larger one counts: the "
     "smaller one lets values move at will",
     "take the maximum: torch.max(error, clipped_error).mean()", "min in the place of max"},
    {"signed_error", "one of the losses is the mean of signed errors",
     "neither a square nor an absolute value stands between outputs minus targets and their mean, and all "
     "parameters behind it belong to one optimizer: its gradient is the same whatever the targets are, and "
     "it "
     "falls without bound",
     "take the square or the absolute value of the errors before the mean: ((output - target) ** 2).mean()",
     "a missing square, or a missing abs()"},
    {"summed_and_spread", "a term of each sample is summed over the batch, and every sample gets the sum",
     "a value for each sample and one number, which is a sum over the same samples, are added and then "
     "averaged: the term weighs as many times as much as the batch has samples",
     "sum over the other axes only: .sum(-1), or leave a value that has one axis as it is",
     "sum() without an axis"},
    {"loss_cut_off", "the loss is cut off from above, and it lies above that limit",
     "what is beyond a limit of clamp() or minimum() is the limit itself, whatever the weights are: these "
     "backward passes gave no gradient at all, so that batches with a large loss teach nothing",
     "leave the loss as it is, and limit the gradients: torch.nn.utils.clip_grad_norm_(model.parameters(), "
     "1.0); or use a loss that grows more slowly, as smooth_l1_loss",
     "clamp(max=...) or minimum() of the loss, meant against outliers"},
    {"one_row_counts", "only the first or the last row of each batch counts",
     "the model's answers for all other rows are left out of the loss, and each answer is made of its own "
     "row "
     "only: what was computed of the others teaches nothing",
     "give the loss all rows of outputs and targets; in a loop over rows add the losses up, and divide the "
     "sum "
     "by their number",
     "an index that is left over, as loss[-1] or output[0], or a loop over rows that keeps its last loss"},
});

inline const FaultyPart* PartNamed(std::string_view name) noexcept {
  const auto* found =
      std::find_if(kParts.begin(), kParts.end(), [&](const FaultyPart& one) { return one.name == name; });
  return found == kParts.end() ? nullptr : found;
}

}  // namespace luff::rules::loss_formula
