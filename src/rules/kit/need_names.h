#pragma once
#include <algorithm>
#include <array>
#include <string>

#include "luff/format/names.h"

/// Names of forms, roles and axes in the capture configuration (docs/capture.md).
namespace luff::rules {

using format::kFormNames;
using format::kRoleNames;

// Plural names of roles, for messages.
inline constexpr std::array<const char*, 18> kRolePlurals = {"others",
                                                             "weights",
                                                             "biases",
                                                             "gradients",
                                                             "buffers",
                                                             "inputs",
                                                             "outputs",
                                                             "losses",
                                                             "loss inputs",
                                                             "optimizer state",
                                                             "optimizer settings",
                                                             "scalars",
                                                             "custom tensors",
                                                             "labels",
                                                             "samples",
                                                             "output gradients",
                                                             "input gradients",
                                                             "attention weights"};
inline constexpr std::array<const char*, 3> kAxisNames = {"channel", "last", "all_but_first"};

/// Name of a role for messages, e.g. "loss input"; "other" for a role of a newer version.
[[nodiscard]] inline std::string RoleText(format::Role role) {
  const auto number = static_cast<std::size_t>(role);
  std::string text = kRoleNames[number < kRoleNames.size() ? number : 0];
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

}  // namespace luff::rules
