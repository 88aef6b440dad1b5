#include "rules/facts/straight_fall.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "rules/kit/select.h"

namespace luff::rules {
namespace {
constexpr std::size_t kQuarters = 4, kPoints = 32;
constexpr double kLeft = 0.4, kFallen = 0.1;      // of the loss: most is left, and something is learnt
constexpr double kSlower = 0.75, kFaster = 1.34;  // of the mean fall from one quarter to the next
constexpr double kSteady = 0.75;                  // of the first fall: that of the last two quarters
constexpr double kNoise = 0.1;                    // of the fall: how far points lie from the line
constexpr double kNear = 1.02;                    // of the best evaluation
}  // namespace

void StraightFall::OnStep(const StepView& view) {
  evaluations_.OnStep(view);
  if (view.rows.info.mode != query::Mode::kTrain || view.rows.info.superseded) return;
  passes_.OnTrainStep(view);
  double rate = -1;
  for (const auto& [entry, tensor] : view.index.scalars(format::Role::kOptimizerSetting))
    if (tensor.name.ends_with(".lr") && std::isfinite(entry.value)) rate = std::max(rate, entry.value);
  if (rate < 0) return;
  if (first_rate_ < 0) first_rate_ = rate;
  last_rate_ = rate;
}

std::optional<StraightFall::Fall> StraightFall::Of(const LossSeries& series) {
  const std::vector<std::pair<std::int64_t, double>> picture = series.Picture();
  if (series.count() < kUpdates || series.nonfinite() > 0 || picture.size() < kPoints) return std::nullopt;
  // The last point may be of fewer values than the others.
  const std::size_t size = (picture.size() - 1) / kQuarters;
  std::array<double, kQuarters> level{};
  for (std::size_t i = 0; i < size * kQuarters; ++i) {
    if (!(picture[i].second >= 0)) return std::nullopt;
    level[i / size] += picture[i].second / static_cast<double>(size);
  }
  const double mean = (level.front() - level.back()) / (kQuarters - 1);
  if (!(mean * (kQuarters - 1) >= kFallen * level.front()) || level.back() < kLeft * level.front())
    return std::nullopt;
  for (std::size_t i = 0; i + 1 < kQuarters; ++i) {
    const double fall = level[i] - level[i + 1];
    if (!(fall >= kSlower * mean && fall <= kFaster * mean)) return std::nullopt;
  }
  // 0.63 is that of a loss that has come most of its way to what can be reached (one time constant).
  if (level[2] - level[3] < kSteady * (level[0] - level[1])) return std::nullopt;
  double squares = 0;  // of distances from the line through the middles of the first and the last quarter
  const double slope = mean / static_cast<double>(size);
  const double middle = (static_cast<double>(size) - 1) / 2;
  for (std::size_t i = 0; i < size * kQuarters; ++i) {
    const double line = level.front() - slope * (static_cast<double>(i) - middle);
    squares += (picture[i].second - line) * (picture[i].second - line);
  }
  const double noise = std::sqrt(squares / static_cast<double>(size * kQuarters));
  if (!(noise <= kNoise * (level.front() - level.back()))) return std::nullopt;
  return Fall{level.front(), level.back(), level[0] - level[1], level[2] - level[3], 0, series.count()};
}

std::optional<StraightFall::Fall> StraightFall::OnEnd(const LossTracker& losses) {
  evaluations_.OnEnd();
  if (losses.series().size() != 1 || passes_.count() < kPasses || passes_.drawn_at_random())
    return std::nullopt;
  if (last_rate_ > first_rate_ || evaluations_.takes_turns()) return std::nullopt;
  for (const auto& [name, curve] : evaluations_.curves()) {
    if (curve.recent().empty()) continue;
    if (curve.unfit() || curve.recent().back().validation > kNear * curve.best().validation)
      return std::nullopt;  // more of the same would not help
  }
  std::optional<Fall> fall = Of(losses.series().front().second);
  if (fall) fall->passes = passes_.count();
  return fall;
}

void StraightFall::VisitFields(Fields& io) {
  io("passes", passes_);
  io("evaluations", evaluations_);
  io("first_rate", first_rate_);
  io("last_rate", last_rate_);
}

}  // namespace luff::rules
