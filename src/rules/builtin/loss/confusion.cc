#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/answer_columns.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/labelled_rows.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/passes.h"
#include "rules/facts/sample.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// Confusion: docs/rules/confusion.md.
namespace luff::rules::confusion {
namespace {

constexpr const char* kName = "Confusion";
constexpr std::size_t kMaxClasses = 64;
constexpr std::int64_t kMaxCategories = 4096;

struct Limits {
  std::string labels, predictions, labels_collection, predictions_collection;
  double min_diag, max_off_diag, exchanged;
  std::int64_t evaluations;
};
constexpr Param<Limits> kParams[] = {
    {nullptr, "category_no", "None", "number of classes; None: as many as come (original)"},
    {&Limits::labels, "labels", "labels", "tensor of labels (original)"},
    {&Limits::predictions, "predictions", "predictions", "tensor of predictions (original)"},
    {&Limits::labels_collection, "labels_collection", "labels", "collection of labels (original)"},
    {&Limits::predictions_collection, "predictions_collection", "predictions",
     "collection of predictions (original)"},
    {&Limits::min_diag, "min_diag", "0.9", "share of a predicted class that is of it, at least (original)",
     Within(0, 1)},
    {&Limits::max_off_diag, "max_off_diag", "0.1",
     "share of a predicted class that is of one other, at most (original)", Within(0, 1)},
    {&Limits::exchanged, "exchanged", "0.6", "share of both classes that is taken for the other (Luff)",
     Within(0, 1)},
    {&Limits::evaluations, "evaluations", "2", "evaluations in a row (Luff)"},
};

// smdebug's rule: one matrix per step; each column is compared with two limits.
class Original final : public KeptRule {
 public:
  Original(NamedTensors labels, NamedTensors predictions, std::int64_t categories, const Limits& limits)
      : labels_(std::move(labels)),
        predictions_(std::move(predictions)),
        categories_(categories),
        limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const std::vector<std::int64_t> labels = labels_.ValuesOf(view, false);
    const std::vector<std::int64_t> predictions = predictions_.ValuesOf(view, false);
    const std::size_t count = std::min(labels.size(), predictions.size());
    std::map<std::int64_t, std::map<std::int64_t, double>> columns;  // prediction, then label
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t limit = categories_ > 0 ? categories_ : kMaxCategories;
      if (labels[i] < 0 || predictions[i] < 0 || labels[i] >= limit || predictions[i] >= limit) continue;
      ++columns[predictions[i]][labels[i]];
    }
    for (auto& [prediction, column] : columns) {
      double total = 0;
      for (const auto& [label, hits] : column) total += hits;
      const double diagonal = column.contains(prediction) ? column.at(prediction) / total : 0;
      std::pair<std::int64_t, double> off{-1, 0};
      for (const auto& [label, hits] : column) {
        if (label != prediction && hits / total > off.second) off = {label, hits / total};
      }
      if (diagonal >= limits_.min_diag && off.second <= limits_.max_off_diag) continue;
      Finding finding = FindingAt(kName, "confusion", view, TensorAt{format::kNoId});
      finding.what =
          fmt::format("of the samples predicted as class {}, {:.3g} % are of it", prediction, 100 * diagonal);
      finding.why = off.first >= 0 ? fmt::format("{:.3g} % are of class {}", 100 * off.second, off.first)
                                   : std::string("the others are of several classes");
      finding.remedy = "look at samples of the classes that are taken for each other, and at their labels";
      finding.evidence = {{"class", prediction}, {"on_diagonal", diagonal}, {"off_diagonal", off.second}};
      finding.threshold = fmt::format("at least {:g} on, at most {:g} off the diagonal (original)",
                                      limits_.min_diag, limits_.max_off_diag);
      sink.Report(std::move(finding));
      return;
    }
  }

 private:
  NamedTensors labels_, predictions_;
  const std::int64_t categories_;
  const Limits limits_;
};

// Luff's rule: evaluations exchange two classes, and tell the others apart.
class Luff final : public KeptRule {
 public:
  explicit Luff(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode == query::Mode::kTrain) {
      Close(view.trial, sink);
      last_.Take(info);
      passes_.OnTrainStep(view);
      CountTrained(view);
      return;
    }
    if (info.mode != query::Mode::kEval || last_.mode_step < 0) return;
    for (const LossCall& call : reader_.Read(view)) {
      if (kinds_.size() >= LossReader::kMaxKinds && !kinds_.contains(call.key)) continue;
      const Recognition found = reader_.Recognise(call);
      Kind& kind = kinds_[call.key];
      kind.loss = view.trial.tensor(call.loss).name;
      kind.evaluated_columns.Add(call, found);
      evaluating_ = evaluating_ || kind.evaluated_columns.columns() > 0;
      const auto rows = LabelledRowsOf(call, found, kMaxClasses);
      if (!rows) continue;
      if (kind.classes != rows->classes) {
        kind.classes = rows->classes;
        kind.matrix.assign(rows->classes * rows->classes, 0);
      }
      for (std::size_t i = 0; i < rows->labels.size(); ++i) {
        ++kind.matrix[static_cast<std::size_t>(rows->labels[i]) * kind.classes +
                      static_cast<std::size_t>(rows->predictions[i])];
      }
      evaluating_ = true;
    }
  }
  void OnEnd(const query::Trial& trial, Sink& sink) override { Close(trial, sink); }

  void VisitFields(Fields& io) override {
    io("kinds", kinds_, LossReader::kMaxKinds);
    io("reader", reader_);
    io("last", last_);
    io("evaluating", evaluating_);
    io("passes", passes_);
  }

 private:
  struct Kind {
    std::string loss;
    std::size_t classes = 0;
    std::vector<double> matrix;  // label x prediction, of the current evaluation
    std::int64_t pair = -1, hits = 0, since = -1;
    std::vector<double> trained;             // targets of the training by class
    std::int64_t renumbered = 0, taken = 0;  // evaluations in a row
    std::int64_t taken_pair = -1;
    AnswerColumns trained_columns, evaluated_columns;  // since the last evaluation; of the current one
    std::int64_t exchanged = 0, inverted = 0;          // evaluations in a row
    void VisitFields(Fields& io) {
      io("loss", loss);
      io("classes", classes);
      io("matrix", matrix, kMaxClasses * kMaxClasses);
      io.Check(classes <= kMaxClasses && matrix.size() == classes * classes, "a square matrix");
      io("pair", pair);
      io("hits", hits);
      io("since", since);
      io("trained", trained, kMaxClasses);
      io("renumbered", renumbered);
      io("taken", taken);
      io("taken_pair", taken_pair);
      io("trained_columns", trained_columns);
      io("evaluated_columns", evaluated_columns);
      io("exchanged", exchanged);
      io("inverted", inverted);
    }
  };

  void CountTrained(const StepView& view) {
    for (const LossCall& call : reader_.Read(view)) {
      if (kinds_.size() >= LossReader::kMaxKinds && !kinds_.contains(call.key)) continue;
      const Recognition found = reader_.Recognise(call);
      kinds_[call.key].trained_columns.Add(call, found);
      const auto rows = LabelledRowsOf(call, found, kMaxClasses);
      if (!rows) continue;
      std::vector<double>& trained = kinds_[call.key].trained;
      if (trained.size() != rows->classes) trained.assign(rows->classes, 0);
      for (const std::int64_t label : rows->labels) ++trained[static_cast<std::size_t>(label)];
    }
  }

  void Close(const query::Trial& trial, Sink& sink) {
    if (!evaluating_) return;
    evaluating_ = false;
    for (auto& [name, kind] : kinds_) {
      Judge(trial, &kind, sink);
      JudgeNumbers(trial, &kind, sink);
      JudgeTaken(trial, &kind, sink);
      JudgeColumns(trial, &kind, sink);
      std::fill(kind.matrix.begin(), kind.matrix.end(), 0);
    }
  }

  Finding Begin(const query::Trial& trial, const Kind& kind, const char* cause) const {
    Finding finding =
        FindingAt(kName, cause, trial, trial.TensorNamed(kind.loss).value_or(format::kNoId), 0, last_.Info());
    finding.since_step = 0;
    return finding;
  }

  // Reports classes that evaluations tell apart, but number otherwise: most of them have one answer each, and
  // it is another class.
  void JudgeNumbers(const query::Trial& trial, Kind* kind, Sink& sink) const {
    const std::size_t n = kind->classes;
    std::set<std::size_t> answers;
    std::size_t known = 0, moved = 0;
    double right = 0, all = 0;
    std::string example;
    for (std::size_t a = 0; n > 2 && a < n; ++a) {
      const double* row = &kind->matrix[a * n];
      const double rows = std::accumulate(row, row + n, 0.0);
      all += rows;
      right += row[a];
      if (rows < kLeastRows) continue;
      ++known;
      const auto b = static_cast<std::size_t>(std::max_element(row, row + n) - row);
      if (b == a || row[b] < kOneAnswer * rows || !answers.insert(b).second) continue;
      if (moved++ < 3) example += fmt::format("{}{} as {}", example.empty() ? "" : ", ", a, b);
    }
    const bool renumbered = moved >= 3 && 2 * moved > known && right < 0.5 * all;
    kind->renumbered = renumbered ? kind->renumbered + 1 : 0;
    if (kind->renumbered < limits_.evaluations) return;
    Finding finding = Begin(trial, *kind, "renumbered");
    finding.what =
        fmt::format("evaluations number {} of {} classes otherwise than the training", moved, known);
    finding.why = fmt::format(
        "nearly all rows of each of them get one answer, and each another one ({}): the classes are told "
        "apart, but not numbered alike; {:.0f} % of all answers are right",
        example, 100 * right / all);
    finding.remedy = "compare how class names become numbers in the training's and the evaluation's data";
    finding.causes = {"labels that begin at 0 in one set and at 1 in the other",
                      "class names sorted or gathered from each set by itself"};
    finding.evidence = {{"classes", static_cast<double>(known)},
                        {"renumbered", static_cast<double>(moved)},
                        {"right", right / all}};
    finding.threshold = fmt::format("{:g} % of the rows with one answer, {} evaluations (Luff)",
                                    100 * kOneAnswer, limits_.evaluations);
    sink.Report(std::move(finding));
  }

  // Reports a class that evaluations take for another, not the reverse, where the training has fewer targets
  // of it than evaluations, and of the other as many more: part of its rows are labelled as the other. In a
  // training with rare and frequent classes, both together have another share than in evaluations.
  void JudgeTaken(const query::Trial& trial, Kind* kind, Sink& sink) const {
    const std::size_t n = kind->classes;
    if (n < 3 || kind->trained.size() != n || passes_.count() < 2) return;
    std::vector<double> rows(n);
    for (std::size_t a = 0; a < n; ++a)
      rows[a] = std::accumulate(&kind->matrix[a * n], &kind->matrix[a * n] + n, 0.0);
    const double all = std::accumulate(rows.begin(), rows.end(), 0.0);
    const double trained = std::accumulate(kind->trained.begin(), kind->trained.end(), 0.0);
    const double once = trained / passes_.count();  // rows that come again say nothing new
    double right = 0;
    for (std::size_t c = 0; c < n; ++c) right += kind->matrix[c * n + c];
    // How far the training's share of rows lies above that of evaluations, in standard errors.
    const auto excess = [&](double ours, double theirs) {
      const double pooled = (ours / passes_.count() + theirs) / (once + all);
      const double error = std::sqrt(std::max(pooled * (1 - pooled), 1e-9) * (1 / once + 1 / all));
      return (ours / trained - theirs / all) / error;
    };
    std::int64_t pair = -1;
    for (std::size_t a = 0; a < n; ++a) {
      const double* row = &kind->matrix[a * n];
      const auto b = static_cast<std::size_t>(std::max_element(row, row + n) - row);
      if (rows[a] < kLeastRows || b == a || row[b] < limits_.exchanged * rows[a] || rows[b] < kLeastRows ||
          kind->matrix[b * n + b] < kOthersRight * rows[b] || right - row[a] < kOthersRight * (all - rows[a]))
        continue;
      const double* seen = kind->trained.data();
      if (excess(seen[a], rows[a]) > -kErrors || excess(seen[b], rows[b]) < kErrors ||
          std::abs(excess(seen[a] + seen[b], rows[a] + rows[b])) > kSameErrors)
        continue;
      pair = static_cast<std::int64_t>(a * n + b);
    }
    kind->taken = pair >= 0 && pair == kind->taken_pair ? kind->taken + 1 : pair >= 0 ? 1 : 0;
    kind->taken_pair = pair;
    if (pair < 0 || kind->taken < limits_.evaluations) return;
    const auto a = static_cast<std::size_t>(pair) / n;
    const auto b = static_cast<std::size_t>(pair) % n;
    Finding finding = Begin(trial, *kind, "taken");
    finding.what = fmt::format("evaluations take class {} for class {}, not the reverse", a, b);
    finding.why = fmt::format(
        "{:.0f} % of class {} get the answer {}. The training has {:.2g} % of class {} and {:.2g} % of class "
        "{}, "
        "evaluations {:.2g} and {:.2g} %: rows of the one seem to be labelled as the other in training",
        100 * kind->matrix[a * n + b] / rows[a], a, b, 100 * kind->trained[a] / trained, a,
        100 * kind->trained[b] / trained, b, 100 * rows[a] / all, 100 * rows[b] / all);
    finding.remedy =
        fmt::format("look at the labels of training rows of class {}: which of them are class {}?", b, a);
    finding.causes = {"wrong labels of one class", "a mapping that joins two class names"};
    finding.evidence = {{"class", static_cast<double>(a)},
                        {"taken_for", static_cast<double>(b)},
                        {"share", kind->matrix[a * n + b] / rows[a]}};
    finding.threshold =
        fmt::format("{:g} % of its rows, shares {:g} standard errors apart, {} evaluations (Luff)",
                    100 * limits_.exchanged, kErrors, limits_.evaluations);
    sink.Report(std::move(finding));
  }

  // Reports targets of evaluations that other columns of the model's answers tell than in training, or that
  // its answers tell with the opposite sign. Memory, noise and other data lower a correlation; they neither
  // turn it over nor give it to another column.
  void JudgeColumns(const query::Trial& trial, Kind* kind, Sink& sink) const {
    if (kind->evaluated_columns.rows() == 0) return;
    const ColumnChange change = Compare(kind->trained_columns, kind->evaluated_columns, kLearnt);
    const std::size_t columns = kind->evaluated_columns.columns();
    const double rows = kind->evaluated_columns.rows();
    kind->trained_columns.Clear();
    kind->evaluated_columns.Clear();
    const auto held = [&](bool now, std::int64_t* times, const char* cause) {
      if (!now && *times >= limits_.evaluations) sink.Heal(cause, kind->loss, last_.mode_step);
      *times = now ? *times + 1 : 0;
      return *times >= limits_.evaluations;
    };
    const bool exchanged = held(!change.exchanged.empty(), &kind->exchanged, "columns_exchanged");
    const bool inverted = held(!change.inverted.empty(), &kind->inverted, "inverted");
    if (exchanged) {
      Finding finding = Begin(trial, *kind, "columns_exchanged");
      const auto [target, answer] = change.exchanged.front();
      finding.what = fmt::format("{} of {} target columns of {} come in another order in evaluations",
                                 change.exchanged.size(), columns, kind->loss);
      finding.why = fmt::format(
          "column {} of the targets goes together with column {} of the model's answers (correlation {:.2g}) "
          "and not with its own ({:.2g}); in training its own has {:.2g}",
          target, answer, change.other, change.own, change.trained);
      finding.remedy =
          "compare the order of the target's columns in the training's and the evaluation's data";
      finding.causes = {"columns gathered or sorted from each set by itself",
                        "another convention of coordinates, e.g. x and y exchanged"};
      finding.evidence = {{"columns", static_cast<double>(columns)},
                          {"exchanged", static_cast<double>(change.exchanged.size())},
                          {"own", change.own},
                          {"other", change.other},
                          {"in_training", change.trained},
                          {"rows", rows}};
      finding.threshold =
          fmt::format("two columns with a correlation of {:g} at least, {} evaluations (Luff)", kLearnt,
                      limits_.evaluations);
      sink.Report(std::move(finding));
    }
    if (!inverted || exchanged) return;
    Finding finding = Begin(trial, *kind, "inverted");
    finding.what = columns == 1 ? fmt::format("the targets of {} are turned over in evaluations", kind->loss)
                                : fmt::format("column {} of the targets of {} is turned over in evaluations",
                                              change.inverted.front(), kind->loss);
    finding.why = fmt::format(
        "where the model's answer is high the target is low: their correlation is {:.2g}, in training "
        "{:.2g}. "
        "What a model learns may not hold for other data, but then it tells nothing, not the opposite",
        change.own, change.trained);
    finding.remedy =
        "compare how targets are made in the training's and the evaluation's data: which value means what, "
        "and the sign";
    finding.causes = {"0 and 1 exchanged in one of the two sets", "a sign or a 1 - y in one of them only",
                      "a mask of the background instead of the object"};
    finding.evidence = {{"correlation", change.own}, {"in_training", change.trained}, {"rows", rows}};
    finding.threshold = fmt::format("correlation {:g} in training, -{:g} in {} evaluations (Luff)", kLearnt,
                                    kLearnt, limits_.evaluations);
    sink.Report(std::move(finding));
  }

  void Judge(const query::Trial& trial, Kind* kind, Sink& sink) const {
    const std::size_t n = kind->classes;
    std::vector<double> rows(n);
    for (std::size_t a = 0; a < n; ++a) {
      for (std::size_t b = 0; b < n; ++b) rows[a] += kind->matrix[a * n + b];
    }
    const auto share = [&](std::size_t a, std::size_t b) {
      return rows[a] > 0 ? kind->matrix[a * n + b] / rows[a] : 0;
    };
    std::int64_t pair = -1;
    double others = 0;
    double others_right = 0;
    for (std::size_t a = 0; n > 2 && a < n; ++a) {
      for (std::size_t b = a + 1; b < n; ++b) {
        if (rows[a] < 10 || rows[b] < 10 || share(a, b) < limits_.exchanged ||
            share(b, a) < limits_.exchanged)
          continue;
        pair = static_cast<std::int64_t>(a * n + b);
      }
    }
    const std::size_t first = pair < 0 ? 0 : static_cast<std::size_t>(pair) / n;
    const std::size_t second = pair < 0 ? 0 : static_cast<std::size_t>(pair) % n;
    for (std::size_t c = 0; c < n; ++c) {
      if (c == first || c == second) continue;
      others += rows[c];
      others_right += kind->matrix[c * n + c];
    }
    if (pair < 0 || others_right < 0.7 * others || others == 0) {
      if (kind->hits >= limits_.evaluations) sink.Heal("exchanged", kind->loss, last_.mode_step);
      kind->hits = 0;
      kind->pair = -1;
      return;
    }
    kind->hits = pair == kind->pair ? kind->hits + 1 : 1;
    if (kind->hits == 1) kind->since = last_.mode_step;
    kind->pair = pair;
    if (kind->hits < limits_.evaluations) return;
    const query::TensorId loss = trial.TensorNamed(kind->loss).value_or(format::kNoId);
    Finding finding = FindingAt(kName, "exchanged", trial, loss, 0, last_.Info());
    finding.since_step = kind->since;
    finding.what = fmt::format("evaluations take class {} for class {} and the reverse", first, second);
    finding.why = fmt::format(
        "{:.0f} % of class {} and {:.0f} % of class {} are exchanged, while {:.0f} % of the others are "
        "right: the "
        "two are told apart, but not named alike in training and evaluation",
        100 * share(first, second), first, 100 * share(second, first), second, 100 * others_right / others);
    finding.remedy = "compare how class names become numbers in the training's and the evaluation's data";
    finding.causes = {"labels mapped differently in the two sets"};
    finding.evidence = {{"first_as_second", share(first, second)},
                        {"second_as_first", share(second, first)},
                        {"others_right", others_right / others}};
    finding.threshold =
        fmt::format("{:g} % of both, {} evaluations (Luff)", 100 * limits_.exchanged, limits_.evaluations);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  LossReader reader_;
  static constexpr double kLeastRows = 10;   // of a class in an evaluation
  static constexpr double kOneAnswer = 0.7;  // share of a class that gets the same answer
  static constexpr double kOthersRight = 0.7;
  static constexpr double kLearnt = 0.4;    // correlation of answers and targets
  static constexpr double kErrors = 3;      // each of two shares; both by chance: 1 in 500,000
  static constexpr double kSameErrors = 2;  // shares that are equal lie closer 19 times of 20
  Anchor last_;
  Passes passes_;
  bool evaluating_ = false;
  std::map<std::string, Kind> kinds_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecMadeBy(kName, kParams, [](const Limits& limits, const Parameters& all) -> MadeRule {
    std::int64_t categories = 0;
    if (HasParameter(all, "category_no")) {
      LUFF_ASSIGN_OR_RETURN(categories, ParseInt(TextOf(all, "category_no")));
    }
    LUFF_ASSIGN_OR_RETURN(NamedTensors labels,
                          NamedTensors::Make("^" + limits.labels + "$", limits.labels_collection));
    LUFF_ASSIGN_OR_RETURN(NamedTensors predictions,
                          NamedTensors::Make("^" + limits.predictions + "$", limits.predictions_collection));
    if (!IsOriginal(all)) return std::unique_ptr<Rule>(new Luff(limits));
    return std::unique_ptr<Rule>(new Original(std::move(labels), std::move(predictions), categories, limits));
  });
  spec.version = 4;  // 3: causes "columns_exchanged" and "inverted"; 4: Passes by samples
  spec.summary = "classes or columns of targets that are taken for each other";
  spec.needs = [](const Parameters& all) -> std::vector<Need> {
    if (!IsOriginal(all)) return SampleNeeds();
    return {NamedNeed(TextOf(all, "labels_collection"), "^" + TextOf(all, "labels") + "$"),
            NamedNeed(TextOf(all, "predictions_collection"), "^" + TextOf(all, "predictions") + "$")};
  };
  return spec;
}

}  // namespace luff::rules::confusion
