#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/format.h"

namespace luff::cli {

void PrintError(const Status& status) {
  // A message that shows a place in a text has several lines; each is escaped on its own.
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

std::size_t StatusWidth() {
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col - 1U : 79;
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
