#pragma once
#include <string>
#include <string_view>

namespace luff::capture {

/// JSON text of a string.
inline std::string JsonQuoted(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (u < 0x20 || u == 0x7F) {
      out += "\\u00";
      out += kHex[u >> 4U];
      out += kHex[u & 15U];
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace luff::capture
