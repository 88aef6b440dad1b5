#include "cli/table.h"

#include <algorithm>

#include "base/format.h"

namespace luff::cli {

std::string Cell(std::string text) {
  constexpr std::size_t kWidest = 36;  // characters
  if (text.size() > kWidest) text = text.substr(0, kWidest - 3) + "...";
  return text;
}

void PrintRows(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line = " ";
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format(" {:<{}}", row[i], widths[i] + 1);
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
  }
}

}  // namespace luff::cli
