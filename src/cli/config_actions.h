#pragma once
#include <vector>

#include "cli/config_place.h"
#include "luff/actions/policy.h"

namespace luff::cli {

/// The [[action]] entries of luff.toml. Errors: kInvalidArgument, kNotFound (a rule) with file and line.
[[nodiscard]] Result<std::vector<actions::ActionSpec>> ReadActions(const toml::node& node,
                                                                   const ConfigPlace& place);

}  // namespace luff::cli
