#include "server/columns.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/format.h"
#include "catalog/card.h"

namespace luff::server {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::uint8_t kNotFinite = 1, kSeveral = 2;

struct Point {
  std::int64_t step;
  double value;
  bool bad;  // some element is not finite
};

double ValueOf(const query::SummaryColumns& c, std::size_t i, Statistic statistic) {
  const auto share = [&](std::uint64_t part) {
    return c.count[i] == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(c.count[i]);
  };
  switch (statistic) {
    case Statistic::kMean: return c.mean[i];
    case Statistic::kStd: return c.std[i];
    case Statistic::kMin: return c.min[i];
    case Statistic::kMax: return c.max[i];
    case Statistic::kAbsMean: return c.abs_mean[i];
    case Statistic::kAbsMax: return std::max(std::fabs(c.min[i]), std::fabs(c.max[i]));
    case Statistic::kZeroShare: return share(c.zero_count[i]);
    case Statistic::kNonFinite: return share(c.nan_count[i] + c.inf_count[i]);
    case Statistic::kAuto:
    case Statistic::kUpdateRatio:  // no curves show it
    case Statistic::kL2: break;
  }
  return c.l2[i];
}

/// The value of a summary; NaN where it has none.
double FiniteValueOf(const query::SummaryColumns& c, std::size_t i, Statistic statistic) {
  const std::uint64_t strange = c.nan_count[i] + c.inf_count[i];
  const bool none = c.count[i] != 0 && strange == c.count[i];
  const bool counts = statistic == Statistic::kNonFinite || statistic == Statistic::kZeroShare;
  return none && !counts ? kNaN : ValueOf(c, i, statistic);
}

/// Points in ascending order of steps, as far as they were recorded.
Result<std::vector<Point>> PointsOf(const query::Trial& trial, const CurveQuestion& q, query::Mode mode) {
  std::vector<Point> points;
  LUFF_ASSIGN_OR_RETURN(auto scalars, trial.Scalars(q.tensor, mode, q.worker));
  const bool loss = trial.tensor(q.tensor).role == query::Role::kLoss;
  // As everywhere, what is shown of an evaluation is the mean of a loss over its steps.
  if (loss && mode == query::Mode::kEval) scalars = catalog::MeansOfEvaluations(scalars);
  for (const query::ScalarAt& scalar : scalars)
    points.push_back({scalar.global_step, scalar.value, !std::isfinite(scalar.value)});
  if (!points.empty()) return points;
  LUFF_ASSIGN_OR_RETURN(const auto columns, trial.SharedSummaries(q.tensor, mode, q.worker));
  const Statistic statistic = q.statistic == Statistic::kAuto && loss ? Statistic::kMean : q.statistic;
  for (std::size_t i = 0; i < columns->count.size(); ++i) {
    const std::uint64_t strange = columns->nan_count[i] + columns->inf_count[i];
    points.push_back({columns->global_step[i], FiniteValueOf(*columns, i, statistic), strange != 0});
  }
  return points;
}

/// k of the smallest buckets of 2^k steps of which at most `points` cover the steps.
int BucketBits(std::int64_t first, std::int64_t last, std::size_t points) {
  int k = 0;
  while (static_cast<std::uint64_t>(last >> k) - static_cast<std::uint64_t>(first >> k) >= points) ++k;
  return k;
}

struct Curve {
  std::vector<std::int64_t> step, last;
  std::vector<double> lo, hi, mean;
  std::vector<std::uint8_t> flags;
};

Curve Bucketed(std::span<const Point> points, int k) {
  Curve curve;
  double sum = 0;
  std::size_t finite = 0;
  const auto close = [&] {
    if (!curve.mean.empty() && finite != 0) curve.mean.back() = sum / static_cast<double>(finite);
  };
  for (const Point& point : points) {
    if (curve.step.empty() || curve.step.back() >> k != point.step >> k) {
      close();
      sum = 0;
      finite = 0;
      curve.step.push_back(point.step);
      curve.last.push_back(point.step);
      curve.lo.push_back(kNaN);
      curve.hi.push_back(kNaN);
      curve.mean.push_back(kNaN);
      curve.flags.push_back(0);
    } else {
      curve.last.back() = point.step;
      curve.flags.back() |= kSeveral;
    }
    if (point.bad) curve.flags.back() |= kNotFinite;
    if (!std::isfinite(point.value)) continue;
    curve.lo.back() = std::fmin(curve.lo.back(), point.value);
    curve.hi.back() = std::fmax(curve.hi.back(), point.value);
    sum += point.value;
    ++finite;
  }
  close();
  return curve;
}

}  // namespace

Result<std::optional<query::Mode>> ModeIn(const Request& request) {
  const std::string_view text = request.Parameter("mode");
  if (text.empty()) return std::optional<query::Mode>();
  LUFF_ASSIGN_OR_RETURN(const query::Mode mode, query::ParseMode(text));
  return std::optional<query::Mode>(mode);
}

Result<CurvesQuestion> CurvesAsked(const Request& request) {
  constexpr std::size_t kMaxCurves = 64;
  CurvesQuestion asked;
  LUFF_ASSIGN_OR_RETURN(asked.tensors, NumbersIn<query::TensorId>(request.Parameter("tensor"), ','));
  if (asked.tensors.empty() || asked.tensors.size() > kMaxCurves)
    return InvalidArgument(fmt::format("expected 1 to {} tensors: tensor=3,7", kMaxCurves));
  if (const std::string_view name = request.Parameter("stat"); !name.empty()) {
    const auto statistic = FindStatistic(name);
    if (!statistic || !statistic->curve)
      return NotFound("there is no curve of such a statistic; the run's document names them (statistics)");
    asked.each.statistic = statistic->statistic;
  }
  LUFF_ASSIGN_OR_RETURN(asked.each.mode, ModeIn(request));
  if (!request.Parameter("worker").empty()) {
    LUFF_ASSIGN_OR_RETURN(asked.each.worker, NumberIn<std::uint32_t>(request, "worker", 0));
  }
  LUFF_ASSIGN_OR_RETURN(asked.each.from, NumberIn<std::int64_t>(request, "from", 0));
  LUFF_ASSIGN_OR_RETURN(asked.each.to, NumberIn<std::int64_t>(request, "to", INT64_MAX));
  return asked;
}

query::Mode ModeShown(const query::Trial& trial, query::TensorId id) {
  using query::Mode;
  for (const Mode mode : {Mode::kTrain, Mode::kEval, Mode::kPredict}) {
    const auto steps = trial.TensorSteps(id, mode);
    if (steps.ok() && !steps->empty()) return mode;
  }
  return Mode::kGlobal;
}

Result<std::vector<double>> MeansOf(const query::Trial& trial, query::TensorId tensor, Statistic statistic,
                                    query::Mode mode, std::int64_t bucket_steps, std::size_t columns) {
  std::vector<double> sum(columns, 0);
  if (statistic == Statistic::kUpdateRatio) return std::vector<double>(columns, kNaN);
  LUFF_ASSIGN_OR_RETURN(const auto rows, trial.SharedSummaries(tensor, mode, std::nullopt));
  std::vector<std::uint64_t> finite(columns, 0);
  for (std::size_t i = 0; i < rows->count.size(); ++i) {
    const double value = FiniteValueOf(*rows, i, statistic);
    const std::int64_t step = rows->global_step[i];
    const auto column = static_cast<std::size_t>(std::max<std::int64_t>(step, 0) / bucket_steps);
    if (!std::isfinite(value) || step < 0 || column >= columns) continue;
    sum[column] += value;
    ++finite[column];
  }
  for (std::size_t i = 0; i < columns; ++i)
    sum[i] = finite[i] == 0 ? kNaN : sum[i] / static_cast<double>(finite[i]);
  return sum;
}

Result<bool> AddCurve(const query::Trial& trial, const CurveQuestion& q, Payload* payload) {
  if (q.tensor >= trial.tensor_count())
    return NotFound(fmt::format("there is no tensor {}; the run has {}", q.tensor, trial.tensor_count()));
  if (q.points == 0) return InvalidArgument("points is 0, expected at least 1");
  if (q.from > q.to || q.from < 0) return InvalidArgument("from must be at least 0 and at most to");
  const query::Mode mode = q.mode ? *q.mode : ModeShown(trial, q.tensor);
  LUFF_ASSIGN_OR_RETURN(const auto all, PointsOf(trial, q, mode));
  const auto begin = std::ranges::lower_bound(all, q.from, {}, &Point::step);
  const auto end = std::ranges::upper_bound(all, q.to, {}, &Point::step);
  const std::span<const Point> points(begin, begin < end ? end : begin);
  const int k = points.empty() ? 0 : BucketBits(points.front().step, points.back().step, q.points);
  const Curve curve = Bucketed(points, k);
  const std::string id = std::to_string(q.tensor);
  const bool exact = std::ranges::none_of(curve.flags, [](std::uint8_t f) { return (f & kSeveral) != 0; });
  const auto add = [&](const char* name, const std::vector<double>& values) {
    if (q.single)
      payload->Add(id + name, std::vector<float>(values.begin(), values.end()));
    else
      payload->Add(id + name, values);
  };
  payload->Add(id + ".step", curve.step);
  if (!q.brief || !exact) {
    payload->Add(id + ".last", curve.last);
    add(".lo", curve.lo);
    add(".hi", curve.hi);
  }
  add(".mean", curve.mean);
  payload->Add(id + ".flags", curve.flags);
  payload->Tell(id + ".name", trial.tensor(q.tensor).name);
  payload->Tell(id + ".mode", std::string(query::ModeName(mode)));
  for (const NamedStatistic& one : kStatistics) {
    if (one.statistic == q.statistic) payload->Tell(id + ".stat", std::string(one.name));
  }
  payload->Tell(id + ".exact", exact ? "1" : "0");
  payload->Tell(id + ".steps", std::to_string(std::uint64_t{1} << k));
  return exact;
}

}  // namespace luff::server
