#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// Small charts as SVG, for a page that needs nothing else.
namespace luff::cli {

using Points = std::vector<std::pair<std::int64_t, double>>;  // (step, value), ascending

struct Chart {
  std::string title;                 // not escaped yet
  Points points;                     // values that are not finite are left out and marked
  std::optional<std::int64_t> mark;  // a step that is drawn as a line: where the trouble began
  int width = 520, height = 120;
};

/// An <svg> element; "" when there are fewer than two finite values.
[[nodiscard]] std::string ToSvg(const Chart& chart);
/// At most `most` points: the first, the last, and of equal stretches between them the smallest and the
/// largest.
[[nodiscard]] Points Thinned(const Points& points, std::size_t most);

}  // namespace luff::cli
