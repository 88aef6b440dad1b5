#include "server/heat_map.h"

#include <algorithm>
#include <array>
#include <bit>
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

/// Finds the byte of a ratio by its exponent and the first bits of its mantissa, which no two boundaries
/// share.
class RatioBytes {
 public:
  static constexpr double kLeast = 0x1p-14, kMost = 0x1p14;  // beyond the outermost boundaries
  RatioBytes() {
    std::ranges::copy(Boundaries(), ends_.begin());
    ends_.back() = kInfinity;  // nothing reaches it
    for (std::size_t i = 0; i < begin_.size(); ++i) {
      const double least =
          std::bit_cast<double>(((std::bit_cast<std::uint64_t>(kLeast) >> kShift) + i) << kShift);
      begin_[i] =
          static_cast<std::uint8_t>(std::ranges::upper_bound(Boundaries(), least) - Boundaries().begin());
    }
  }
  /// `ratio` lies within kLeast and kMost.
  [[nodiscard]] std::uint8_t Of(double ratio) const noexcept {
    const std::uint64_t key = std::bit_cast<std::uint64_t>(ratio) >> kShift;
    const std::uint8_t byte = begin_[key - (std::bit_cast<std::uint64_t>(kLeast) >> kShift)];
    return static_cast<std::uint8_t>(byte + (ratio >= ends_[byte] ? 1 : 0));
  }

 private:
  static constexpr int kBits = 10, kShift = 52 - kBits;
  std::array<std::uint8_t, (std::size_t{28} << kBits) + 1> begin_{};  // the byte of the least ratio of a key
  std::array<double, 253> ends_{};                                    // where the next byte begins
};

double Within(double value, double least, double most) noexcept {  // a file may hold what is no number
  value = value > least ? value : least;
  return value < most ? value : most;
}
std::uint8_t Rounded(double value) noexcept {
  return static_cast<std::uint8_t>(static_cast<int>(Within(value, 0, 252) + 0.5));
}

/// The cells of one tile column.
struct Cells {
  std::array<float, HeatMap::kTile> lo, hi;
  std::array<std::uint8_t, HeatMap::kTile> flags;

  void Clear() {
    lo.fill(kInfinity);
    hi.fill(-kInfinity);
    flags.fill(0);
  }
  void Join(std::span<const float> least, std::span<const float> most, std::span<const std::uint8_t> more) {
    for (std::size_t i = 0; i < least.size(); ++i) lo[i] = least[i] < lo[i] ? least[i] : lo[i];
    for (std::size_t i = 0; i < most.size(); ++i) hi[i] = most[i] > hi[i] ? most[i] : hi[i];
    for (std::size_t i = 0; i < more.size(); ++i) flags[i] |= more[i];
  }
};

/// Turns cells into bytes, a column of neighbouring rows at once.
class Painter {
 public:
  Painter(Scale scale, std::size_t rows) : scale_(scale), rows_(rows) {}
  void Set(std::size_t row, float median, float reach) {
    median_[row] = static_cast<double>(median);
    if (scale_ == Scale::kRatio) factor_[row] = 1 / median_[row];
    if (scale_ == Scale::kOffset) factor_[row] = reach > 0 ? 126 / static_cast<double>(reach) : 0;
  }
  void Paint(const Cells& cells, std::uint8_t* to) const noexcept {
    switch (scale_) {
      case Scale::kRatio: return PaintRatios(cells, to);
      case Scale::kShare:
        for (std::size_t row = 0; row < rows_; ++row)
          to[row] = Rounded(252 * static_cast<double>(cells.hi[row]));
        return;
      case Scale::kOffset:
        for (std::size_t row = 0; row < rows_; ++row) {
          const double below = median_[row] - static_cast<double>(cells.lo[row]);
          const double above = static_cast<double>(cells.hi[row]) - median_[row];
          to[row] = Rounded(126 + (above > below ? above : -below) * factor_[row]);
        }
    }
  }

 private:
  void PaintRatios(const Cells& cells, std::uint8_t* to) const noexcept {
    static const RatioBytes bytes;
    std::array<double, HeatMap::kTile> ratios;
    for (std::size_t row = 0; row < rows_; ++row) {
      const double low = static_cast<double>(cells.lo[row]) * factor_[row];
      const double high = static_cast<double>(cells.hi[row]) * factor_[row];
      // The farther one of both, by the logarithm: that of high if it is farther above than the other is
      // below.
      ratios[row] = Within(low * high > 1 ? high : low, RatioBytes::kLeast, RatioBytes::kMost);
    }
    for (std::size_t row = 0; row < rows_; ++row) to[row] = bytes.Of(ratios[row]);
    for (std::size_t row = 0; row < rows_; ++row) {
      if (median_[row] == 0) to[row] = cells.hi[row] == 0 ? 126 : 252;
    }
  }

  Scale scale_;
  std::size_t rows_;
  std::array<double, HeatMap::kTile> median_{}, factor_{};
};

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

/// Columns lie far apart, so the processor does not foresee which comes next.
void HeatMap::PrefetchAfter(std::size_t column, std::size_t first, std::size_t rows) const noexcept {
  constexpr std::size_t kAhead = 4, kLine = 64;
  if (column + kAhead >= overview_->used()) return;
  const Overview::Cells next = overview_->At(column + kAhead, static_cast<std::size_t>(statistic_.place));
  if (next.lo.empty()) return;
  for (std::size_t i = first; i < first + rows; i += kLine / sizeof(float)) {
    __builtin_prefetch(&next.lo[i]);
    __builtin_prefetch(&next.hi[i]);
  }
  for (std::size_t i = first; i < first + rows; i += kLine) __builtin_prefetch(&next.flags[i]);
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
    PrefetchAfter(column, first, rows);
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
  Painter painter(statistic_.scale, rows);
  for (std::size_t row = 0; row < rows; ++row)
    painter.Set(row, middles_[first_row + row].median, middles_[first_row + row].reach);
  Cells cells;
  std::array<std::uint8_t, kTile> painted;
  std::string columns(kTile * kTile, static_cast<char>(kNotRecorded));  // the tile, column by column
  const char* before = columns.data();  // the column before, for those that have no step of the mode
  for (std::size_t column = 0; column < kTile; ++column) {
    const std::size_t first = (x * kTile + column) * width;
    if (first >= overview_->used()) break;
    cells.Clear();
    bool stepped = false;
    for (std::size_t from = first; from < std::min(first + width, overview_->used()); ++from) {
      stepped = stepped || overview_->stepped(from);
      PrefetchAfter(from, first_row, rows);
      const Overview::Cells of = overview_->At(from, static_cast<std::size_t>(statistic_.place));
      if (of.lo.empty()) continue;
      cells.Join(of.lo.subspan(first_row, rows), of.hi.subspan(first_row, rows),
                 of.flags.subspan(first_row, rows));
    }
    const std::uint8_t nothing = first < overview_->unread() ? kUnread : kNotRecorded;
    const bool lasting = nothing == kNotRecorded && !stepped;
    char* to = columns.data() + column * kTile;
    painter.Paint(cells, painted.data());
    for (std::size_t row = 0; row < rows; ++row) {
      std::uint8_t byte = lasting ? static_cast<std::uint8_t>(before[row]) : nothing;
      const bool bad = (cells.flags[row] & Overview::kNotFinite) != 0;
      if (bad && statistic_.statistic != Statistic::kNonFinite) {
        byte = kBad;
      } else if (cells.lo[row] <= cells.hi[row]) {
        byte = painted[row];
        if (bad) byte = std::max(byte, std::uint8_t{1});  // never looks like none
      }
      to[row] = static_cast<char>(byte);
    }
    before = to;
  }
  // A few rows at a time, since whole columns of the tile share too few places of the processor's cache.
  constexpr std::size_t kStrip = 16;
  for (std::size_t strip = 0; strip < kTile; strip += kStrip) {
    for (std::size_t column = 0; column < kTile; ++column) {
      for (std::size_t row = strip; row < strip + kStrip; ++row)
        tile[row * kTile + column] = columns[column * kTile + row];
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
