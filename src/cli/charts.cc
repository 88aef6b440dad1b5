#include "cli/charts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/format.h"
#include "base/text_escape.h"

namespace luff::cli {
namespace {

using Points = std::vector<std::pair<double, double>>;

constexpr int kWidth = 900, kHeight = 240, kLeft = 64, kRight = 8, kTop = 12, kBottom = 34, kLegend = 18;
constexpr std::size_t kColours = 10, kName = 24;
constexpr std::size_t kMostPoints = 400;  // of a curve: no screen shows more

std::string Tick(double value) { return fmt::format("{:.3g}", value); }

/// Formats a position on the x axis; steps and rounds are written in full.
std::string PlaceText(double x) {
  return x == std::floor(x) && std::abs(x) < 1e15 ? fmt::format("{:.0f}", x) : Tick(x);
}

std::string Open(const std::string& title, int width, int height) {
  return fmt::format(
      "<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
      "aria-label=\"{2}\"><title>{2}</title>",
      width, height, HtmlEscaped(title));
}

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>", x, y, anchor,
                     HtmlEscaped(text));
}

std::string Axis(int width, int y) {
  return fmt::format("<line class=\"axis\" x1=\"{0}\" y1=\"{1}\" x2=\"{2}\" y2=\"{1}\"/>", kLeft, y,
                     width - kRight);
}

std::string Shortened(const std::string& name, std::size_t most) {
  if (name.size() <= most) return name;
  std::size_t end = most - 1;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0U) == 0x80) --end;  // whole characters
  return name.substr(0, end) + "…";
}

/// Reduces a curve to at most kMostPoints: the first, the last, and the smallest and largest of each of the
/// equal stretches between them.
Points Thinned(const Points& points) {
  if (points.size() <= kMostPoints) return points;
  constexpr std::size_t kStretches = (kMostPoints - 2) / 2;
  Points thin = {points.front()};
  for (std::size_t i = 0; i < kStretches; ++i) {
    const std::size_t inner = points.size() - 2;
    const auto begin = points.begin() + 1 + static_cast<std::ptrdiff_t>(i * inner / kStretches);
    const auto end = points.begin() + 1 + static_cast<std::ptrdiff_t>((i + 1) * inner / kStretches);
    if (begin == end) continue;
    const auto by_value = [](const auto& a, const auto& b) {
      return !std::isfinite(a.second) || (std::isfinite(b.second) && a.second < b.second);
    };
    auto [low, high] = std::minmax_element(begin, end, by_value);
    if (low > high) std::swap(low, high);
    thin.push_back(*low);
    if (low != high) thin.push_back(*high);
  }
  thin.push_back(points.back());
  return thin;
}

}  // namespace

std::string ChartStyle() {
  std::string style =
      "svg{max-width:100%;height:auto;display:block;margin:.4rem 0}"
      "svg path{fill:none;stroke:var(--data);stroke-width:1.5}"
      "svg text{fill:var(--quiet);font:11px system-ui,sans-serif}.axis{stroke:var(--line)}"
      ".mark{stroke:var(--stop);stroke-dasharray:3 3}.bad{fill:var(--stop)}.bar{fill:var(--data)}"
      "svg .dashed{stroke:var(--quiet);stroke-dasharray:4 4;stroke-width:1}";
  constexpr const char* kStrokes[kColours] = {"#3b82f6", "#f97316", "#10b981", "#ef4444", "#a855f7",
                                              "#eab308", "#06b6d4", "#ec4899", "#84cc16", "#94a3b8"};
  for (std::size_t i = 0; i < kColours; ++i)
    style += fmt::format("svg .s{0}{{stroke:{1}}}svg .k{0}{{fill:{1}}}", i, kStrokes[i]);
  return style;
}

std::string CurvesSvg(const CurveChart& chart) {
  std::vector<Points> curves;
  double left = HUGE_VAL, right = -HUGE_VAL, low = HUGE_VAL, high = -HUGE_VAL;
  bool any = false;
  for (const Curve& curve : chart.curves) {
    std::size_t finite = 0;
    for (const auto& [x, y] : curves.emplace_back(Thinned(curve.points))) {
      left = std::min(left, x);
      right = std::max(right, x);
      if (!std::isfinite(y)) continue;
      ++finite;
      low = std::min(low, y);
      high = std::max(high, y);
    }
    any = any || finite >= 2;
  }
  if (!any) return {};
  if (chart.square) left = low = 0, right = high = 1;
  // Values that span orders of magnitude get a logarithmic axis, if all are positive.
  const bool logarithmic = !chart.square && low > 0 && high / low > 1e3;
  const auto scaled = [&](double value) { return logarithmic ? std::log10(value) : value; };
  const int width = chart.square ? 420 : chart.width;
  // The legend continues in a further row when one is full.
  std::vector<std::pair<double, int>> names;
  double used = kLeft;
  int rows = 0;
  for (const Curve& curve : chart.curves) {
    const double needed = 24 + 6.4 * static_cast<double>(Shortened(curve.name, kName).size());
    if (!curve.name.empty() && (rows == 0 || (used + needed > width && used > kLeft))) {
      used = kLeft;
      ++rows;
    }
    names.emplace_back(used, rows - 1);
    used += needed;
  }
  const int height = (chart.square ? 400 : chart.height) + rows * kLegend;
  const int top = kTop + rows * kLegend;
  const int bottom = height - (chart.x_name.empty() ? kBottom / 2 : kBottom);
  const double x_range = right > left ? right - left : 1;
  const double y_range = scaled(high) > scaled(low) ? scaled(high) - scaled(low) : 1;
  const auto px = [&](double x) { return kLeft + (x - left) / x_range * (width - kLeft - kRight); };
  const auto py = [&](double y) { return top + (1 - (scaled(y) - scaled(low)) / y_range) * (bottom - top); };
  std::string svg = Open(chart.title, width, height) + Axis(width, bottom);
  svg += Text(kLeft - 6, top + 8, "end", Tick(high)) + Text(kLeft - 6, bottom, "end", Tick(low));
  svg += Text(kLeft, bottom + 14, "start", PlaceText(left));
  svg += Text(width - kRight, bottom + 14, "end", PlaceText(right));
  if (!chart.x_name.empty())
    svg += Text(kLeft + (width - kLeft - kRight) / 2.0, height - 6, "middle", chart.x_name);
  if (logarithmic) svg += Text(kLeft + 4, top + 8, "start", "log");
  if (chart.diagonal)
    svg += fmt::format("<path class=\"dashed\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>", px(left), py(low),
                       px(right), py(high));
  if (chart.mark && *chart.mark >= left && *chart.mark <= right)
    svg += fmt::format("<line class=\"mark\" x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\"/>",
                       px(*chart.mark), top, bottom);
  for (std::size_t i = 0; i < curves.size(); ++i) {
    std::string path;
    bool pen = false;
    for (const auto& [x, y] : curves[i]) {
      if (!std::isfinite(y)) {
        svg += fmt::format("<circle class=\"bad\" cx=\"{:.1f}\" cy=\"{}\" r=\"3\"/>", px(x), top + 3);
        pen = false;
        continue;
      }
      path += fmt::format("{}{:.1f} {:.1f}", pen ? "L" : "M", px(x), py(y));
      pen = true;
    }
    const std::string& name = chart.curves[i].name;
    if (name.empty()) {
      svg += fmt::format("<path d=\"{}\"/>", path);
      continue;
    }
    const auto [at, row] = names[i];
    svg += fmt::format("<path class=\"s{}\" d=\"{}\"/>", i % kColours, path);
    svg += fmt::format("<rect class=\"k{}\" x=\"{:.1f}\" y=\"{}\" width=\"10\" height=\"10\" rx=\"2\"/>",
                       i % kColours, at, 6 + row * kLegend);
    svg += Text(at + 14, 15 + row * kLegend, "start", Shortened(name, kName));
  }
  return svg + "</svg>";
}

std::string BarsSvg(const std::string& title, const std::vector<std::pair<std::string, double>>& bars) {
  if (bars.empty()) return {};
  constexpr int kRow = 18, kNames = 200, kNumber = 60;
  const int height = static_cast<int>(bars.size()) * kRow + 4;
  double most = 0;
  for (const auto& [name, value] : bars) most = std::isfinite(value) ? std::max(most, value) : most;
  std::string svg = Open(title, kWidth, height);
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const double y = static_cast<double>(i) * kRow + 2;
    const double share = most > 0 && std::isfinite(bars[i].second) ? std::max(bars[i].second, 0.0) / most : 0;
    const double length = share * (kWidth - kNames - kNumber);
    svg += Text(kNames - 6, y + 12, "end", Shortened(bars[i].first, 28));
    svg += fmt::format("<rect class=\"bar\" x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" rx=\"2\"/>",
                       kNames, y, std::max(length, 1.0), kRow - 4);
    svg += Text(kNames + length + 6, y + 12, "start", Tick(bars[i].second));
  }
  return svg + "</svg>";
}

std::string ColumnsSvg(const ColumnChart& chart) {
  if (chart.heights.empty()) return {};
  const double most = *std::max_element(chart.heights.begin(), chart.heights.end());
  const double step =
      static_cast<double>(kWidth - kLeft - kRight) / static_cast<double>(chart.heights.size());
  const double gap = std::min(4.0, step * 0.1);
  std::string svg = Open(chart.title, kWidth, kHeight) + Axis(kWidth, kHeight - kBottom);
  svg += Text(kLeft - 6, kTop + 8, "end", Tick(most)) + Text(kLeft - 6, kHeight - kBottom, "end", "0");
  for (std::size_t i = 0; i < chart.heights.size(); ++i) {
    const double height = most > 0 ? chart.heights[i] / most * (kHeight - kTop - kBottom) : 0;
    const double x = kLeft + static_cast<double>(i) * step + gap / 2;
    svg += fmt::format("<rect class=\"bar\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>",
                       x, kHeight - kBottom - height, std::max(step - gap, 0.5), height);
    if (i < chart.names.size() && (step >= 14 || i % (chart.heights.size() / 30 + 1) == 0))
      svg += Text(x + (step - gap) / 2, kHeight - kBottom + 14, "middle",
                  Shortened(chart.names[i], static_cast<std::size_t>(std::max(3.0, step / 6))));
  }
  if (chart.names.empty()) {
    svg += Text(kLeft, kHeight - kBottom + 14, "start", Tick(chart.low));
    svg += Text(kWidth - kRight, kHeight - kBottom + 14, "end", Tick(chart.high));
    svg += Text(kLeft + (kWidth - kLeft - kRight) / 2.0, kHeight - kBottom + 14, "middle",
                Tick((chart.low + chart.high) / 2));
  }
  return svg + "</svg>";
}

}  // namespace luff::cli
