#include <cctype>
#include <charconv>
#include <cmath>

#include "base/format.h"
#include "luff/rules/rule.h"

namespace luff::rules {
namespace {

std::string_view Trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return text;
}

}  // namespace

Result<bool> ParseBool(std::string_view text) {
  const std::string_view trimmed = Trim(text);
  if (trimmed == "True" || trimmed == "true" || trimmed == "1") return true;
  if (trimmed == "False" || trimmed == "false" || trimmed == "0") return false;
  return InvalidArgument(fmt::format("'{}' is no truth value; write true or false", text));
}

Result<double> ParseDouble(std::string_view text) {
  std::string_view trimmed = Trim(text);
  if (trimmed.starts_with('+')) trimmed.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), value);
  if (trimmed.empty() || error != std::errc() || end != trimmed.data() + trimmed.size() ||
      std::isnan(value)) {
    return InvalidArgument(fmt::format("'{}' is no number", text));
  }
  return value;
}

Result<std::int64_t> ParseInt(std::string_view text) {
  std::string_view trimmed = Trim(text);
  if (trimmed.starts_with('+')) trimmed.remove_prefix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), value);
  if (trimmed.empty() || error != std::errc() || end != trimmed.data() + trimmed.size()) {
    return InvalidArgument(fmt::format("'{}' is no whole number", text));
  }
  return value;
}

std::vector<std::string> ParseList(std::string_view text) {
  std::vector<std::string> items;
  if (Trim(text).empty() || Trim(text) == "None") return items;
  while (true) {
    const std::size_t cut = text.find_first_of(",;");
    const std::string_view item = Trim(text.substr(0, cut));
    if (!item.empty()) items.emplace_back(item);
    if (cut == std::string_view::npos) return items;
    text.remove_prefix(cut + 1);
  }
}

}  // namespace luff::rules
