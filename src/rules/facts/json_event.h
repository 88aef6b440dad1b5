#pragma once
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace luff::rules {

/// The finite number in member `key`; NaN if there is none.
[[nodiscard]] inline double NumberIn(const nlohmann::json& object, const char* key) noexcept {
  if (!object.is_object()) return NAN;
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number()) return NAN;
  const double value = at->get<double>();
  return std::isfinite(value) ? value : NAN;
}

/// True only if member `key` exists and is true.
[[nodiscard]] inline bool FlagIn(const nlohmann::json& object, const char* key) noexcept {
  if (!object.is_object()) return false;
  const auto at = object.find(key);
  return at != object.end() && at->is_boolean() && at->get<bool>();
}

/// The list in member `key`; an empty one if there is none.
[[nodiscard]] inline const nlohmann::json& ListIn(const nlohmann::json& object, const char* key) {
  static const nlohmann::json kNone = nlohmann::json::array();
  if (!object.is_object()) return kNone;
  const auto at = object.find(key);
  return at == object.end() || !at->is_array() ? kNone : *at;
}

/// The strings in the list of member `key`, the first `most`, without those of 512 bytes and more.
[[nodiscard]] inline std::vector<std::string> StringsIn(const nlohmann::json& object, const char* key,
                                                        std::size_t most) {
  constexpr std::size_t kLongest = 512;
  std::vector<std::string> found;
  for (const auto& one : ListIn(object, key))
    if (one.is_string() && found.size() < most && one.get_ref<const std::string&>().size() < kLongest)
      found.push_back(one.get<std::string>());
  return found;
}

}  // namespace luff::rules
