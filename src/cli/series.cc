#include "cli/series.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "catalog/card.h"
#include "cli/reading.h"

namespace luff::cli {
namespace {

constexpr std::size_t kMaxLosses = 64;
constexpr std::size_t kBefore = 40, kAfter = 23;  // values around an onset: as many as a finding may hold

Series EmptySeries(const query::Trial& trial, query::TensorId id) {
  const auto& info = trial.tensor(id);
  Series series;
  series.name = info.role == query::Role::kLoss ? info.name : info.name + " (l2 norm)";
  return series;
}

/// What the run holds of a tensor around the onset; no points if nothing was recorded before it.
FindingCurve Around(const query::Trial& trial, query::TensorId id, query::Mode mode,
                    const rules::Finding& finding) {
  const auto all = SeriesOf(trial, id, mode, finding.worker, nullptr);
  if (!all.ok() || all->front().step.empty()) return {};
  const Series& series = all->front();
  const auto onset = std::lower_bound(series.step.begin(), series.step.end(), finding.since_step);
  const auto at = static_cast<std::size_t>(onset - series.step.begin());
  if (at == 0) return {};
  FindingCurve curve{series.name, {}};
  const std::size_t end = std::min(series.step.size(), at + kAfter + 1);
  for (std::size_t i = at > kBefore ? at - kBefore : 0; i < end; ++i)
    curve.points.emplace_back(series.step[i], series.bad[i] ? NAN : series.value[i]);
  return curve;
}

/// The loss with the most steps, of the first that there are.
std::optional<query::TensorId> MainLoss(const query::Trial& trial, query::Mode mode) {
  std::optional<query::TensorId> main;
  std::size_t most = 0, looked = 0;
  for (query::TensorId id = 0; id < trial.tensor_count() && looked < kMaxLosses; ++id) {
    if (trial.tensor(id).role != query::Role::kLoss) continue;
    ++looked;
    const auto steps = trial.TensorSteps(id, mode);
    if (steps.ok() && steps->size() > most) main = id, most = steps->size();
  }
  return main;
}

}  // namespace

TrainAxis::TrainAxis(const query::Trial& trial) {
  for (std::size_t n = 0; n < trial.step_count(); ++n) {
    const query::StepInfo info = trial.step_at(n);
    if (info.mode == query::Mode::kTrain && !info.superseded) trained_[info.global_step] = info.mode_step;
  }
}

std::int64_t TrainAxis::Place(std::int64_t global_step) const {
  const auto next = trained_.upper_bound(global_step);
  if (next == trained_.begin()) return trained_.empty() ? global_step : 0;
  const auto& [last, mode_step] = *std::prev(next);
  return last == global_step ? mode_step : mode_step + 1;
}

Result<std::vector<Series>> SeriesOf(const query::Trial& trial, query::TensorId id, query::Mode mode,
                                     std::optional<std::uint32_t> worker, const TrainAxis* axis) {
  const std::string& name = trial.tensor(id).name;
  const bool loss = trial.tensor(id).role == query::Role::kLoss;
  std::map<query::Mode, std::vector<query::ScalarAt>> modes;
  LUFF_ASSIGN_OR_RETURN(const auto found, trial.Scalars(id, mode, worker));
  for (const auto& scalar : found) modes[scalar.mode].push_back(scalar);
  std::vector<Series> all;
  for (const auto& [of, scalars] : modes) {
    const bool means = loss && axis != nullptr && of == query::Mode::kEval;
    Series series;
    for (const auto& scalar : means ? catalog::MeansOfEvaluations(scalars) : scalars) {
      series.step.push_back(axis != nullptr ? axis->Place(scalar.global_step) : StepAs(mode, scalar));
      series.value.push_back(scalar.value);
      series.bad.push_back(!std::isfinite(scalar.value));
    }
    series.name = modes.size() > 1 ? fmt::format("{} ({}{})", name, query::ModeName(of),
                                                 means ? ", mean of each evaluation" : "")
                                   : name;
    all.push_back(std::move(series));
  }
  if (!all.empty()) return all;
  LUFF_ASSIGN_OR_RETURN(const auto columns, trial.Summaries(id, mode, worker));
  Series series = EmptySeries(trial, id);
  const auto& step = StepAs(mode, columns);
  for (const std::int64_t one : step) series.step.push_back(axis != nullptr ? axis->Place(one) : one);
  for (std::size_t i = 0; i < columns.count.size(); ++i) {
    series.value.push_back(NothingFinite(columns, i) ? NAN : (loss ? columns.mean : columns.l2)[i]);
    series.bad.push_back(columns.nan_count[i] + columns.inf_count[i] != 0);
  }
  all.push_back(std::move(series));
  return all;
}

FindingCurve CurveOf(const query::Trial& trial, const rules::Finding& finding) {
  const FindingCurve own{"", finding.series};
  if (!own.points.empty() && (own.points.front().first < finding.since_step || finding.since_step == 0))
    return own;
  const auto id = trial.TensorNamed(finding.tensor);
  const auto mode = query::ParseMode(finding.mode);
  if (!id || !mode.ok()) return own;
  FindingCurve curve = Around(trial, *id, *mode, finding);
  // A loss that a script made for this step alone has no earlier values, but the training's loss has.
  if (curve.points.empty() && trial.tensor(*id).role == query::Role::kLoss) {
    if (const auto main = MainLoss(trial, *mode)) curve = Around(trial, *main, *mode, finding);
  }
  return curve.points.empty() ? own : curve;
}

}  // namespace luff::cli
