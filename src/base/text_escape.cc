#include "base/text_escape.h"

#include <cstddef>

#include "base/format.h"

namespace luff {
namespace {

struct Character {
  char32_t code = 0;
  std::size_t bytes = 0;  // 0: not valid UTF-8
};

Character First(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1};
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return {};
  char32_t code = first & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3FU);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return {};
  return {code, length};
}

bool Harmless(char32_t code) {
  if (code < 0x20 || (code >= 0x7F && code < 0xA0)) return false;
  if (code == 0xAD || code == 0x61C || code == 0xFEFF) return false;
  if ((code >= 0x200B && code <= 0x200F) || (code >= 0x2028 && code <= 0x202E)) return false;
  if (code >= 0x2060 && code <= 0x206F) return false;
  return code < 0xE0000 || code > 0xE007F;  // tags: invisible letters
}

/// Replaces invalid bytes, and the bytes of characters that `keep` rejects, by \xNN.
template <typename Keep>
std::string Replaced(std::string_view text, Keep keep) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character character = First(text);
    if (character.bytes > 0 && keep(character.code)) {
      out += text.substr(0, character.bytes);
    } else {
      const std::size_t bytes = character.bytes > 0 ? character.bytes : 1;
      for (std::size_t i = 0; i < bytes; ++i)
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
    }
    text.remove_prefix(character.bytes > 0 ? character.bytes : 1);
  }
  return out;
}

}  // namespace

std::string Escaped(std::string_view text) { return Replaced(text, Harmless); }

std::string EscapedLines(std::string_view text) {
  return Replaced(text, [](char32_t code) { return code == '\n' || Harmless(code); });
}

std::string ValidUtf8(std::string_view text) {
  return Replaced(text, [](char32_t) { return true; });
}

std::string CsvField(std::string_view text) {
  std::string field = Escaped(text);
  // Spreadsheets skip blanks before a formula.
  const std::size_t begin = field.find_first_not_of(' ');
  if (begin != std::string::npos && std::string_view("=+-@").find(field[begin]) != std::string_view::npos)
    field.insert(0, 1, '\'');
  if (field.find_first_of(",\"") == std::string::npos) return field;
  std::string quoted = "\"";
  for (const char c : field) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

std::string JsonEscaped(std::string_view dumped) {
  std::string out;
  out.reserve(dumped.size());
  while (!dumped.empty()) {
    const Character character = First(dumped);
    const std::size_t bytes = character.bytes > 0 ? character.bytes : 1;
    if (character.bytes == 0) {
      out += "\\ufffd";
    } else if (Harmless(character.code) ||
               character.code == '\n') {  // an indented dump has these between values
      out += dumped.substr(0, bytes);
    } else if (character.code > 0xFFFF) {
      const char32_t rest = character.code - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", static_cast<unsigned>(0xD800 + (rest >> 10)),
                         static_cast<unsigned>(0xDC00 + (rest & 0x3FF)));
    } else {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(character.code));
    }
    dumped.remove_prefix(bytes);
  }
  return out;
}

void AppendUtf8(std::uint32_t c, std::string* to) {
  const auto put = [&](std::uint32_t byte) { *to += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x110000) {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

}  // namespace luff
