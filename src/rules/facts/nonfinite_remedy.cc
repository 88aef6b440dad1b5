#include "rules/facts/nonfinite_remedy.h"

#include <algorithm>
#include <array>

namespace luff::rules {
namespace {

struct Known {
  std::vector<std::string_view> words;  // one of them is in the reason
  NonFiniteRemedy remedy;
};

// The first whose words are in the reason.
const std::vector<Known>& All() {
  static const std::vector<Known> kAll = {
      {{"everything is masked"},
       {{"a mask the wrong way round", "a row of nothing but padding, or an empty sequence"},
        "turn the mask over if it hides what is to be seen (masked_fill and key_padding_mask hide where it "
        "is "
        "true), and leave each row one place that is not masked"}},
      {{"a gradient of zero is multiplied by it"},
       {{"a branch of torch.where that is not taken, or values under a mask: they are computed all the same, "
         "and zero times infinity is NaN"},
        "keep such values out before the operation, not behind it: torch.where(ok, x, 1) inside of it, or "
        "x[ok], and only then what the mask leaves"}},
      {{"square root at zero", "power at zero", "norm of zero", "length of the point zero",
        "square root of zero"},
       {{"values that are exactly zero, or exactly alike: their root has an infinite slope there (a square "
         "root, a norm, a distance, a power below one)"},
        "add a small number inside the root ((d ** 2).sum() + 1e-8), or clamp(min=1e-8) before it"}},
      {{"angle of the point zero"},
       {{"a vector that is exactly zero has no direction"},
        "leave such vectors out, or move them away from zero before the angle is taken"}},
      {{"arc cosine", "arc sine", "inverse hyperbolic", "inverse error", "logit at"},
       {{"an argument at or beyond the end of the domain, as of two vectors that are parallel"},
        "keep the argument inside: x.clamp(-1 + 1e-6, 1 - 1e-6), or eps=1e-6 for a logit"}},
      {{"logarithm of zero", "logarithm at zero"},
       {{"a probability that has underflowed to exactly zero: softmax or sigmoid before a logarithm",
         "a count, a distance or a variance that is zero"},
        "take the logarithm and what is before it in one (log_softmax, logsigmoid, a loss with logits); else "
        "log(x.clamp(min=1e-8))"}},
      {{"logarithm of a negative"},
       {{"an argument that is no probability or no positive amount"},
        "make the argument positive (softplus, exp, clamp(min=1e-8)) before the logarithm"}},
      {{"square root of a negative", "to the power of a fraction"},
       {{"a difference that is negative by rounding, or by what the model gives"},
        "clamp(min=0), plus a small number, before the root; take abs() if the sign does not matter"}},
      {{"division by zero"},
       {{"a sum, count, norm or deviation that is zero: a mask that leaves nothing, values that are all "
         "alike"},
        "keep the divisor away from zero (count.clamp(min=1), norm.clamp(min=1e-8), "
        "torch.nn.functional.normalize), or leave such batches out"}},
      {{"mean of no element", "mean over no label"},
       {{"a mask, a filter or ignored labels that leave nothing of a batch"},
        "leave the term out where nothing is left, or divide the sum by count.clamp(min=1)"}},
      {{"standard deviation of one"},
       {{"a batch or a group of one: its deviation divides by zero"},
        "drop_last=True in the loader, or correction=0 (unbiased=False) and a small number beside it"}},
      {{"equal numbers"},
       {{"values that are all alike"}, "add a small number to the variance before its root"}},
      {{"singular vectors of values that are equal"},
       {{"singular values or eigenvalues that are equal"},
        "use the values only, or add a small random matrix before the decomposition"}},
      {{"exponential overflows", "exponential that overflows"},
       {{"an argument of an exponential above 88 (in float32; 11 in float16)"},
        "subtract the maximum first (softmax, logsumexp), or bound the argument (clamp)",
        false}},
  };
  return kAll;
}

}  // namespace

const NonFiniteRemedy* RemedyOf(std::string_view reason) {
  for (const Known& one : All()) {
    const bool said = std::ranges::any_of(
        one.words, [&](std::string_view word) { return reason.find(word) != std::string_view::npos; });
    if (said) return &one.remedy;
  }
  return nullptr;
}

}  // namespace luff::rules
