#include "server/boosting.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "server/boosting_scores.h"

namespace luff::server {
namespace {

using Json = nlohmann::ordered_json;
using query::Mode;
using query::TensorId;
using query::Trial;

constexpr std::size_t kMaxTrainings = 4, kMaxFeatures = 15, kMaxClasses = 30, kMaxRounds = 60;
constexpr std::size_t kLabelBins = 10, kColumns = 30, kMaxCharts = 12, kMaxMetricCurves = 10,
                      kMaxLabels = 100;
constexpr std::size_t kMostPoints = 400;  // of a curve: no screen shows more

// What else has names with a dash in them: names of features are anything.
constexpr const char* kFamilies[] = {"feature_importance/", "average_shap/", "full_shap/", "trees/",
                                     "hyperparameters/"};

enum class Kind { kBinary, kClasses, kRegression, kOther };

using Points = std::vector<std::pair<double, double>>;  // (round, value)
struct RoundCurve {
  std::string name;
  Points points;
};

// One training of the run; the names of its tensors begin with `prefix`.
struct Training {
  std::string prefix;
  std::string objective;  // "" if unknown
};

struct Prediction {
  std::int64_t step = 0;
  std::vector<double> truth, guess, score;  // guess: class or value; score: of binary classes
  std::size_t classes = 0;
};

std::vector<Training> TrainingsOf(const Trial& trial) {
  std::vector<Training> trainings;
  const Json document = TryParseOrderedJson(trial.Document("boosting"));
  if (document.is_object() && document.contains("trainings") && document["trainings"].is_array()) {
    for (const Json& json : document["trainings"]) {
      if (!json.is_object() || !json.contains("prefix") || !json["prefix"].is_string()) continue;
      Training training;
      training.prefix = json["prefix"].get<std::string>();
      if (std::any_of(trainings.begin(), trainings.end(),
                      [&](const Training& other) { return other.prefix == training.prefix; }))
        continue;
      if (json.contains("parameters") && json["parameters"].is_object())
        training.objective = json["parameters"].value("objective", Json()).is_string()
                                 ? json["parameters"]["objective"].get<std::string>()
                                 : "";
      trainings.push_back(std::move(training));
    }
  }
  if (trainings.empty()) {  // recorded by another hook
    const bool boosted = trial.TensorNamed("trees/Node") || trial.TensorNamed("trees/Feature");
    bool importance = false;
    for (std::size_t id = 0; id < trial.tensor_count() && !importance; ++id)
      importance = trial.tensor(static_cast<TensorId>(id)).name.starts_with("feature_importance/");
    if (boosted || importance) trainings.emplace_back();
  }
  return trainings;
}

std::optional<std::vector<double>> NumbersAt(const Trial& trial, TensorId id, std::int64_t step,
                                             std::vector<std::int64_t>* shape = nullptr) {
  const Result<query::Value> value = trial.ReadValue(id, step, Mode::kGlobal);
  if (!value.ok()) return std::nullopt;
  const std::size_t size = DTypeSize(value->dtype);
  if (size == 0) return std::nullopt;
  std::vector<double> numbers(value->bytes.size() / size);
  ToFloat64(value->dtype, value->bytes.data(), numbers.size(), numbers.data());
  if (shape != nullptr) *shape = value->shape;
  return numbers;
}

std::vector<std::int64_t> ValueSteps(const Trial& trial, std::string_view name) {
  const auto id = trial.FindTensor(name);
  if (!id.ok()) return {};
  auto steps = trial.ValueSteps(id.value(), Mode::kGlobal);
  return steps.ok() ? std::move(steps).value() : std::vector<std::int64_t>{};
}

// Returns a number over the rounds, from scalars or else from values of one element.
Points NumbersOver(const Trial& trial, TensorId id) {
  Points points;
  if (const auto scalars = trial.Scalars(id, Mode::kGlobal); scalars.ok()) {
    for (const auto& scalar : scalars.value())
      points.emplace_back(static_cast<double>(scalar.mode_step), scalar.value);
  }
  if (!points.empty()) return points;
  if (const auto steps = trial.ValueSteps(id, Mode::kGlobal); steps.ok()) {
    for (const std::int64_t step : steps.value()) {
      const auto numbers = NumbersAt(trial, id, step);
      if (numbers && numbers->size() == 1) points.emplace_back(static_cast<double>(step), numbers->front());
    }
  }
  return points;
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

Json CurvesJson(const std::vector<RoundCurve>& curves) {
  Json list = Json::array();
  for (const RoundCurve& curve : curves) {
    Json points = Json::array();
    for (const auto& [x, y] : Thinned(curve.points)) points.push_back({x, y});
    list.push_back({{"name", curve.name}, {"points", std::move(points)}});
  }
  return list;
}

Json BinsJson(const EqualBins& bins) {
  return {{"low", bins.low}, {"high", bins.high}, {"counts", bins.counts}};
}

// ---- Losses and importance ----

Json MetricsJson(const Trial& trial, const std::string& prefix) {
  std::map<std::string, std::vector<RoundCurve>> metrics;  // by metric
  for (std::size_t n = 0; n < trial.tensor_count(); ++n) {
    const auto id = static_cast<TensorId>(n);
    const std::string& full = trial.tensor(id).name;
    if (!full.starts_with(prefix)) continue;
    const std::string name = full.substr(prefix.size());
    const std::size_t dash = name.find('-');
    if (dash == std::string::npos || dash == 0) continue;
    if (std::ranges::any_of(kFamilies, [&](const char* family) { return name.starts_with(family); }))
      continue;
    if (name.ends_with("-std")) continue;
    std::string metric = name.substr(dash + 1);
    if (metrics.size() == kMaxCharts && !metrics.contains(metric)) continue;
    Points points = NumbersOver(trial, id);
    if (points.size() < 2) continue;
    std::vector<RoundCurve>& curves = metrics[std::move(metric)];
    if (curves.size() < kMaxMetricCurves) curves.push_back({name.substr(0, dash), std::move(points)});
  }
  Json list = Json::array();
  for (auto& [metric, curves] : metrics) {
    std::ranges::sort(curves, [](const RoundCurve& a, const RoundCurve& b) {
      const bool first = a.name.starts_with("train"), second = b.name.starts_with("train");
      return first != second ? first : a.name < b.name;
    });
    list.push_back({{"name", metric}, {"curves", CurvesJson(curves)}});
  }
  return list;
}

Json ImportanceJson(const Trial& trial, const std::string& prefix) {
  std::map<std::string, std::vector<std::pair<std::string, double>>> types;
  const std::string lead = prefix + "feature_importance/";
  for (std::size_t n = 0; n < trial.tensor_count(); ++n) {
    const auto id = static_cast<TensorId>(n);
    const std::string& name = trial.tensor(id).name;
    if (!name.starts_with(lead)) continue;
    const std::size_t slash = name.find('/', lead.size());
    if (slash == std::string::npos) continue;
    const Points points = NumbersOver(trial, id);
    if (points.empty()) continue;
    types[name.substr(lead.size(), slash - lead.size())].emplace_back(name.substr(slash + 1),
                                                                      points.back().second);
  }
  Json list = Json::array();
  for (const char* type : {"weight", "gain", "cover", "total_gain", "total_cover"}) {
    const auto found = types.find(type);
    if (found == types.end()) continue;
    auto features = found->second;
    const auto rank = [](double value) { return std::isnan(value) ? -HUGE_VAL : value; };
    std::ranges::sort(features, [&](const auto& a, const auto& b) {
      return rank(a.second) != rank(b.second) ? rank(a.second) > rank(b.second) : a.first < b.first;
    });
    const std::size_t all = features.size();
    if (features.size() > kMaxFeatures) features.resize(kMaxFeatures);
    Json named = Json::array();
    for (const auto& [name, value] : features) named.push_back({{"name", name}, {"value", value}});
    list.push_back({{"type", type}, {"all", all}, {"features", std::move(named)}});
  }
  return list;
}

// ---- Predictions ----

bool AreWhole(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double value) {
    return std::isfinite(value) && value == std::floor(value) && value >= 0;
  });
}

Kind KindOf(const std::string& objective, const std::vector<double>& labels, bool several_columns) {
  if (objective.starts_with("multi:") || several_columns) return Kind::kClasses;
  if (objective.starts_with("binary:")) return Kind::kBinary;
  if (objective.starts_with("reg:") || objective.starts_with("count:")) return Kind::kRegression;
  if (objective.starts_with("rank:") || objective.starts_with("survival:")) return Kind::kOther;
  // LightGBM's names
  if (objective == "binary") return Kind::kBinary;
  if (objective == "lambdarank" || objective == "rank_xendcg") return Kind::kOther;
  for (const char* name : {"regression", "huber", "fair", "poisson", "quantile", "mape", "gamma", "tweedie"})
    if (objective.starts_with(name)) return Kind::kRegression;
  if (!AreWhole(labels)) return Kind::kRegression;
  const std::set<double> distinct(labels.begin(), labels.end());
  return distinct.size() == 2 && *distinct.rbegin() == 1 ? Kind::kBinary : Kind::kRegression;
}

std::optional<Prediction> PredictionAt(const Trial& trial, const Training& training, std::int64_t step,
                                       const std::vector<double>& labels, Kind kind) {
  const auto id = trial.FindTensor(training.prefix + "predictions");
  if (!id.ok()) return std::nullopt;
  std::vector<std::int64_t> shape;
  const auto values = NumbersAt(trial, id.value(), step, &shape);
  if (!values || labels.empty() || values->size() % labels.size() != 0 || values->empty())
    return std::nullopt;
  Prediction prediction;
  prediction.step = step;
  prediction.truth = labels;
  const std::size_t columns = values->size() / labels.size();
  if (kind == Kind::kRegression) {
    if (columns != 1) return std::nullopt;
    prediction.guess = *values;
    return prediction;
  }
  if (columns > 1) {
    prediction.classes = columns;
    for (std::size_t row = 0; row < labels.size(); ++row) {
      const auto begin = values->begin() + static_cast<std::ptrdiff_t>(row * columns);
      prediction.guess.push_back(
          static_cast<double>(std::max_element(begin, begin + static_cast<std::ptrdiff_t>(columns)) - begin));
    }
    return prediction;
  }
  if (kind == Kind::kBinary) {
    const double middle = training.objective == "binary:logitraw" ? 0 : 0.5;
    prediction.classes = 2;
    prediction.score = *values;
    for (const double value : *values) prediction.guess.push_back(value > middle ? 1 : 0);
    return prediction;
  }
  prediction.guess = *values;
  double most = 0;
  for (const double value : labels) most = std::max(most, value);
  for (const double value : *values) most = std::isfinite(value) ? std::max(most, value) : most;
  prediction.classes = most < 1e4 ? static_cast<std::size_t>(most) + 1 : 0;
  return prediction;
}

Json LabelsJson(const std::vector<double>& labels, Kind kind) {
  Json json{{"rows", labels.size()}};
  if (kind != Kind::kRegression && AreWhole(labels)) {
    std::map<double, std::uint64_t> counts;
    for (const double label : labels) ++counts[label];
    if (counts.size() <= kMaxLabels) {
      json["classes"] = Json::array();
      for (const auto& [label, count] : counts)
        json["classes"].push_back({{"label", label}, {"rows", count}});
      return json;
    }
  }
  json["bins"] = BinsJson(CountInBins(labels, kColumns));
  return json;
}

Json ScoresJson(const Scores& scores) {
  const auto of = [](const ClassScores& one) {
    return Json{{"precision", one.precision}, {"recall", one.recall}, {"f1", one.f1}, {"rows", one.support}};
  };
  Json json{{"accuracy", scores.accuracy},
            {"micro", of(scores.micro)},
            {"macro", of(scores.macro)},
            {"weighted", of(scores.weighted)},
            {"classes", Json::array()}};
  for (const ClassScores& one : scores.classes) json["classes"].push_back(of(one));
  return json;
}

// Returns at most `most` of the steps, evenly spread, including the first and the last.
std::vector<std::int64_t> Some(const std::vector<std::int64_t>& steps, std::size_t most) {
  if (steps.size() <= most) return steps;
  std::vector<std::int64_t> some;
  for (std::size_t i = 0; i < most; ++i) some.push_back(steps[i * (steps.size() - 1) / (most - 1)]);
  return some;
}

struct Recorded {
  std::vector<Prediction> rounds;  // ascending, the last saved one included
  std::vector<double> labels;      // the newest that were saved
  Kind kind = Kind::kOther;
};

Recorded Read(const Trial& trial, const Training& training) {
  Recorded recorded;
  const auto labels_id = trial.FindTensor(training.prefix + "labels");
  const std::vector<std::int64_t> label_steps = ValueSteps(trial, training.prefix + "labels");
  if (!labels_id.ok() || label_steps.empty()) return recorded;
  std::optional<std::vector<double>> labels = NumbersAt(trial, labels_id.value(), label_steps.back());
  if (!labels) return recorded;
  recorded.labels = std::move(*labels);
  const std::vector<std::int64_t> steps = ValueSteps(trial, training.prefix + "predictions");
  std::vector<std::int64_t> shape;
  if (!steps.empty()) {
    const auto id = trial.FindTensor(training.prefix + "predictions");
    if (id.ok()) static_cast<void>(NumbersAt(trial, id.value(), steps.back(), &shape));
  }
  recorded.kind = KindOf(training.objective, recorded.labels, shape.size() > 1 && shape[1] > 1);
  for (const std::int64_t step : Some(steps, kMaxRounds)) {
    // Uses the labels saved at the same round if there are any, else the newest.
    std::optional<std::vector<double>> own;
    if (std::binary_search(label_steps.begin(), label_steps.end(), step))
      own = NumbersAt(trial, labels_id.value(), step);
    auto prediction = PredictionAt(trial, training, step, own ? *own : recorded.labels, recorded.kind);
    if (prediction) recorded.rounds.push_back(std::move(*prediction));
  }
  return recorded;
}

double RoundOf(const Trial& trial, std::int64_t step) {
  const auto info = trial.FindStep(step, Mode::kGlobal);
  return static_cast<double>(info.ok() ? info->mode_step : step);
}

Json ClassesJson(const Trial& trial, const Recorded& recorded) {
  const Prediction& last = recorded.rounds.back();
  Json json{{"round", RoundOf(trial, last.step)}, {"rows", last.truth.size()}, {"count", last.classes}};
  if (last.classes < 2 || last.classes > kMaxClasses) return json;
  const ConfusionMatrix matrix = Confusion(last.truth, last.guess, last.classes);
  json["matrix"] = matrix;
  json["scores"] = ScoresJson(ScoresOf(matrix));
  std::vector<RoundCurve> curves(std::min<std::size_t>(last.classes, kLabelBins));
  for (std::size_t c = 0; c < curves.size(); ++c) curves[c].name = fmt::format("class {}", c);
  for (const Prediction& one : recorded.rounds) {
    const Scores scores = ScoresOf(Confusion(one.truth, one.guess, last.classes));
    for (std::size_t c = 0; c < curves.size(); ++c) {
      if (scores.classes[c].support > 0)
        curves[c].points.emplace_back(RoundOf(trial, one.step), scores.classes[c].recall);
    }
  }
  json["recall"] = CurvesJson(curves);
  if (recorded.kind == Kind::kBinary) {
    const Roc roc = RocOf(last.truth, last.score);
    json["roc"] = {{"area", roc.area}, {"points", CurvesJson({{"", roc.points}})[0]["points"]}};
  }
  return json;
}

Json RegressionJson(const Trial& trial, const Recorded& recorded) {
  const Prediction& last = recorded.rounds.back();
  std::vector<double> residuals;
  double squares = 0, absolute = 0;
  for (std::size_t i = 0; i < last.truth.size(); ++i) {
    const double residual = last.truth[i] - last.guess[i];
    if (!std::isfinite(residual)) continue;
    residuals.push_back(residual);
    squares += residual * residual;
    absolute += std::abs(residual);
  }
  Json json{{"round", RoundOf(trial, last.step)}, {"rows", residuals.size()}};
  if (residuals.empty()) return json;
  const double count = static_cast<double>(residuals.size());
  json["root_mean_square"] = std::sqrt(squares / count);
  json["mean_absolute"] = absolute / count;
  json["residuals"] = BinsJson(CountInBins(residuals, kColumns));
  const EqualBins range = CountInBins(last.truth, kLabelBins);
  const double width =
      (range.high - range.low) / static_cast<double>(std::max<std::size_t>(range.counts.size(), 1));
  std::vector<RoundCurve> curves(range.counts.size());
  for (std::size_t b = 0; b < curves.size(); ++b) {
    curves[b].name = fmt::format("{:.3g} to {:.3g}", range.low + width * static_cast<double>(b),
                                 range.low + width * static_cast<double>(b + 1));
  }
  for (const Prediction& one : recorded.rounds) {
    const std::vector<double> errors = ErrorByBin(one.truth, one.guess, range.low, range.high, curves.size());
    for (std::size_t b = 0; b < curves.size(); ++b) {
      if (std::isfinite(errors[b])) curves[b].points.emplace_back(RoundOf(trial, one.step), errors[b]);
    }
  }
  std::erase_if(curves, [](const RoundCurve& curve) { return curve.points.empty(); });
  json["errors"] = CurvesJson(curves);
  return json;
}

Json TrainingJson(const Trial& trial, const Training& training) {
  const Recorded recorded = Read(trial, training);
  Json json{{"prefix", training.prefix}, {"objective", training.objective}};
  if (!recorded.labels.empty()) json["labels"] = LabelsJson(recorded.labels, recorded.kind);
  json["metrics"] = MetricsJson(trial, training.prefix);
  json["importance"] = ImportanceJson(trial, training.prefix);
  json["predicted"] = !recorded.rounds.empty();
  if (recorded.rounds.empty() || recorded.kind == Kind::kOther) return json;
  if (recorded.kind == Kind::kRegression)
    json["regression"] = RegressionJson(trial, recorded);
  else
    json["classes"] = ClassesJson(trial, recorded);
  return json;
}

}  // namespace

bool IsBoosted(const Trial& trial) { return !TrainingsOf(trial).empty(); }

nlohmann::ordered_json BoostingOf(const Trial& trial) {
  std::vector<Training> trainings = TrainingsOf(trial);
  Json json{{"all", trainings.size()}, {"trainings", Json::array()}};
  trainings.resize(std::min(trainings.size(), kMaxTrainings));
  for (const Training& training : trainings) json["trainings"].push_back(TrainingJson(trial, training));
  return json;
}

}  // namespace luff::server
