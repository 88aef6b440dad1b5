#pragma once
#include <string>
#include <vector>

#include "cli/config_place.h"
#include "keys/public_key.h"

namespace luff::cli {

/// [control] in luff.toml.
struct ControlConfig {
  std::vector<keys::PublicKey> keys;
  std::string host_key;  // file with the key by which the hosts of a job know each other; "" if none
};
/// Errors: kInvalidArgument with file and line.
[[nodiscard]] Result<ControlConfig> ReadControl(const toml::table& table, const ConfigPlace& place);

}  // namespace luff::cli
