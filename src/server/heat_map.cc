#include "server/heat_map.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/format.h"

namespace luff::server {
namespace {

constexpr std::uint8_t kNotRead = 253, kBad = 254, kNotRecorded = 255;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::size_t kCoarser = 8;
constexpr std::uint32_t kOther = 0xFFFFFFFFU;  // a step of another mode

double Bound(std::uint64_t bits, std::uint8_t type) noexcept {
  const auto dtype = static_cast<DType>(type);
  if (IsSignedInteger(dtype)) return static_cast<double>(std::bit_cast<std::int64_t>(bits));
  if (IsUnsignedInteger(dtype)) return static_cast<double>(bits);
  return std::bit_cast<double>(bits);
}

/// `finite` > 0, or the statistic is a share.
float ValueOf(const query::TrialRows::SummaryStretch& s, std::size_t i, double finite, Statistic statistic) {
  switch (statistic) {
    case Statistic::kStd: {
      const double mean = s.sum[i] / finite;
      const double variance = s.sum_sq[i] / finite - mean * mean;
      return static_cast<float>(std::sqrt(std::max(variance, 0.0)));
    }
    case Statistic::kAbsMean: return static_cast<float>(s.abs_sum[i] / finite);
    case Statistic::kAbsMax:
      return static_cast<float>(
          std::max(std::fabs(Bound(s.min_bits[i], s.dtype[i])), std::fabs(Bound(s.max_bits[i], s.dtype[i]))));
    case Statistic::kZeroShare:
      return s.count[i] == 0
                 ? 0.0F
                 : static_cast<float>(static_cast<double>(s.zero_count[i]) / static_cast<double>(s.count[i]));
    default: return static_cast<float>(std::sqrt(s.sum_sq[i]));
  }
}

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
  while (guess < 252 && ratio >= boundaries[guess]) ++guess;
  while (guess > 0 && ratio < boundaries[guess - 1U]) --guess;
  return guess;
}

}  // namespace

void HeatMap::Fit(const query::Trial& trial) {
  const std::size_t rows = trial.tensor_count();
  if (rows > rows_) {
    const std::size_t room = std::clamp(std::bit_floor(kMaxCells / rows), kMinColumns, kMaxColumns);
    while (stride_ > room) {  // tensors that came later: the same memory, coarser
      Fold();
      std::vector<Cell> narrower;
      narrower.reserve(rows_ * stride_ / 2);
      for (std::size_t row = 0; row < rows_; ++row) {
        const auto* first = cells_.data() + row * stride_;
        narrower.insert(narrower.end(), first, first + stride_ / 2);
      }
      cells_ = std::move(narrower);
      stride_ /= 2;
    }
    if (stride_ == 0) {
      stride_ = room;
      stepped_.assign(stride_, false);
    }
    cells_.resize(rows * stride_, Cell{kInfinity, -kInfinity, false});
    medians_.resize(rows);
    rows_ = rows;
  }
  for (std::size_t n = to_; n < trial.step_count(); ++n) {
    const std::int64_t step = std::max<std::int64_t>(trial.step_at(n).global_step, 0);
    while (static_cast<std::uint64_t>(step >> bits_) >= stride_ && stride_ > 0) Fold();
    used_ = std::max(used_, static_cast<std::size_t>(step >> bits_) + 1);
  }
}

void HeatMap::Fold() {
  for (std::size_t row = 0; row < rows_; ++row) {
    Cell* cell = cells_.data() + row * stride_;
    for (std::size_t i = 0; i < stride_ / 2; ++i) {
      const Cell& a = cell[2 * i];
      const Cell& b = cell[2 * i + 1];
      cell[i] = {std::min(a.lo, b.lo), std::max(a.hi, b.hi), a.bad || b.bad};
    }
    std::fill(cell + stride_ / 2, cell + stride_, Cell{kInfinity, -kInfinity, false});
  }
  for (std::size_t i = 0; i < stepped_.size(); ++i)
    stepped_[i] = 2 * i + 1 < stepped_.size() && (stepped_[2 * i] || stepped_[2 * i + 1]);
  ++bits_;
  used_ = (used_ + 1) / 2;
}

Status HeatMap::Visit(const query::Trial& trial, std::size_t begin, std::size_t end) {
  column_of_.clear();
  for (std::size_t n = begin; n < end; ++n) {
    const query::StepInfo info = trial.step_at(n);
    const bool counts = !info.superseded && info.mode == mode_ && info.global_step >= 0;
    column_of_.push_back(counts ? static_cast<std::uint32_t>(info.global_step >> bits_) : kOther);
    if (counts) stepped_[column_of_.back()] = true;
  }
  ++version_;
  return trial.VisitSummaries(begin, end, [&](const query::TrialRows::SummaryStretch& s) { Take(begin, s); });
}

void HeatMap::Take(std::size_t begin, const query::TrialRows::SummaryStretch& s) {
  Cell* const row = cells_.data() + s.tensor * stride_;
  const bool share = statistic_.share;
  for (std::size_t i = 0; i < s.count.size(); ++i) {
    const std::uint32_t column = column_of_[s.first - begin + i];
    if (column == kOther) continue;
    Cell& cell = row[column];
    const std::uint64_t bad = s.nan_count[i] + s.inf_count[i];
    cell.bad = cell.bad || bad != 0;
    const auto finite = static_cast<double>(s.count[i] - bad);
    if (finite == 0 && !share) continue;
    const float value = ValueOf(s, i, finite, statistic_.statistic);
    cell.lo = std::min(cell.lo, value);
    cell.hi = std::max(cell.hi, value);
  }
}

Result<bool> HeatMap::Read(const query::Trial& trial, std::size_t steps) {
  const std::size_t all = trial.step_count();
  if (trial.tensor_count() == 0 || all == 0) return true;
  if (trial.tensor_count() > kMaxRows) {
    return ResourceExhausted(
        fmt::format("a heat map shows {} tensors, and the run has {}", kMaxRows, trial.tensor_count()));
  }
  const bool begun = to_ != 0;
  Fit(trial);
  if (!begun) {
    from_ = all > steps ? all - steps : 0;
    LUFF_RETURN_IF_ERROR(Visit(trial, from_, all));
    to_ = all;
  } else if (to_ < all) {
    LUFF_RETURN_IF_ERROR(Visit(trial, to_, all));
    to_ = all;
  } else if (from_ > 0) {
    const std::size_t begin = from_ > steps ? from_ - steps : 0;
    LUFF_RETURN_IF_ERROR(Visit(trial, begin, from_));
    from_ = begin;
  }
  const std::int64_t oldest = from_ == 0 ? -1 : trial.step_at(from_ - 1).global_step;
  unread_ = oldest < 0 ? 0 : static_cast<std::size_t>(oldest >> bits_) + 1;
  return Covers(trial);
}

std::vector<HeatMap::Level> HeatMap::Levels() const {
  std::vector<Level> levels;
  std::size_t columns = used_;
  for (std::int64_t bucket = std::int64_t{1} << bits_; columns > 0; bucket *= kCoarser) {
    levels.push_back({bucket, columns});
    if (columns <= kTile) break;
    columns = (columns + kCoarser - 1) / kCoarser;
  }
  return levels;
}

float HeatMap::MedianOf(std::size_t row) {
  Median& median = medians_[row];
  if (median.version == version_ + 1) return median.value;
  scratch_.clear();
  for (std::size_t i = 0; i < used_; ++i) {
    const Cell& cell = cells_[row * stride_ + i];
    if (cell.lo <= cell.hi) scratch_.push_back((cell.lo + cell.hi) / 2);
  }
  median = {version_ + 1, 0};
  if (!scratch_.empty()) {
    const auto middle = scratch_.begin() + static_cast<std::ptrdiff_t>(scratch_.size() / 2);
    std::nth_element(scratch_.begin(), middle, scratch_.end());
    median.value = *middle;
  }
  return median.value;
}

std::uint8_t HeatMap::ByteOf(std::span<const Cell> cells, float median, std::uint8_t guess) const {
  float lo = kInfinity;
  float hi = -kInfinity;
  for (const Cell& cell : cells) {
    if (cell.bad) return kBad;
    lo = std::min(lo, cell.lo);
    hi = std::max(hi, cell.hi);
  }
  if (lo > hi) return kNotRecorded;
  if (statistic_.share) return static_cast<std::uint8_t>(std::lround(252 * static_cast<double>(hi)));
  if (median == 0) return hi == 0 ? 126 : 252;
  const double m = static_cast<double>(median);
  const double low = static_cast<double>(lo) / m;
  const double high = static_cast<double>(hi) / m;
  // The farther one of both, by the logarithm: that of high if it is farther above than the other is below.
  return ByteOfRatio(low * high > 1 ? high : low, guess <= 252 ? guess : 126);
}

std::string HeatMap::Tile(std::size_t level, std::size_t x, std::size_t y) {
  std::string tile(kTile * kTile, static_cast<char>(kNotRecorded));
  std::size_t width = 1;
  for (std::size_t i = 0; i < level; ++i) width *= kCoarser;
  for (std::size_t row = 0; row < kTile && y * kTile + row < rows_; ++row) {
    const std::size_t at = y * kTile + row;
    const float median = statistic_.share ? 0 : MedianOf(at);
    std::uint8_t before = kNotRecorded;  // of the column before, for those that have no step of the mode
    for (std::size_t column = 0; column < kTile; ++column) {
      const std::size_t first = (x * kTile + column) * width;
      if (first >= used_) break;
      const std::size_t last = std::min(first + width, used_);
      std::uint8_t byte =
          ByteOf(std::span(cells_).subspan(at * stride_ + first, last - first), median, before);
      if (byte == kNotRecorded && first < unread_) byte = kNotRead;
      const auto steps = stepped_.begin();
      if (byte == kNotRecorded &&
          std::find(steps + static_cast<std::ptrdiff_t>(first), steps + static_cast<std::ptrdiff_t>(last),
                    true) == steps + static_cast<std::ptrdiff_t>(last))
        byte = before;
      before = byte;
      tile[row * kTile + column] = static_cast<char>(byte);
    }
  }
  return tile;
}

}  // namespace luff::server
