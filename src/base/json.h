#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

/// All JSON goes through these functions. The library's parser, writer and copies recurse or take many times
/// the memory of the text, so bytes and depth are bounded before the library sees the text. They are compiled
/// once, because they would dominate the compile time of small files. tools/check_layers.py keeps other files
/// from calling the library's own.
namespace luff {

struct JsonLimits {
  std::uint64_t bytes = 64ULL << 20;
  std::size_t depth = 64;  // of nested lists and objects
};

/// Describes how `text` exceeds `limits`; empty if it does not. Reads each byte once, never recurses.
[[nodiscard]] std::string BeyondJsonLimits(std::string_view text, JsonLimits limits = {});

/// Throws std::invalid_argument beyond the limits, and nlohmann::json::exception if `text` is not JSON.
[[nodiscard]] nlohmann::json ParseJson(std::string_view text, JsonLimits limits = {});

/// Returns a discarded value (nlohmann::json::is_discarded) if `text` is not JSON or exceeds the limits; does
/// not throw for that.
[[nodiscard]] nlohmann::json TryParseJson(std::string_view text, JsonLimits limits = {});

/// The same two functions, keeping members in the order of the text.
[[nodiscard]] nlohmann::ordered_json ParseOrderedJson(std::string_view text, JsonLimits limits = {});
[[nodiscard]] nlohmann::ordered_json TryParseOrderedJson(std::string_view text, JsonLimits limits = {});

/// A member that is a text; "" if the object has none of that name, or it is something else.
[[nodiscard]] std::string TextMember(const nlohmann::json& object, const char* key);
[[nodiscard]] std::string TextMember(const nlohmann::ordered_json& object, const char* key);

/// A member that is a whole number, or is true; `otherwise`, or false, if the object has none of that name,
/// or it is something else.
[[nodiscard]] std::int64_t WholeMember(const nlohmann::json& object, const char* key, std::int64_t otherwise);
[[nodiscard]] std::int64_t WholeMember(const nlohmann::ordered_json& object, const char* key,
                                       std::int64_t otherwise);
[[nodiscard]] bool FlagMember(const nlohmann::json& object, const char* key);

/// Writes one line, or indents each level by `indent` blanks. Replaces bytes that are not UTF-8.
[[nodiscard]] std::string JsonText(const nlohmann::json& json, int indent = -1);
[[nodiscard]] std::string JsonText(const nlohmann::ordered_json& json, int indent = -1);

/// Writes one line of ASCII; everything else is escaped.
[[nodiscard]] std::string AsciiJsonText(const nlohmann::json& json);
[[nodiscard]] std::string AsciiJsonText(const nlohmann::ordered_json& json);

}  // namespace luff
