#pragma once
#include <string>
#include <string_view>

#include "base/text_escape.h"
#include "luff/base/status.h"

/// Text on a terminal.
namespace luff::cli {

/// "luff: " and the message on stderr.
void PrintError(const Status& status);
/// What a rule says of itself, on standard error. Escaped.
void PrintNote(const std::string& rule, const std::string& text);
/// True when stderr is a terminal that shows colours (NO_COLOR and TERM=dumb count).
[[nodiscard]] bool StderrHasColour();
[[nodiscard]] bool StderrIsTerminal();
/// Breaks at blanks so that no line is longer than `width`; lines after the first begin with `indent` blanks.
/// `used`: columns of the first line that are taken; 0: as many as the indent.
[[nodiscard]] std::string Wrapped(std::string_view text, std::size_t indent, std::size_t width,
                                  std::size_t used = 0);
/// Columns of the terminal on stderr, 100 when there is none.
[[nodiscard]] std::size_t TerminalWidth();

}  // namespace luff::cli
