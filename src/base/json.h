#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

/// The one door for JSON. The library's parser, writer and copies recurse or take many times the memory of
/// the text, so that bytes and depth are bounded before it sees any. Compiled once, for they are most of what
/// a small file would compile; tools/check_layers.py keeps the library's own out of all other files.
namespace luff {

struct JsonLimits {
  std::uint64_t bytes = 64ULL << 20;
  std::size_t depth = 64;  // lists and objects in one another
};

/// How `text` goes beyond `limits`, in words; empty if it does not. Reads each byte once, never recurses.
[[nodiscard]] std::string BeyondJsonLimits(std::string_view text, JsonLimits limits = {});

/// Throws std::invalid_argument beyond the limits and nlohmann::json::exception for what is no JSON.
[[nodiscard]] nlohmann::json ParseJson(std::string_view text, JsonLimits limits = {});

/// Discarded (nlohmann::json::is_discarded) where `text` is no JSON or beyond the limits. Never throws for
/// that.
[[nodiscard]] nlohmann::json TryParseJson(std::string_view text, JsonLimits limits = {});

/// The same two with members in the order of the text.
[[nodiscard]] nlohmann::ordered_json ParseOrderedJson(std::string_view text, JsonLimits limits = {});
[[nodiscard]] nlohmann::ordered_json TryParseOrderedJson(std::string_view text, JsonLimits limits = {});

/// One line, or with `indent` blanks for each level; bytes that are no UTF-8 are replaced.
[[nodiscard]] std::string JsonText(const nlohmann::json& json, int indent = -1);
[[nodiscard]] std::string JsonText(const nlohmann::ordered_json& json, int indent = -1);

/// One line of ASCII: everything else is escaped.
[[nodiscard]] std::string AsciiJsonText(const nlohmann::json& json);
[[nodiscard]] std::string AsciiJsonText(const nlohmann::ordered_json& json);

}  // namespace luff
