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
  kNonFinite
};

struct NamedStatistic {
  Statistic statistic;
  std::string_view name;
  bool heat;   // heat maps show it
  bool share;  // of elements, 0 to 1
};
inline constexpr NamedStatistic kStatistics[] = {
    {Statistic::kAuto, "auto", false, false},
    {Statistic::kL2, "l2", true, false},
    {Statistic::kMean, "mean", false, false},
    {Statistic::kStd, "std", true, false},
    {Statistic::kMin, "min", false, false},
    {Statistic::kMax, "max", false, false},
    {Statistic::kAbsMean, "abs_mean", true, false},
    {Statistic::kAbsMax, "abs_max", true, false},
    {Statistic::kZeroShare, "zero_share", true, true},
    {Statistic::kNonFinite, "nonfinite", false, true},
};

[[nodiscard]] constexpr std::optional<NamedStatistic> FindStatistic(std::string_view name) {
  for (const NamedStatistic& one : kStatistics) {
    if (one.name == name) return one;
  }
  return std::nullopt;
}

}  // namespace luff::server
