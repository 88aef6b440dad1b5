#pragma once
#include <nlohmann/json.hpp>

namespace luff::cli {

/// What the command reads and prints keeps the order of its members.
using Json = nlohmann::ordered_json;

}  // namespace luff::cli
