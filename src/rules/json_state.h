#pragma once
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "luff/base/status.h"

namespace luff::rules {

/// Reads a saved state with `load(json)`, which may throw or, where it does not return void, give an error.
/// Errors: kCorruption, with `what` and the words of what was thrown.
template <typename Load>
[[nodiscard]] Status LoadJson(std::string_view text, Load load, const char* what = "") {
  try {
    const nlohmann::json json = ParseJson(text);
    if constexpr (std::is_void_v<decltype(load(json))>) {
      load(json);
    } else {
      return load(json);
    }
  } catch (const std::exception& error) {
    return Corruption(std::string(what) + error.what());
  }
  return Status::Ok();
}

}  // namespace luff::rules
