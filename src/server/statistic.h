#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace luff::server {

/// What curves and heat maps show of a tensor at a step.
enum class Statistic : std::uint8_t {
  kAuto,
  kL2,
  kMean,
  kStd,
  kMin,
  kMax,
  kAbsMean,
  kAbsMax,
  kZeroShare,
  kNonFinite,
  kUpdateRatio
};

/// How a heat map turns a value into a byte: docs/spec/http-api.md, section 5.
enum class Scale : std::uint8_t { kRatio, kShare, kOffset };

constexpr int kNoHeat = -1;

struct NamedStatistic {
  Statistic statistic;
  std::string_view name;
  int place = kNoHeat;  // in the overview: its number in docs/spec/overview.md
  Scale scale = Scale::kRatio;
  bool curve = true;  // curves show it
  [[nodiscard]] constexpr bool heat() const { return place != kNoHeat; }
};
inline constexpr NamedStatistic kStatistics[] = {
    {Statistic::kAuto, "auto"},
    {Statistic::kL2, "l2", 0},
    {Statistic::kMean, "mean", 1, Scale::kOffset},
    {Statistic::kStd, "std", 2},
    {Statistic::kMin, "min"},
    {Statistic::kMax, "max"},
    {Statistic::kAbsMean, "abs_mean", 3},
    {Statistic::kAbsMax, "abs_max", 4},
    {Statistic::kZeroShare, "zero_share", 5, Scale::kShare},
    {Statistic::kNonFinite, "nonfinite", 6, Scale::kShare},
    {Statistic::kUpdateRatio, "update_ratio", 7, Scale::kRatio, false},
};
/// Statistics that an overview holds.
inline constexpr std::size_t kOverviewStatistics = 8;

[[nodiscard]] constexpr std::optional<NamedStatistic> FindStatistic(std::string_view name) {
  for (const NamedStatistic& one : kStatistics) {
    if (one.name == name) return one;
  }
  return std::nullopt;
}

}  // namespace luff::server
