#pragma once
#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

namespace luff {

/// A whole number that fits `T`. nlohmann::json casts whatever number it has, which is undefined for a real
/// one that does not fit. Throws std::invalid_argument otherwise.
template <std::integral T>
[[nodiscard]] T WholeNumber(const nlohmann::json& json) {
  if (json.is_number_unsigned()) {
    if (const auto number = json.get<std::uint64_t>(); std::in_range<T>(number))
      return static_cast<T>(number);
  } else if (json.is_number_integer()) {
    if (const auto number = json.get<std::int64_t>(); std::in_range<T>(number)) return static_cast<T>(number);
  }
  throw std::invalid_argument(std::string("found a ") + json.type_name() +
                              ", expected a whole number that fits");
}

/// The same of a member of an object; `otherwise` where there is none.
/// Throws std::invalid_argument, with the key.
template <std::integral T>
[[nodiscard]] T WholeNumber(const nlohmann::json& object, const char* key, T otherwise) {
  const auto at = object.find(key);
  if (at == object.end()) return otherwise;
  try {
    return WholeNumber<T>(*at);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string(key) + ": " + error.what());
  }
}

}  // namespace luff
