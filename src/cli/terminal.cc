#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/format.h"

namespace luff::cli {
namespace {

// Bytes of the UTF-8 sequence at `text`, 0 when it is none (or a C1 control character).
std::size_t SequenceLength(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  std::size_t length = 0;
  if (first >= 0xC2 && first <= 0xDF) length = 2;
  if (first >= 0xE0 && first <= 0xEF) length = 3;
  if (first >= 0xF0 && first <= 0xF4) length = 4;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return 0;
  }
  if (first == 0xC2 && byte(1) < 0xA0) return 0;
  if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90)) return 0;
  // Marks that change the direction of text can make a name look like another.
  if (first == 0xE2 &&
      ((byte(1) == 0x80 && byte(2) >= 0x8B && byte(2) <= 0xAE) || (byte(1) == 0x81 && byte(2) >= 0xA6)))
    return 0;
  return length;
}

}  // namespace

std::string Escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text.front());
    std::size_t length = first >= 0x20 && first < 0x7F ? 1 : 0;
    if (first >= 0x80) length = SequenceLength(text);
    if (length == 0) {
      out += fmt::format("\\x{:02x}", first);
      length = 1;
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return out;
}

void PrintError(const Status& status) {
  // A message that shows a place in a text has several lines; what they hold is escaped.
  std::string_view rest = status.message();
  for (const char* lead = "luff: "; !rest.empty(); lead = "") {
    const std::size_t end = rest.find('\n');
    fmt::print(stderr, "{}{}\n", lead, Escaped(rest.substr(0, end)));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
}

void PrintNote(const std::string& rule, const std::string& text) {
  fmt::print(stderr, "luff: rule {}: {}\n", Escaped(rule), Escaped(text));
}

bool StderrIsTerminal() { return isatty(STDERR_FILENO) != 0; }

bool StderrHasColour() {
  const char* none = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return StderrIsTerminal() && (none == nullptr || *none == 0) && term != nullptr &&
         std::string_view(term) != "dumb";
}

std::size_t TerminalWidth() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40) return size.ws_col;
  return 100;
}

std::string Wrapped(std::string_view text, std::size_t indent, std::size_t width, std::size_t used) {
  std::string out;
  std::size_t column = used > 0 ? used : indent;
  bool begun = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (!word.empty()) {
      if (column > indent && column + 1 + word.size() > width) {
        out += '\n' + std::string(indent, ' ');
        column = indent;
      } else if (begun) {
        out += ' ';
        ++column;
      }
      begun = true;
      out += word;
      column += word.size();
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace luff::cli
