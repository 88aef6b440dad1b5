#pragma once
#include <algorithm>
#include <array>
#include <string>

#include "luff/format/names.h"

/// The words of the capture configuration for forms, roles and axes (docs/capture.md).
namespace luff::rules {

using format::kFormNames;
using format::kRoleNames;

// Several tensors of a role, for people.
inline constexpr std::array<const char*, 15> kRolePlurals = {
    "others", "weights",     "biases",          "gradients",          "buffers", "inputs",         "outputs",
    "losses", "loss inputs", "optimizer state", "optimizer settings", "scalars", "custom tensors", "labels",
    "samples"};
inline constexpr std::array<const char*, 3> kAxisNames = {"channel", "last", "all_but_first"};

/// The word of a role, for people: "loss input". A role of a newer version is "other".
[[nodiscard]] inline std::string RoleText(format::Role role) {
  const auto number = static_cast<std::size_t>(role);
  std::string text = kRoleNames[number < kRoleNames.size() ? number : 0];
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

}  // namespace luff::rules
