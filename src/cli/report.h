#pragma once
#include <string>

#include "luff/rules/finding.h"

/// Findings as text for people.
namespace luff::cli {

/// Several lines, ending with a line break: what, which tensor, since when, why, what to do. Escaped.
[[nodiscard]] std::string FindingText(const rules::Finding& finding, bool colour, std::size_t width);
/// "1 finding", "2 findings".
[[nodiscard]] std::string Plural(std::uint64_t count, const char* one, const char* many);

}  // namespace luff::cli
