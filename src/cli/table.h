#pragma once
#include <cstddef>
#include <string>
#include <vector>

/// Tables on a terminal.
namespace luff::cli {

/// A text of a cell, cut to a width that lets several stand side by side.
[[nodiscard]] std::string Cell(std::string text);
/// Prints rows with columns as wide as they need to be; the first row is the header.
void PrintRows(const std::vector<std::vector<std::string>>& rows);

}  // namespace luff::cli
