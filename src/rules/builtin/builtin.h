#pragma once
#include "luff/rules/rule.h"

/// One function per built-in rule, each in a file of its own in a folder here: weights/dead_relu.cc has
/// DeadReluSpec(). The list is made from the names of the files (src/rules/CMakeLists.txt).
namespace luff::rules {

#define LUFF_RULE(Name) [[nodiscard]] RuleSpec Name##Spec();
#include "rules/builtin_rules.inc"
#undef LUFF_RULE

}  // namespace luff::rules
