#pragma once
#include <cmath>

namespace luff {

/// JSON has no numbers for NaN and infinities: they become the texts "NaN", "Infinity" and "-Infinity", at
/// any depth. `Json`: either kind of nlohmann's.
template <typename Json>
void NameNonFinite(Json* json) {
  if (json->is_structured()) {
    for (Json& item : *json) NameNonFinite(&item);
  } else if (json->is_number_float()) {
    const auto number = json->template get<double>();
    if (std::isnan(number))
      *json = "NaN";
    else if (std::isinf(number))
      *json = number > 0 ? "Infinity" : "-Infinity";
  }
}

}  // namespace luff
