#pragma once
#include <string>
#include <utility>
#include <vector>

/// Charts of the report on a boosted model, as SVG.
namespace luff::cli {

struct Curve {
  std::string name;                               // not escaped yet
  std::vector<std::pair<double, double>> points;  // ascending in x; values that are not finite are left out
};
struct CurveChart {
  std::string title, x_name, y_name;
  std::vector<Curve> curves;
  bool square = false;    // as wide as high, both axes from 0 to 1
  bool diagonal = false;  // a line from corner to corner
};
/// Style of these charts, once on a page.
[[nodiscard]] std::string ChartStyle();
/// Curves with a legend; "" without a curve of two points.
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
