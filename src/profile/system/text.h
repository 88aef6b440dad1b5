#pragma once
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

/// Walks through the text of a kernel file, which may be cut off or hostile. Every number that does not fit
/// is no number.
namespace luff::profile {

/// Splits off what lies before the next `separator`; the rest begins after it.
[[nodiscard]] inline std::string_view TakeUntil(std::string_view* rest, char separator) noexcept {
  const std::size_t at = rest->find(separator);
  const std::string_view part = rest->substr(0, at);
  *rest = at == std::string_view::npos ? std::string_view() : rest->substr(at + 1);
  return part;
}
[[nodiscard]] inline std::string_view TakeLine(std::string_view* rest) noexcept {
  return TakeUntil(rest, '\n');
}
/// The next word; "" at the end.
[[nodiscard]] inline std::string_view TakeWord(std::string_view* rest) noexcept {
  // By hand, since the library's search calls memchr() for each character.
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  std::size_t from = 0;
  while (from < rest->size() && blank((*rest)[from])) ++from;
  std::size_t to = from;
  while (to < rest->size() && !blank((*rest)[to])) ++to;
  const std::string_view word = rest->substr(from, to - from);
  *rest = rest->substr(to);
  return word;
}
/// A whole number from 0 to 2^60, the largest that samples hold.
[[nodiscard]] inline std::optional<std::int64_t> NumberOf(std::string_view word) noexcept {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const bool whole = error == std::errc() && end == word.data() + word.size();
  if (!whole || value < 0 || value > std::int64_t{1} << 60U) return std::nullopt;
  return value;
}
[[nodiscard]] inline std::optional<std::int64_t> TakeNumber(std::string_view* rest) noexcept {
  return NumberOf(TakeWord(rest));
}
/// The product, or nothing if it is beyond what samples hold.
[[nodiscard]] inline std::optional<std::int64_t> Scaled(std::optional<std::int64_t> value,
                                                        std::int64_t factor) noexcept {
  if (!value || *value > (std::int64_t{1} << 60U) / factor) return std::nullopt;
  return *value * factor;
}

}  // namespace luff::profile
