#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// SVG charts for HTML pages, which must not need any other file or library. `luff plot` draws text in a
/// terminal; for pictures (.png, .svg, .pdf) it starts matplotlib.
namespace luff::cli {

struct Curve {
  std::string name;                               // legend entry, not escaped yet; "": none
  std::vector<std::pair<double, double>> points;  // ascending in x; values that are not finite are marked
};
struct CurveChart {
  std::string title;        // not escaped yet
  std::string x_name = {};  // below the axis; may be ""
  std::vector<Curve> curves = {};
  std::optional<double> mark = {};  // position of a vertical line: where the trouble began
  bool square = false;              // as wide as high, both axes from 0 to 1
  bool diagonal = false;            // a line from corner to corner
  int width = 900, height = 240;
};
/// CSS for all charts; a page needs it once.
[[nodiscard]] std::string ChartStyle();
/// Draws curves with a legend; "" if no curve has two finite values.
[[nodiscard]] std::string CurvesSvg(const CurveChart& chart);
/// Draws horizontal bars one below the other, in the given order; "" if there are none.
[[nodiscard]] std::string BarsSvg(const std::string& title,
                                  const std::vector<std::pair<std::string, double>>& bars);
/// Columns side by side, over an axis from `low` to `high` or with one name each.
struct ColumnChart {
  std::string title;
  std::vector<double> heights;
  std::vector<std::string> names;  // of the columns; empty: a numeric axis
  double low = 0, high = 0;
};
[[nodiscard]] std::string ColumnsSvg(const ColumnChart& chart);

}  // namespace luff::cli
