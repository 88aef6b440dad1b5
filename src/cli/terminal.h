#pragma once
#include <string>
#include <string_view>

#include "base/text_escape.h"
#include "luff/base/status.h"

/// Output to a terminal.
namespace luff::cli {

/// Prints "luff: " and the message to stderr.
void PrintError(const Status& status);
/// Prints a rule's note about itself to stderr, escaped.
void PrintNote(const std::string& rule, const std::string& text);
/// True if stderr is a terminal that shows colours (respects NO_COLOR and TERM=dumb).
[[nodiscard]] bool StderrHasColour();
[[nodiscard]] bool StderrIsTerminal();
/// Breaks lines at blanks so that none is longer than `width`; lines after the first begin with `indent`
/// blanks. `used`: columns already used in the first line; 0: as many as the indent.
[[nodiscard]] std::string Wrapped(std::string_view text, std::size_t indent, std::size_t width,
                                  std::size_t used = 0);
/// Columns that a line may have which is written over again: one less than the terminal's, whatever that is.
[[nodiscard]] std::size_t StatusWidth();
/// Columns of the terminal on stderr; 100 if there is none.
[[nodiscard]] std::size_t TerminalWidth();

}  // namespace luff::cli
