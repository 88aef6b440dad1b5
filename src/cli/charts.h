#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// SVG charts: the only ones that pages have, since a page must not need any other file or library. `luff
/// plot` draws text in a terminal; for pictures (.png, .svg, .pdf) it starts matplotlib.
namespace luff::cli {

struct Curve {
  std::string name;                               // in the legend; not escaped yet; "": no entry
  std::vector<std::pair<double, double>> points;  // ascending in x; values that are not finite are marked
};
struct CurveChart {
  std::string title;        // not escaped yet
  std::string x_name = {};  // below the axis; may be ""
  std::vector<Curve> curves = {};
  std::optional<double> mark = {};  // a place on the x axis that is drawn as a line: where the trouble began
  bool square = false;              // as wide as high, both axes from 0 to 1
  bool diagonal = false;            // a line from corner to corner
  int width = 900, height = 240;
};
/// Style of all charts, once on a page.
[[nodiscard]] std::string ChartStyle();
/// Curves with a legend; "" without a curve of two finite values.
[[nodiscard]] std::string CurvesSvg(const CurveChart& chart);
/// One bar below the other, the longest first as given; "" without any.
[[nodiscard]] std::string BarsSvg(const std::string& title,
                                  const std::vector<std::pair<std::string, double>>& bars);
/// Columns side by side over an axis from `low` to `high`, or with names of their own.
struct ColumnChart {
  std::string title;
  std::vector<double> heights;
  std::vector<std::string> names;  // of the columns; empty: the axis is one of numbers
  double low = 0, high = 0;
};
[[nodiscard]] std::string ColumnsSvg(const ColumnChart& chart);

}  // namespace luff::cli
