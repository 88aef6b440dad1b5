#pragma once
#include <vector>

#include "cli/config_place.h"
#include "keys/public_key.h"

namespace luff::cli {

/// The keys of [control] in luff.toml. Errors: kInvalidArgument with file and line.
[[nodiscard]] Result<std::vector<keys::PublicKey>> ReadControl(const toml::table& table,
                                                               const ConfigPlace& place);

}  // namespace luff::cli
