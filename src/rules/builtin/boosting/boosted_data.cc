#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/json.h"
#include "rules/builtin/boosting/boosted_rules.h"
#include "rules/facts/json_event.h"
#include "rules/kit/select.h"

/// DataLeak, TrainValSkew and TargetRange on boosting runs: what the document "boosting" says of the rows and
/// labels that a training and its evaluations were given.
namespace luff::rules {
namespace {

using Json = nlohmann::json;
constexpr std::size_t kMaxTrainings = 256, kMaxEvaluations = 64, kMaxColumns = 1024;

struct Labels {
  double count = 0, least = 0, most = 0, low = 0, middle = 0, high = 0, mean = 0, deviation = 0;
};
std::optional<Labels> LabelsIn(const Json& data) {
  if (!data.is_object() || !data.contains("labels")) return std::nullopt;
  const Json& from = data["labels"];
  const Labels labels = {NumberIn(from, "count"), NumberIn(from, "least"),    NumberIn(from, "most"),
                         NumberIn(from, "low"),   NumberIn(from, "middle"),   NumberIn(from, "high"),
                         NumberIn(from, "mean"),  NumberIn(from, "deviation")};
  for (const double value : {labels.count, labels.least, labels.most, labels.low, labels.middle, labels.high,
                             labels.mean, labels.deviation})
    if (!std::isfinite(value)) return std::nullopt;
  return labels;
}

// Means or deviations of columns. Empty unless all are finite numbers.
std::vector<double> NumbersIn(const Json& data, const char* key) {
  std::vector<double> numbers;
  if (!data.is_object() || !data.contains("columns")) return numbers;
  const Json& list = ListIn(data["columns"], key);
  if (list.size() > kMaxColumns) return numbers;
  for (const Json& one : list) {
    if (!one.is_number() || !std::isfinite(one.get<double>())) return {};
    numbers.push_back(one.get<double>());
  }
  return numbers;
}

std::string Lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

struct Evaluation {
  std::string name;  // as in the names of its metrics
  bool is_training = false;
  double looked = 0, known = 0;  // of `looked` rows, `known` are rows of the training
  std::optional<Labels> labels;
  std::vector<double> means, deviations;

  [[nodiscard]] double share() const noexcept { return looked > 0 ? known / looked : 0; }
  [[nodiscard]] bool CallsItselfTraining() const {
    const std::string low = Lower(name);
    return low.find("train") != std::string::npos || low == "learn" || low == "fit";
  }
  // Names that users give. scikit-learn's interfaces number their sets: validation_0 is often what is trained
  // on.
  [[nodiscard]] bool CallsItselfOther() const {
    const std::string low = Lower(name);
    if (CallsItselfTraining() || (!low.empty() && low.back() >= '0' && low.back() <= '9')) return false;
    std::string word;
    for (const char c : low + ' ') {
      if (c >= 'a' && c <= 'z') {
        word += c;
        continue;
      }
      if (word == "val" || word == "valid" || word == "validation" || word == "test" || word == "holdout" ||
          (word == "dev" && word == low))
        return true;
      word.clear();
    }
    return false;
  }
};

struct Training {
  std::string prefix;
  std::int64_t folds = 0;
  bool goes_on = false;             // from rounds that others trained: its rows may be a part of them
  bool by_labels = true;            // its objective is none of the user's own, and no survival analysis
  double looked = 0, repeated = 0;  // of `looked` rows of the training, `repeated` come a second time
  std::optional<Labels> labels;
  std::vector<double> means, deviations;
  std::vector<Evaluation> evaluations;
};

Training TrainingIn(const Json& from) {
  static const Json kNone;
  Training training;
  training.prefix = TextMember(from, "prefix");
  training.folds = WholeMember(from, "folds", 0);
  training.goes_on = WholeMember(from, "rounds_before", 0) > 0;
  if (from.contains("parameters")) {
    const std::string objective = Lower(TextMember(from["parameters"], "objective"));
    training.by_labels = !objective.starts_with("survival:") && !objective.starts_with('<') &&
                         objective != "custom" && objective != "none" && objective != "null" &&
                         objective != "na";
  }
  const Json& data = from.contains("data") ? from["data"] : kNone;
  training.labels = LabelsIn(data);
  training.means = NumbersIn(data, "means");
  training.deviations = NumbersIn(data, "deviations");
  training.looked = NumberIn(data, "looked");
  training.repeated = NumberIn(data, "repeated");
  for (const Json& one : ListIn(from, "evaluations")) {
    if (!one.is_object() || training.evaluations.size() >= kMaxEvaluations) continue;
    Evaluation evaluation;
    evaluation.name = TextMember(one, "name");
    evaluation.is_training = FlagIn(one, "training");
    const Json& of = one.contains("data") ? one["data"] : kNone;
    const auto least = [&](const char* key) {
      const double value = NumberIn(of, key);
      return value > 0 ? value : 0;
    };
    evaluation.looked = least("looked");
    evaluation.known = std::min(least("known"), evaluation.looked);
    evaluation.labels = LabelsIn(of);
    evaluation.means = NumbersIn(of, "means");
    evaluation.deviations = NumbersIn(of, "deviations");
    training.evaluations.push_back(std::move(evaluation));
  }
  return training;
}

// A rule that judges each training once, from its description, which is written when its first round has
// ended.
class OnDescriptions : public KeptRule {
 public:
  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.superseded || view.rows.info.mode != query::Mode::kTrain) return;
    if (view.trial.tensor_count() == tensors_) return;  // a training begins with tensors of its own
    tensors_ = view.trial.tensor_count();
    const Json document = TryParseJson(view.trial.Document("boosting"));
    if (!document.is_object()) return;
    std::uint64_t number = 0;
    for (const Json& one : ListIn(document, "trainings")) {
      if (!one.is_object() || ++number > kMaxTrainings) continue;
      if (number <= judged_) continue;
      judged_ = number;
      const Training training = TrainingIn(one);
      if (training.folds == 0) Judge(view, training, sink);
    }
  }
  void VisitFields(Fields& io) override { io("judged", judged_); }

 protected:
  virtual void Judge(const StepView& view, const Training& training, Sink& sink) = 0;

  static Finding Found(const StepView& view, const char* rule, const char* cause, std::string tensor) {
    Finding finding = FindingAt(rule, cause, view, TensorAt{format::kNoId});
    finding.tensor = std::move(tensor);
    finding.since_step = 0;
    return finding;
  }

 private:
  std::size_t tensors_ = 0;  // of the trial when the description was read
  std::uint64_t judged_ = 0;
};

class DataLeak final : public OnDescriptions {
  static constexpr const char* kName = "DataLeak";
  static constexpr double kRows = 50, kShare = 0.2, kAll = 0.98;
  static constexpr double kChance = 0.1;  // of it, what repeated rows would explain

  void Judge(const StepView& view, const Training& training, Sink& sink) override {
    const auto clean = [&](const Evaluation& one) {
      return !one.is_training && one.looked >= kRows && one.share() < kShare / 4;
    };
    const bool beside = std::any_of(training.evaluations.begin(), training.evaluations.end(), clean);
    for (const Evaluation& one : training.evaluations) {
      const bool same = one.is_training || (one.looked >= kRows && one.share() >= kAll);
      // A name is a claim: what is called a validation is meant to hold other rows.
      if (same && !beside && one.CallsItselfOther()) {
        TellSame(view, training, one, sink);
      } else if (!same && !one.CallsItselfTraining() && one.looked >= kRows && one.share() >= kShare &&
                 training.looked >= kRows && training.repeated <= kChance * one.share() * training.looked) {
        TellSome(view, training, one, sink);
      }
    }
  }

  static void TellSame(const StepView& view, const Training& training, const Evaluation& one, Sink& sink) {
    Finding finding = Found(view, kName, "rows", training.prefix + one.name);
    finding.what =
        fmt::format("'{}' holds the rows of the training, and no evaluation holds others", one.name);
    finding.why = one.is_training
                      ? "it was given as the very data that is trained on"
                      : fmt::format("{:g} of {:g} rows that were looked at are rows of the training",
                                    one.known, one.looked);
    finding.remedy =
        "evaluate rows that are held out of the training: what this evaluation says of the model is no "
        "measure of "
        "generalisation, and early stopping by it never stops";
    finding.causes = {"the training data was passed a second time", "a split whose result is not used"};
    finding.evidence = {{"share", one.is_training ? 1.0 : one.share()}};
    finding.threshold = fmt::format("a fact of the data: {:g} % of the rows (Luff)", 100 * kAll);
    sink.Report(std::move(finding));
  }

  static void TellSome(const StepView& view, const Training& training, const Evaluation& one, Sink& sink) {
    Finding finding = Found(view, kName, "rows", training.prefix + one.name);
    finding.what = fmt::format("{:g} of {:g} rows of '{}' that were looked at are rows of the training",
                               one.known, one.looked, one.name);
    finding.why = fmt::format(
        "all their features and their labels are equal, while of {:g} rows of the training {:g} come a "
        "second time there: "
        "what this "
        "evaluation says of them is no measure of generalisation",
        training.looked, training.repeated);
    finding.remedy =
        "split before rows are copied, augmented or oversampled, and remove duplicates across the splits";
    finding.causes = {"splits overlap", "duplicates in the data set", "oversampling before the split"};
    finding.evidence = {{"share", one.share()}, {"rows", one.looked}, {"repeated", training.repeated}};
    finding.threshold =
        fmt::format("{:g} % of the rows, and at most {:g} % of that share repeated in the training (Luff)",
                    100 * kShare, 100 * kChance);
    sink.Report(std::move(finding));
  }
};

class TrainValSkew final : public OnDescriptions {
  static constexpr const char* kName = "TrainValSkew";
  static constexpr double kRows = 50, kSpread = 8, kShare = 0.5;
  static constexpr double kApart = 10, kAlike = 2, kNear = 0.1;

  void Judge(const StepView& view, const Training& training, Sink& sink) override {
    for (const Evaluation& one : training.evaluations) {
      if (one.is_training || one.CallsItselfTraining() || one.looked < kRows) continue;
      Columns(view, training, one, sink);
      Targets(view, training, one, sink);
    }
  }

  static void Columns(const StepView& view, const Training& training, const Evaluation& one, Sink& sink) {
    if (training.means.size() != one.means.size() || training.means.size() != training.deviations.size() ||
        one.means.size() != one.deviations.size())
      return;
    // Other times, places and groups have other means and deviations. Only a scaling makes one side's exactly
    // 0 and 1.
    std::size_t varying = 0, of_training = 0, of_evaluation = 0;
    double spread = 1;
    for (std::size_t i = 0; i < one.means.size(); ++i) {
      const double deviation = training.deviations[i], other = one.deviations[i];
      if (!(deviation > 0) || !(other > 0)) continue;
      ++varying;
      if (IsStandard(training.means[i], deviation) && other >= kSpread * deviation) {
        ++of_training;
        spread = std::max(spread, other / deviation);
      } else if (IsStandard(one.means[i], other) && deviation >= kSpread * other) {
        ++of_evaluation;
        spread = std::max(spread, deviation / other);
      }
    }
    const std::size_t unlike = std::max(of_training, of_evaluation);
    if (unlike < 2 || static_cast<double>(unlike) <= kShare * static_cast<double>(varying)) return;
    const char* whose = of_training > of_evaluation ? "the training" : "the evaluation";
    Finding finding = Found(view, kName, "skew", training.prefix + one.name);
    finding.what = fmt::format("{} of {} features of '{}' are on another scale than in the training", unlike,
                               varying, one.name);
    finding.why = fmt::format(
        "those of {} have means of 0 and deviations of 1, on the other side deviations are up to {:.3g} "
        "times "
        "as large; trees send nearly all these rows to one side of their splits",
        whose, spread);
    finding.remedy =
        "prepare evaluation rows by the same steps, with the mean and the deviation of the training data "
        "(one "
        "pipeline for both)";
    finding.causes = {"a scaler that was applied to one side only"};
    finding.evidence = {{"unlike", unlike}, {"features", varying}, {"spread", spread}};
    finding.threshold = fmt::format(
        "more than half of the features, two at least: standardised on one side, {:g} times on the other "
        "(Luff)",
        kSpread);
    sink.Report(std::move(finding));
  }

  static bool IsStandard(double mean, double deviation) {
    return std::abs(mean) < kNear && std::abs(deviation - 1) < kNear;
  }

  // The labels of one side are a function of those of the other: standardised, logarithms, or in another
  // unit.
  static void Targets(const StepView& view, const Training& training, const Evaluation& one, Sink& sink) {
    if (!training.labels || !one.labels || training.labels->count < kRows || one.labels->count < kRows)
      return;
    const Labels &t = *training.labels, &e = *one.labels;
    if (!(t.deviation > 0) || !(e.deviation > 0)) return;
    const char* how = Relation(t, e);
    const char* whose = "those of the training";
    if (how == nullptr) {
      how = Relation(e, t);
      whose = "its own";
    }
    if (how == nullptr) return;
    Finding finding = Found(view, kName, "targets", training.prefix + one.name);
    finding.what =
        fmt::format("the labels of '{}' are on another scale than those of the training", one.name);
    finding.why = fmt::format(
        "they lie between {:.4g} and {:.4g}, in the training between {:.4g} and {:.4g}: {} look {}", e.least,
        e.most, t.least, t.most, whose, how);
    finding.remedy =
        "scale the labels of evaluations by the same steps as those of the training, and turn predictions "
        "back "
        "before they are compared in original units";
    finding.causes = {"labels that were scaled on one side only"};
    finding.evidence = {{"middle", e.middle}, {"training_middle", t.middle}};
    finding.threshold = "ranges that do not meet, and a scaling that makes them alike (Luff)";
    sink.Report(std::move(finding));
  }

  // What was done to `scaled`, if it would make `plain` of it: null if nothing that is known.
  static const char* Relation(const Labels& scaled, const Labels& plain) {
    const bool apart =
        plain.low > scaled.most || plain.high < scaled.least || plain.deviation > kApart * scaled.deviation;
    if (!apart) return nullptr;
    if (IsStandard(scaled.mean, scaled.deviation) &&
        (std::abs(plain.mean) > kApart || plain.deviation > kApart))
      return "standardised";
    const auto alike = [](double a, double b) { return a > 0 && b > 0 && a < kAlike * b && b < kAlike * a; };
    const auto fits = [&](double (*turn)(double)) {
      const double low = turn(scaled.low), middle = turn(scaled.middle), high = turn(scaled.high);
      return plain.low > kApart * std::max(scaled.low, 0.0) && alike(low, plain.low) &&
             alike(middle, plain.middle) && alike(high, plain.high);
    };
    if (scaled.high < 50 && fits([](double x) { return std::exp(x); })) return "like logarithms";
    if (scaled.high < 15 && fits([](double x) { return std::pow(10.0, x); }))
      return "like logarithms to the base 10";
    return nullptr;
  }
};

class TargetRange final : public OnDescriptions {
  static constexpr double kRows = 50;

  void Judge(const StepView& view, const Training& training, Sink& sink) override {
    if (!training.labels || training.labels->count < kRows || training.labels->least < training.labels->most)
      return;
    if (training.goes_on || !training.by_labels) return;
    const auto varies = [](const Evaluation& one) {
      return !one.is_training && one.labels && one.labels->count >= 2 && one.labels->least < one.labels->most;
    };
    if (std::none_of(training.evaluations.begin(), training.evaluations.end(), varies)) return;
    Finding finding = Found(view, "TargetRange", "constant", training.prefix + "labels");
    finding.what = fmt::format("all {:g} labels of the training are {:g}: a constant", training.labels->count,
                               training.labels->least);
    finding.why =
        "those of an evaluation have several values; no tree can split on labels that are all alike";
    finding.remedy = "look at how the labels of the training are read or encoded";
    finding.causes = {"another column was taken for the label", "labels that were overwritten or cut off"};
    finding.evidence = {{"labels", training.labels->count}};
    finding.threshold = fmt::format("a fact of {:g} labels or more (Luff)", kRows);
    sink.Report(std::move(finding));
  }
};

}  // namespace

std::unique_ptr<KeptRule> BoostedDataLeak() { return std::make_unique<DataLeak>(); }
std::unique_ptr<KeptRule> BoostedTrainValSkew() { return std::make_unique<TrainValSkew>(); }
std::unique_ptr<KeptRule> BoostedTargetRange() { return std::make_unique<TargetRange>(); }

}  // namespace luff::rules
