#pragma once
#include <string>
#include <string_view>

/// Text of strangers on its way out: names, texts of findings, paths. Each place it goes to has one function
/// here.
///
/// Harmless are printable characters of valid UTF-8. Control characters (C0, DEL, C1), marks that change the
/// direction of text or have no width, line and paragraph separators are not.
namespace luff {

/// For a terminal, a log, plain text: what is not harmless becomes \xNN, byte by byte.
[[nodiscard]] std::string Escaped(std::string_view text);
/// The same, but line feeds stay.
[[nodiscard]] std::string EscapedLines(std::string_view text);
/// For HTML: as Escaped, and & < > " ' as entities.
[[nodiscard]] std::string HtmlEscaped(std::string_view text);
/// A field of a CSV file: as Escaped, with an apostrophe in front of what a spreadsheet would take for a
/// formula
/// (= + - @), quoted where RFC 4180 asks for it.
[[nodiscard]] std::string CsvField(std::string_view text);
/// Dumped JSON, whose text stays the same to a parser: characters that are not harmless become \uNNNN.
[[nodiscard]] std::string JsonEscaped(std::string_view dumped);
/// For a format that holds any valid UTF-8: bytes of invalid sequences become \xNN, all else stays.
[[nodiscard]] std::string ValidUtf8(std::string_view text);

}  // namespace luff
