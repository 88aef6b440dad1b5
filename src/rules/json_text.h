#pragma once
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace luff::rules {

// Compiled once: the parser and the writer of nlohmann::json are most of what a small file would compile.

/// One line; bytes that are no UTF-8 are replaced.
[[nodiscard]] std::string JsonText(const nlohmann::json& json);

/// Throws nlohmann::json::parse_error.
[[nodiscard]] nlohmann::json ParseJson(std::string_view text);

/// Discarded (nlohmann::json::is_discarded) where `text` is no JSON. Never throws for that.
[[nodiscard]] nlohmann::json TryParseJson(std::string_view text);

}  // namespace luff::rules
