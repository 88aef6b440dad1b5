#pragma once
#include <cstddef>
#include <string_view>

namespace luff {

inline constexpr std::size_t kHexIdDigits = 32;

/// Whether `text` is an id as runs and signed requests have it: 32 hexadecimal digits, in lower case.
[[nodiscard]] inline bool IsHexId(std::string_view text) noexcept {
  return text.size() == kHexIdDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace luff
