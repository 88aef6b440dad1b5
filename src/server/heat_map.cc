#include "server/heat_map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace luff::server {
namespace {

constexpr std::uint8_t kUnread = 253, kBad = 254, kNotRecorded = 255;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::size_t kCoarser = 8;

/// Boundaries between neighbouring bytes, as ratios to the median: byte b ends and b + 1 begins at number b.
/// The inverse of docs/spec/http-api.md, section 5.
const std::array<double, 252>& Boundaries() {
  static const std::array<double, 252> boundaries = [] {
    std::array<double, 252> all{};
    for (std::size_t b = 0; b < all.size(); ++b) {
      const double x = (static_cast<double>(b) + 0.5 - 126) / 126;
      all[b] = std::pow(10.0, std::copysign(4 * x * x, x));
    }
    return all;
  }();
  return boundaries;
}

/// The byte of a ratio, looked for from `guess` on: neighbouring cells are alike.
std::uint8_t ByteOfRatio(double ratio, std::uint8_t guess) noexcept {
  static const std::array<double, 252>& boundaries = Boundaries();
  if (guess > 252) guess = 126;
  while (guess < 252 && ratio >= boundaries[guess]) ++guess;
  while (guess > 0 && ratio < boundaries[guess - 1U]) --guess;
  return guess;
}

std::uint8_t Rounded(double value) noexcept {  // a file may hold what is no number
  return value >= 0 ? static_cast<std::uint8_t>(std::lround(std::min(value, 252.0))) : std::uint8_t{0};
}

/// The cells of one tile column.
struct Cells {
  std::array<float, HeatMap::kTile> lo, hi;
  std::array<std::uint8_t, HeatMap::kTile> flags;
};

std::uint8_t ByteOf(float lo, float hi, Scale scale, float median, float reach, std::uint8_t guess) {
  if (scale == Scale::kShare) return Rounded(252 * static_cast<double>(hi));
  if (scale == Scale::kOffset) {
    if (!(reach > 0)) return 126;
    const double below = static_cast<double>(median) - static_cast<double>(lo);
    const double above = static_cast<double>(hi) - static_cast<double>(median);
    return Rounded(126 + 126 * (above > below ? above : -below) / static_cast<double>(reach));
  }
  if (median == 0) return hi == 0 ? 126 : 252;
  const double m = static_cast<double>(median);
  const double low = static_cast<double>(lo) / m;
  const double high = static_cast<double>(hi) / m;
  // The farther one of both, by the logarithm: that of high if it is farther above than the other is below.
  return ByteOfRatio(low * high > 1 ? high : low, guess);
}

}  // namespace

std::size_t HeatMap::WidthOf(std::size_t level) {
  std::size_t width = 1;
  for (std::size_t i = 0; i < level; ++i) width *= kCoarser;
  return width;
}

std::vector<HeatMap::Level> HeatMap::Levels() const {
  std::vector<Level> levels;
  std::size_t columns = overview_->used();
  for (std::int64_t bucket = std::int64_t{1} << overview_->bits(); columns > 0; bucket *= kCoarser) {
    levels.push_back({bucket, columns});
    if (columns <= kTile) break;
    columns = (columns + kCoarser - 1) / kCoarser;
  }
  return levels;
}

void HeatMap::FindMiddles(std::size_t y) {
  const std::size_t first = y * kTile;
  const std::size_t rows = std::min(kTile, overview_->tensors() - first);
  middles_.resize(overview_->tensors());
  middle_of_.resize(std::max(middle_of_.size(), y + 1));
  if (middle_of_[y] == overview_->version() + 1 || statistic_.scale == Scale::kShare) return;
  middle_of_[y] = overview_->version() + 1;
  const std::size_t used = overview_->used();
  std::vector<float> all(rows * used);  // by row
  std::vector<std::size_t> count(rows, 0);
  std::vector<float> least(rows, kInfinity);
  std::vector<float> most(rows, -kInfinity);
  for (std::size_t column = 0; column < used; ++column) {
    const Overview::Cells cells = overview_->At(column, static_cast<std::size_t>(statistic_.place));
    if (cells.lo.empty()) continue;
    for (std::size_t row = 0; row < rows; ++row) {
      const float lo = cells.lo[first + row];
      const float hi = cells.hi[first + row];
      if (!(lo <= hi)) continue;
      all[row * used + count[row]++] = (lo + hi) / 2;
      least[row] = std::min(least[row], lo);
      most[row] = std::max(most[row], hi);
    }
  }
  for (std::size_t row = 0; row < rows; ++row) {
    Middle& middle = middles_[first + row] = {};
    if (count[row] == 0) continue;
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(row * used);
    const auto half = begin + static_cast<std::ptrdiff_t>(count[row] / 2);
    std::nth_element(begin, half, begin + static_cast<std::ptrdiff_t>(count[row]));
    middle.median = *half;
    middle.reach = std::max(most[row] - *half, *half - least[row]);
  }
}

std::string HeatMap::Tile(std::size_t level, std::size_t x, std::size_t y) {
  std::string tile(kTile * kTile, static_cast<char>(kNotRecorded));
  if (y * kTile >= overview_->tensors()) return tile;
  FindMiddles(y);
  const std::size_t first_row = y * kTile;
  const std::size_t rows = std::min(kTile, overview_->tensors() - first_row);
  const std::size_t width = WidthOf(level);
  Cells cells;
  std::array<std::uint8_t, kTile> before;  // of the column before, for those that have no step of the mode
  before.fill(kNotRecorded);
  for (std::size_t column = 0; column < kTile; ++column) {
    const std::size_t first = (x * kTile + column) * width;
    if (first >= overview_->used()) break;
    cells.lo.fill(kInfinity);
    cells.hi.fill(-kInfinity);
    cells.flags.fill(0);
    bool stepped = false;
    for (std::size_t from = first; from < std::min(first + width, overview_->used()); ++from) {
      stepped = stepped || overview_->stepped(from);
      const Overview::Cells of = overview_->At(from, static_cast<std::size_t>(statistic_.place));
      if (of.lo.empty()) continue;
      for (std::size_t row = 0; row < rows; ++row) {
        cells.lo[row] = std::min(cells.lo[row], of.lo[first_row + row]);
        cells.hi[row] = std::max(cells.hi[row], of.hi[first_row + row]);
        cells.flags[row] |= of.flags[first_row + row];
      }
    }
    for (std::size_t row = 0; row < rows; ++row) {
      std::uint8_t byte = kNotRecorded;
      const bool bad = (cells.flags[row] & Overview::kNotFinite) != 0;
      if (bad && statistic_.statistic != Statistic::kNonFinite) {
        byte = kBad;
      } else if (cells.lo[row] <= cells.hi[row]) {
        const Middle& middle = middles_[first_row + row];
        byte =
            ByteOf(cells.lo[row], cells.hi[row], statistic_.scale, middle.median, middle.reach, before[row]);
        if (bad) byte = std::max(byte, std::uint8_t{1});  // never looks like none
      } else if (first < overview_->unread()) {
        byte = kUnread;
      } else if (!stepped) {
        byte = before[row];
      }
      before[row] = byte;
      tile[row * kTile + column] = static_cast<char>(byte);
    }
  }
  return tile;
}

HeatMap::Row HeatMap::RowOf(std::size_t level, std::size_t tensor) const {
  const float none = std::numeric_limits<float>::quiet_NaN();
  Row row;
  const std::size_t width = WidthOf(level);
  for (std::size_t first = 0; first < overview_->used(); first += width) {
    float lo = kInfinity;
    float hi = -kInfinity;
    std::uint8_t flags = first < overview_->unread() ? kNotRead : std::uint8_t{0};
    for (std::size_t from = first; from < std::min(first + width, overview_->used()); ++from) {
      const Overview::Cells of = overview_->At(from, static_cast<std::size_t>(statistic_.place));
      if (of.lo.empty()) continue;
      lo = std::min(lo, of.lo[tensor]);
      hi = std::max(hi, of.hi[tensor]);
      flags |= of.flags[tensor];
    }
    row.lo.push_back(lo <= hi ? lo : none);
    row.hi.push_back(lo <= hi ? hi : none);
    row.flags.push_back(flags);
  }
  return row;
}

}  // namespace luff::server
