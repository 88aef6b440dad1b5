#pragma once
#include <algorithm>
#include <array>
#include <string_view>

/// Numbers that are normalised alone, as the event `norm_of_one` names them: docs/rules/no_gradient.md.
namespace luff::rules::no_gradient {

struct OfOne {
  std::string_view of;
  const char* what;
  const char* remedy;
  const char* cause;
};

inline constexpr std::array kOfOne = std::to_array<OfOne>({
    {"", "a number is normalised alone, and the same comes out of it always",
     "normalise along the axis that has the numbers which belong together",
     "a normalisation along an axis of length 1"},
    {"best", "a softmax is taken over the one best score, and is always 1",
     "take the softmax over all scores, and then the best of them; do not normalise again with k = 1",
     "top-k with k = 1 before the softmax"},
    {"group", "a group normalisation has one value in each group, and gives its bias always",
     "use fewer groups than channels for vectors and maps of one place, or a layer normalisation",
     "as many groups as channels, with one place"},
    {"layer", "a layer normalisation has one feature, and gives its bias always",
     "normalise along the axis of the features: nn.LayerNorm(width) for a last axis of that width",
     "a last axis of length 1"},
    {"length", "a number is divided by its own length, and only its sign is left",
     "normalise along the axis of the numbers of one vector (dim=-1), which has more than one",
     "an axis of length 1 in normalize or norm"},
    {"mean", "a number is taken less its own mean, and is always 0",
     "take the mean along the axis of the numbers that belong together",
     "an axis of length 1 in mean, as of one action"},
    {"sum", "a number is divided by its own sum, and is always 1",
     "divide by the sum along the axis of the numbers that are to be weighed; with one best expert (k = 1) "
     "leave its weight as it is: norm_topk_prob=False",
     "weights of one chosen expert that are normalised again"},
});

inline const OfOne& HowAlone(std::string_view of) noexcept {
  const auto* found =
      std::find_if(kOfOne.begin(), kOfOne.end(), [&](const OfOne& one) { return one.of == of; });
  return found == kOfOne.end() ? kOfOne.front() : *found;
}

}  // namespace luff::rules::no_gradient
