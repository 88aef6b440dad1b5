#pragma once
#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

namespace luff {

/// Returns a whole number that fits `T`, or throws std::invalid_argument. nlohmann::json would cast any
/// number, which is undefined for a real one that does not fit.
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

/// The same for a member of an object; `otherwise` if there is none. Throws std::invalid_argument, with the
/// key.
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
