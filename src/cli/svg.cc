#include "cli/svg.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "base/text_escape.h"

namespace luff::cli {
namespace {

constexpr int kLeft = 64, kRight = 8, kTop = 8, kBottom = 18;

std::string Tick(double value) { return fmt::format("{:.3g}", value); }

}  // namespace

Points Thinned(const Points& points, std::size_t most) {
  if (points.size() <= most || most < 4) return points;
  const std::size_t stretches = (most - 2) / 2;
  Points thin = {points.front()};
  for (std::size_t i = 0; i < stretches; ++i) {
    const std::size_t inner = points.size() - 2;
    const auto begin = points.begin() + 1 + static_cast<std::ptrdiff_t>(i * inner / stretches);
    const auto end = points.begin() + 1 + static_cast<std::ptrdiff_t>((i + 1) * inner / stretches);
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

std::string ToSvg(const Chart& chart) {
  const Points points = Thinned(chart.points, 400);
  double low = HUGE_VAL;
  double high = -HUGE_VAL;
  std::size_t finite = 0;
  for (const auto& [step, value] : points) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
    ++finite;
  }
  if (finite < 2) return {};
  // Orders of magnitude need a logarithmic axis, where all values allow one.
  const bool logarithmic = low > 0 && high / low > 1e3;
  const auto scaled = [&](double value) { return logarithmic ? std::log10(value) : value; };
  const double bottom = scaled(low);
  const double range = scaled(high) > bottom ? scaled(high) - bottom : 1.0;
  const auto first = static_cast<double>(points.front().first);
  const double span = std::max(1.0, static_cast<double>(points.back().first) - first);
  const auto x = [&](std::int64_t step) {
    return kLeft + (static_cast<double>(step) - first) / span * (chart.width - kLeft - kRight);
  };
  const auto y = [&](double value) {
    return kTop + (1 - (scaled(value) - bottom) / range) * (chart.height - kTop - kBottom);
  };
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" aria-label=\"{2}\">"
      "<title>{2}</title>",
      chart.width, chart.height, HtmlEscaped(chart.title));
  svg += fmt::format("<line class=\"axis\" x1=\"{0}\" y1=\"{1}\" x2=\"{2}\" y2=\"{1}\"/>", kLeft,
                     chart.height - kBottom, chart.width - kRight);
  const auto label = [&](double px, double py, const char* anchor, const std::string& text) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>", px, py, anchor, text);
  };
  label(kLeft - 6, kTop + 8, "end", Tick(high));
  label(kLeft - 6, chart.height - kBottom, "end", Tick(low));
  label(kLeft, chart.height - 4, "start", std::to_string(points.front().first));
  label(chart.width - kRight, chart.height - 4, "end", std::to_string(points.back().first));
  if (logarithmic) label(kLeft + 4, kTop + 8, "start", "log");
  if (chart.mark && static_cast<double>(*chart.mark) >= first && *chart.mark <= points.back().first) {
    svg += fmt::format("<line class=\"mark\" x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\"/>",
                       x(*chart.mark), kTop, chart.height - kBottom);
  }
  std::string path;
  bool pen = false;
  for (const auto& [step, value] : points) {
    if (!std::isfinite(value)) {
      svg += fmt::format("<circle class=\"bad\" cx=\"{:.1f}\" cy=\"{}\" r=\"3\"/>", x(step), kTop + 3);
      pen = false;
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", pen ? "L" : "M", x(step), y(value));
    pen = true;
  }
  return svg + fmt::format("<path d=\"{}\"/></svg>", path);
}

}  // namespace luff::cli
