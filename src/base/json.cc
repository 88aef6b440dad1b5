#include "base/json.h"

#include <algorithm>
#include <stdexcept>

#include <nlohmann/json.hpp>

namespace luff {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

/// Position after the string that begins before `at`; the end of the text if it is not terminated.
std::size_t BehindString(std::string_view text, std::size_t at) noexcept {
  for (;;) {
    at = text.find_first_of("\"\\", at);
    if (at == std::string_view::npos) return text.size();
    if (text[at] == '"') return at + 1;
    at += 2;
    if (at >= text.size()) return text.size();
  }
}

template <typename T>
T Parse(std::string_view text, JsonLimits limits) {
  if (const std::string beyond = BeyondJsonLimits(text, limits); !beyond.empty())
    throw std::invalid_argument(beyond);
  return T::parse(text);
}

template <typename T>
T TryParse(std::string_view text, JsonLimits limits) {
  if (!BeyondJsonLimits(text, limits).empty()) return T(T::value_t::discarded);
  return T::parse(text, nullptr, false);
}

template <typename T>
std::string Member(const T& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->template get<std::string>() : std::string();
}

template <typename T>
std::int64_t Whole(const T& object, const char* key, std::int64_t otherwise) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number_integer() ? at->template get<std::int64_t>() : otherwise;
}

template <typename T>
std::string Text(const T& json, int indent, bool ascii) {
  return json.dump(indent, ' ', ascii, T::error_handler_t::replace);
}

}  // namespace

std::string BeyondJsonLimits(std::string_view text, JsonLimits limits) {
  if (text.size() > limits.bytes) {
    return "found " + std::to_string(text.size()) + " bytes of JSON, expected at most " +
           std::to_string(limits.bytes);
  }
  std::size_t depth = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at++];
    if (c == '"') {
      at = BehindString(text, at);
    } else if (c == '[' || c == '{') {
      if (++depth > limits.depth) {
        return "found lists and objects more than " + std::to_string(limits.depth) +
               " deep in one another at byte " + std::to_string(at - 1);
      }
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;  // the parser rejects a surplus one
    }
  }
  return {};
}

Json ParseJson(std::string_view text, JsonLimits limits) { return Parse<Json>(text, limits); }
Json TryParseJson(std::string_view text, JsonLimits limits) { return TryParse<Json>(text, limits); }
OrderedJson ParseOrderedJson(std::string_view text, JsonLimits limits) {
  return Parse<OrderedJson>(text, limits);
}
OrderedJson TryParseOrderedJson(std::string_view text, JsonLimits limits) {
  return TryParse<OrderedJson>(text, limits);
}

std::string TextMember(const Json& object, const char* key) { return Member(object, key); }
std::string TextMember(const OrderedJson& object, const char* key) { return Member(object, key); }

std::int64_t WholeMember(const Json& object, const char* key, std::int64_t otherwise) {
  return Whole(object, key, otherwise);
}
std::int64_t WholeMember(const OrderedJson& object, const char* key, std::int64_t otherwise) {
  return Whole(object, key, otherwise);
}
bool FlagMember(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_boolean() && at->get<bool>();
}

std::string JsonText(const Json& json, int indent) { return Text(json, indent, false); }
std::string JsonText(const OrderedJson& json, int indent) { return Text(json, indent, false); }
std::string AsciiJsonText(const Json& json) { return Text(json, -1, true); }
std::string AsciiJsonText(const OrderedJson& json) { return Text(json, -1, true); }

}  // namespace luff
