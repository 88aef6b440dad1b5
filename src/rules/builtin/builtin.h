#pragma once
#include "luff/rules/rule.h"

/// One function per built-in rule, each in a file of its own; registry.cc lists them.
namespace luff::rules {

[[nodiscard]] RuleSpec DeadReluSpec();
[[nodiscard]] RuleSpec ExplodingTensorSpec();
[[nodiscard]] RuleSpec LossNotDecreasingSpec();
[[nodiscard]] RuleSpec UnchangedTensorSpec();
[[nodiscard]] RuleSpec VanishingGradientSpec();
[[nodiscard]] RuleSpec WeightUpdateRatioSpec();

}  // namespace luff::rules
