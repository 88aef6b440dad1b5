#pragma once
#include <cstdint>
#include <string>
#include <string_view>

/// Escapes untrusted text (names, texts of findings, paths) for output, with one function for each kind of
/// output.
///
/// Printable characters of valid UTF-8 are harmless. Control characters (C0, DEL, C1), marks that change the
/// direction of text or have no width, and line and paragraph separators are not.
namespace luff {

/// For a terminal, a log or plain text. Characters that are not harmless become \xNN, byte by byte.
[[nodiscard]] std::string Escaped(std::string_view text);
/// The same, but keeps line feeds.
[[nodiscard]] std::string EscapedLines(std::string_view text);
/// A field of a CSV file: as Escaped, with an apostrophe in front of what a spreadsheet would take for a
/// formula (= + - @), quoted where RFC 4180 requires it.
[[nodiscard]] std::string CsvField(std::string_view text);
/// For dumped JSON: characters that are not harmless become \uNNNN. A parser reads the same text.
[[nodiscard]] std::string JsonEscaped(std::string_view dumped);
/// For a format that holds any valid UTF-8: bytes of invalid sequences become \xNN, all others stay.
[[nodiscard]] std::string ValidUtf8(std::string_view text);
/// Appends a character by its number; nothing for a number that none has.
void AppendUtf8(std::uint32_t character, std::string* to);

}  // namespace luff
