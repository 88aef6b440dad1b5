#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "luff/format/layout.h"

/// Collections that need no expression from the user.
namespace luff::format {

/// Bit of a role in a set of roles.
[[nodiscard]] constexpr std::uint32_t RoleBit(Role role) { return 1U << static_cast<unsigned>(role); }

/// Tensors of these roles, and free tensors that the expression matches. The expressions are those that
/// smdebug published.
struct BuiltInCollection {
  std::string_view name;
  std::string_view include;  // "": no tensor by its name
  std::uint32_t roles;       // RoleBit; 0: no tensor by its role
};
inline constexpr std::array<BuiltInCollection, 17> kBuiltInCollections{{
    {"weights", "^(?!gradient).*weight", RoleBit(Role::kWeight)},
    {"biases", "^(?!gradient).*bias", RoleBit(Role::kBias)},
    {"gradients", "^gradient", RoleBit(Role::kGradient)},
    {"losses", "[Ll]oss_(?!input).*output", RoleBit(Role::kLoss)},
    {"all", ".*", 0},
    {"default", "", 0},
    {"buffers", "", RoleBit(Role::kBuffer)},
    {"inputs", "", RoleBit(Role::kInput)},
    {"outputs", "", RoleBit(Role::kOutput)},
    {"optimizer_state", "", RoleBit(Role::kOptimizerState)},
    {"labels", "", RoleBit(Role::kLabel)},
    {"metrics", "", RoleBit(Role::kScalar)},  // these three: smdebug's names for TensorFlow and Keras
    {"optimizer_variables", "", RoleBit(Role::kOptimizerState)},
    {"predictions", "", RoleBit(Role::kOutput)},
    {"output_gradients", "", RoleBit(Role::kOutputGradient)},
    {"input_gradients", "", RoleBit(Role::kInputGradient)},
    {"attention", "", RoleBit(Role::kAttention)},
}};
/// Tensors that an expression of a built-in collection may match, besides those of its roles: the output of a
/// module called "weight_norm" is no weight.
inline constexpr std::uint32_t kFreeRoles = RoleBit(Role::kOther) | RoleBit(Role::kCustom);

/// Tensors of these roles cost the training something more than a copy. They are recorded only where a
/// collection names the role or the tensor, not by expressions or types of modules alone.
inline constexpr std::uint32_t kOnRequestRoles =
    RoleBit(Role::kOutputGradient) | RoleBit(Role::kInputGradient) | RoleBit(Role::kAttention);

/// Null if there is none of that name.
[[nodiscard]] constexpr const BuiltInCollection* FindBuiltInCollection(std::string_view name) {
  for (const BuiltInCollection& one : kBuiltInCollections) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

}  // namespace luff::format
