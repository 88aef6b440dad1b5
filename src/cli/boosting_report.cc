#include "cli/boosting_report.h"

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
#include "base/text_escape.h"
#include "cli/boosting_scores.h"
#include "cli/charts.h"

namespace luff::cli {
namespace {

using BoostingJson = nlohmann::json;
using query::Mode;
using query::TensorId;
using query::Trial;

constexpr std::size_t kMaxTrainings = 4, kMaxFeatures = 15, kMaxClasses = 30, kMaxRounds = 60;
constexpr std::size_t kBins = 10, kColumns = 30, kMaxCharts = 12;

enum class Kind { kBinary, kClasses, kRegression, kOther };

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
  const BoostingJson document = TryParseJson(trial.Document("boosting"));
  if (document.is_object() && document.contains("trainings") && document["trainings"].is_array()) {
    for (const BoostingJson& json : document["trainings"]) {
      if (!json.is_object() || !json.contains("prefix") || !json["prefix"].is_string()) continue;
      Training training;
      training.prefix = json["prefix"].get<std::string>();
      if (std::any_of(trainings.begin(), trainings.end(),
                      [&](const Training& other) { return other.prefix == training.prefix; }))
        continue;
      if (json.contains("parameters") && json["parameters"].is_object())
        training.objective = json["parameters"].value("objective", BoostingJson()).is_string()
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
std::vector<std::pair<double, double>> NumbersOver(const Trial& trial, TensorId id) {
  std::vector<std::pair<double, double>> points;
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

std::string Heading(const char* text) { return fmt::format("<h2>{}</h2>\n", text); }
std::string Note(const std::string& text) {
  return fmt::format("<p class=\"quiet\">{}</p>\n", HtmlEscaped(text));
}

// ---- Losses and importance ----

std::string Losses(const Trial& trial, const std::string& prefix) {
  std::map<std::string, std::vector<Curve>> metrics;  // by metric
  for (std::size_t n = 0; n < trial.tensor_count(); ++n) {
    const auto id = static_cast<TensorId>(n);
    const std::string& full = trial.tensor(id).name;
    if (!full.starts_with(prefix)) continue;
    const std::string name = full.substr(prefix.size());
    const std::size_t dash = name.find('-');
    if (dash == std::string::npos || dash == 0 || name.find('/') != std::string::npos) continue;
    if (name.ends_with("-std")) continue;
    std::vector<std::pair<double, double>> points = NumbersOver(trial, id);
    if (points.size() < 2) continue;
    metrics[name.substr(dash + 1)].push_back({name.substr(0, dash), std::move(points)});
  }
  std::string html;
  std::size_t shown = 0;
  for (auto& [metric, curves] : metrics) {
    if (++shown > kMaxCharts) break;
    std::sort(curves.begin(), curves.end(), [](const Curve& a, const Curve& b) {
      const bool first = a.name.starts_with("train"), second = b.name.starts_with("train");
      return first != second ? first : a.name < b.name;
    });
    html += Note(metric) +
            CurvesSvg({.title = metric + " over the rounds", .x_name = "round", .curves = std::move(curves)});
  }
  return html.empty() ? html : Heading("Loss and metrics over the rounds") + html;
}

std::string Importance(const Trial& trial, const std::string& prefix) {
  std::map<std::string, std::vector<std::pair<std::string, double>>> types;
  const std::string lead = prefix + "feature_importance/";
  for (std::size_t n = 0; n < trial.tensor_count(); ++n) {
    const auto id = static_cast<TensorId>(n);
    const std::string& name = trial.tensor(id).name;
    if (!name.starts_with(lead)) continue;
    const std::size_t slash = name.find('/', lead.size());
    if (slash == std::string::npos) continue;
    const auto points = NumbersOver(trial, id);
    if (points.empty()) continue;
    types[name.substr(lead.size(), slash - lead.size())].emplace_back(name.substr(slash + 1),
                                                                      points.back().second);
  }
  std::string html;
  for (const auto& [type, text] :
       {std::pair("weight", "weight: share of all splits"), std::pair("gain", "gain: mean gain of a split"),
        std::pair("cover", "coverage: mean cover of a split"), std::pair("total_gain", "total gain"),
        std::pair("total_cover", "total coverage")}) {
    const auto found = types.find(type);
    if (found == types.end()) continue;
    auto bars = found->second;
    std::sort(bars.begin(), bars.end(), [](const auto& a, const auto& b) {
      return a.second != b.second ? a.second > b.second : a.first < b.first;
    });
    const std::size_t all = bars.size();
    if (bars.size() > kMaxFeatures) bars.resize(kMaxFeatures);
    html += Note(all > bars.size() ? fmt::format("{} (the first {} of {})", text, bars.size(), all)
                                   : std::string(text)) +
            BarsSvg(fmt::format("feature importance by {}", type), bars);
  }
  return html.empty() ? html : Heading("Feature importance") + html;
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

std::string Labels(const std::vector<double>& labels, Kind kind) {
  if (kind != Kind::kRegression && AreWhole(labels)) {
    std::map<std::int64_t, std::uint64_t> counts;
    for (const double label : labels) ++counts[static_cast<std::int64_t>(label)];
    ColumnChart chart;
    chart.title = "rows of each class";
    for (const auto& [label, count] : counts) {
      chart.names.push_back(std::to_string(label));
      chart.heights.push_back(static_cast<double>(count));
    }
    return ColumnsSvg(chart);
  }
  const Histogram histogram = HistogramOf(labels, kColumns);
  ColumnChart chart;
  chart.title = "rows by label";
  chart.low = histogram.low;
  chart.high = histogram.low + histogram.width * static_cast<double>(histogram.counts.size());
  for (const auto count : histogram.counts) chart.heights.push_back(static_cast<double>(count));
  return ColumnsSvg(chart);
}

std::string Matrix(const ConfusionMatrix& matrix) {
  std::string html = "<div style=\"overflow-x:auto\"><table class=\"matrix\"><tr><th>true \\ predicted</th>";
  for (std::size_t c = 0; c < matrix.size(); ++c) html += fmt::format("<th>{}</th>", c);
  html += "</tr>";
  for (std::size_t row = 0; row < matrix.size(); ++row) {
    double sum = 0;
    for (const auto count : matrix[row]) sum += static_cast<double>(count);
    html += fmt::format("<tr><th>{}</th>", row);
    for (std::size_t c = 0; c < matrix.size(); ++c) {
      const double share = sum > 0 ? static_cast<double>(matrix[row][c]) / sum : 0;
      html += fmt::format("<td style=\"background:rgba({},{:.2f})\">{}</td>",
                          row == c ? "16,185,129" : "239,68,68", 0.7 * share, matrix[row][c]);
    }
    html += "</tr>";
  }
  return html + "</table></div>\n";
}

std::string ScoreTable(const Scores& scores) {
  std::string html =
      "<div style=\"overflow-x:auto\"><table "
      "class=\"matrix\"><tr><th>class</th><th>precision</th><th>recall</th>"
      "<th>F1</th><th>rows</th></tr>";
  const auto row = [&](const std::string& name, const ClassScores& of) {
    html += fmt::format("<tr><th>{}</th><td>{:.4f}</td><td>{:.4f}</td><td>{:.4f}</td><td>{}</td></tr>", name,
                        of.precision, of.recall, of.f1, of.support);
  };
  for (std::size_t c = 0; c < scores.classes.size(); ++c) row(std::to_string(c), scores.classes[c]);
  row("micro average", scores.micro);
  row("macro average", scores.macro);
  row("weighted average", scores.weighted);
  return html + fmt::format("</table></div><p>accuracy {:.4f}</p>\n", scores.accuracy);
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

std::string Classification(const Trial& trial, const Recorded& recorded) {
  const Prediction& last = recorded.rounds.back();
  if (last.classes < 2) return Note("the predictions are no classes");
  if (last.classes > kMaxClasses)
    return Note(fmt::format("{} classes are too many for a confusion matrix", last.classes));
  const ConfusionMatrix matrix = Confusion(last.truth, last.guess, last.classes);
  const double round = RoundOf(trial, last.step);
  std::string html = Heading("Confusion matrix") +
                     Note(fmt::format("round {:g}, {} rows", round, last.truth.size())) + Matrix(matrix) +
                     Heading("Precision, recall and F1") + ScoreTable(ScoresOf(matrix));
  std::vector<Curve> curves(std::min<std::size_t>(last.classes, kBins));
  for (std::size_t c = 0; c < curves.size(); ++c) curves[c].name = fmt::format("class {}", c);
  for (const Prediction& one : recorded.rounds) {
    const Scores scores = ScoresOf(Confusion(one.truth, one.guess, last.classes));
    for (std::size_t c = 0; c < curves.size(); ++c)
      if (scores.classes[c].support > 0)
        curves[c].points.emplace_back(RoundOf(trial, one.step), scores.classes[c].recall);
  }
  const std::string over = CurvesSvg(
      {.title = "accuracy of each class over the rounds", .x_name = "round", .curves = std::move(curves)});
  html += Heading("Accuracy of each class over the rounds");
  html +=
      over.empty()
          ? Note("predictions were saved in one round only")
          : Note("share of the rows of a class that are predicted so: the diagonal of the confusion matrix") +
                over;
  if (recorded.kind == Kind::kBinary) {
    const Roc roc = RocOf(last.truth, last.score);
    html += Heading("ROC curve");
    if (roc.points.empty()) {
      html += Note("all rows are of one class");
    } else {
      html += fmt::format("<p>area under the curve (AUC) <b>{:.4f}</b></p>\n", roc.area) +
              CurvesSvg({.title = "ROC curve",
                         .x_name = "false positive rate",
                         .curves = {{"true positive rate", roc.points}},
                         .square = true,
                         .diagonal = true});
    }
  }
  return html;
}

std::string Regression(const Trial& trial, const Recorded& recorded) {
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
  if (residuals.empty()) return Note("no prediction is a number");
  const Histogram histogram = HistogramOf(residuals, kColumns);
  ColumnChart chart;
  chart.title = "distribution of residuals";
  chart.low = histogram.low;
  chart.high = histogram.low + histogram.width * static_cast<double>(histogram.counts.size());
  for (const auto count : histogram.counts) chart.heights.push_back(static_cast<double>(count));
  const double count = static_cast<double>(residuals.size());
  std::string html =
      Heading("Distribution of residuals") +
      Note(fmt::format(
          "label minus prediction, round {:g}, {} rows: root mean square {:.4g}, mean absolute {:.4g}",
          RoundOf(trial, last.step), residuals.size(), std::sqrt(squares / count), absolute / count)) +
      ColumnsSvg(chart);
  const Histogram range = HistogramOf(last.truth, kBins);
  const double high = range.low + range.width * static_cast<double>(range.counts.size());
  std::vector<Curve> curves(range.counts.size());
  for (std::size_t b = 0; b < curves.size(); ++b)
    curves[b].name = fmt::format("{:.3g} to {:.3g}", range.low + range.width * static_cast<double>(b),
                                 range.low + range.width * static_cast<double>(b + 1));
  for (const Prediction& one : recorded.rounds) {
    const std::vector<double> errors = ErrorByBin(one.truth, one.guess, range.low, high, curves.size());
    for (std::size_t b = 0; b < curves.size(); ++b)
      if (std::isfinite(errors[b])) curves[b].points.emplace_back(RoundOf(trial, one.step), errors[b]);
  }
  std::erase_if(curves, [](const Curve& curve) { return curve.points.empty(); });
  const std::string over = CurvesSvg(
      {.title = "absolute error by label over the rounds", .x_name = "round", .curves = std::move(curves)});
  html += Heading("Absolute validation error by label, over the rounds");
  return html +
         (over.empty()
              ? Note("predictions were saved in one round only")
              : Note("mean absolute error of the rows whose label lies in each of ten equal intervals") +
                    over);
}

std::string Sections(const Trial& trial, const Training& training) {
  const Recorded recorded = Read(trial, training);
  std::string html;
  if (!recorded.labels.empty()) {
    html += Heading("True labels") +
            Note(fmt::format("{} rows of the evaluation data", recorded.labels.size())) +
            Labels(recorded.labels, recorded.kind);
  }
  html += Losses(trial, training.prefix) + Importance(trial, training.prefix);
  if (recorded.rounds.empty()) {
    return html +
           Note(
               "Confusion matrix, ROC curve and residuals need the collections predictions and labels, "
               "which this run did not record.");
  }
  if (recorded.kind == Kind::kRegression) return html + Regression(trial, recorded);
  if (recorded.kind == Kind::kOther) return html;
  return html + Classification(trial, recorded);
}

}  // namespace

std::string BoostingSections(const query::Trial& trial) {
  std::vector<Training> trainings = TrainingsOf(trial);
  if (trainings.empty()) return {};
  std::string html;
  const std::size_t all = trainings.size();
  if (all > kMaxTrainings)
    html += Note(fmt::format("{} trainings; the first {} are shown", all, kMaxTrainings));
  trainings.resize(std::min(all, kMaxTrainings));
  for (std::size_t i = 0; i < trainings.size(); ++i) {
    if (all > 1) html += fmt::format("<h1>Training {}</h1>\n", i + 1);
    if (!trainings[i].objective.empty()) html += Note(fmt::format("objective {}", trainings[i].objective));
    html += Sections(trial, trainings[i]);
  }
  return html;
}

}  // namespace luff::cli
