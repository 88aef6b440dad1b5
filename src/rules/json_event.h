#pragma once
#include <cmath>
#include <cstddef>
#include <optional>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace luff::rules {

/// A JSON event (docs/spec/evidence.md) of a kind; nothing if it is of another kind or malformed. Never
/// throws.
[[nodiscard]] inline std::optional<nlohmann::json> EventOfKindUntrusted(std::string_view text,
                                                                        std::string_view kind) {
  constexpr std::size_t kMaxBytes = 1 << 16;
  if (text.size() > kMaxBytes || text.find(kind) == std::string_view::npos) return std::nullopt;
  nlohmann::json json = TryParseJson(text);
  if (!json.is_object()) return std::nullopt;
  const auto at = json.find("kind");
  if (at == json.end() || !at->is_string() || at->get_ref<const nlohmann::json::string_t&>() != kind)
    return std::nullopt;
  return json;
}

/// A finite number among the members of an object; NaN if there is none.
[[nodiscard]] inline double NumberIn(const nlohmann::json& object, const char* key) noexcept {
  if (!object.is_object()) return NAN;
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number()) return NAN;
  const double value = at->get<double>();
  return std::isfinite(value) ? value : NAN;
}

/// True only if the member is there and true.
[[nodiscard]] inline bool FlagIn(const nlohmann::json& object, const char* key) noexcept {
  if (!object.is_object()) return false;
  const auto at = object.find(key);
  return at != object.end() && at->is_boolean() && at->get<bool>();
}

/// A list among the members; an empty one if there is none.
[[nodiscard]] inline const nlohmann::json& ListIn(const nlohmann::json& object, const char* key) {
  static const nlohmann::json kNone = nlohmann::json::array();
  if (!object.is_object()) return kNone;
  const auto at = object.find(key);
  return at == object.end() || !at->is_array() ? kNone : *at;
}

}  // namespace luff::rules
