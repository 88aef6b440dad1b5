#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/class_weights.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/json_event.h"
#include "rules/facts/labelled_rows.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/passes.h"
#include "rules/facts/sample.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// ClassImbalance: docs/rules/class_imbalance.md.
namespace luff::rules::class_imbalance {
namespace {

constexpr const char* kName = "ClassImbalance";
constexpr std::size_t kMaxClasses = 64;
constexpr std::size_t kMaxLabels = 65536;  // counted by smdebug's rule
constexpr std::size_t kRecent = 32;
constexpr double kLeastEvaluated = 3;  // targets of a class in evaluations
constexpr double kChance = 1e-6;

struct Limits {
  double imbalance, misprediction;
  std::int64_t samples;
  bool argmax;
  std::string labels, predictions;
  std::int64_t settle, rare;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::imbalance, "threshold_imbalance", "10", "largest class over smallest (original)"},
    {&Limits::misprediction, "threshold_misprediction", "0.9",
     "share of a class that is predicted wrongly (original: 0.7)", Bound(), "0.7"},
    {&Limits::samples, "samples", "500", "labels before anything is judged (original)"},
    {&Limits::argmax, "argmax", "False",
     "take the place of the largest value along the last axis (original)"},
    {&Limits::labels, "labels_regex", ".*labels", "tensors of labels (original)"},
    {&Limits::predictions, "predictions_regex", ".*predictions", "tensors of predictions (original)"},
    {&Limits::settle, "settle", "96",
     "TRAIN steps in which every model answers the most frequent class (Luff)", Bound(), "0"},
    {&Limits::rare, "rare", "30", "samples of rare classes after these (Luff)", {}, "0"},
};

// smdebug's rule: adds up labels and predictions of all steps.
class Original final : public KeptRule {
 public:
  Original(NamedTensors labels, NamedTensors predictions, const Limits& limits)
      : labels_(std::move(labels)),
        predictions_(std::move(predictions)),
        limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const std::vector<std::int64_t> labels = labels_.ValuesOf(view, false);
    const std::vector<std::int64_t> predictions = predictions_.ValuesOf(view, limits_.argmax);
    if (labels.empty()) return;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (counts_.size() >= kMaxLabels && !counts_.contains(labels[i])) continue;
      Class& one = counts_[labels[i]];
      ++one.seen;
      ++total_;
      if (i < predictions.size() && predictions[i] != labels[i]) ++one.missed;
    }
    if (total_ < limits_.samples) return;
    std::int64_t most = 0;
    std::int64_t least = total_;
    double worst = 0;
    std::int64_t worst_class = 0;
    for (const auto& [label, one] : counts_) {
      most = std::max(most, one.seen);
      least = std::min(least, one.seen);
      const double share = static_cast<double>(one.missed) / static_cast<double>(one.seen);
      if (share > worst) {
        worst = share;
        worst_class = label;
      }
    }
    const double ratio = static_cast<double>(most) / static_cast<double>(least);
    if (ratio > limits_.imbalance)
      Tell(view, "imbalance",
           fmt::format("the largest class has {:.3g} times the labels of the smallest", ratio),
           {{"ratio", ratio}, {"labels", static_cast<double>(total_)}}, limits_.imbalance, sink);
    if (worst > limits_.misprediction)
      Tell(view, "misprediction",
           fmt::format("{:.3g} % of class {} are predicted wrongly", 100 * worst, worst_class),
           {{"mispredicted", worst}, {"class", static_cast<double>(worst_class)}}, limits_.misprediction,
           sink);
  }
  void VisitFields(Fields& io) override {
    io("counts", counts_, kMaxLabels);
    io("total", total_);
  }

 private:
  struct Class {
    std::int64_t seen = 0, missed = 0;
    void VisitFields(Fields& io) {
      io("seen", seen);
      io("missed", missed);
    }
  };
  static void Tell(const StepView& view, const char* cause, std::string what,
                   std::vector<NamedNumber> evidence, double threshold, Sink& sink) {
    Finding finding = FindingAt(kName, cause, view, TensorAt{format::kNoId});
    finding.what = std::move(what);
    finding.why = "classes that are rare in the data are seldom learnt";
    finding.remedy = "weight the classes, sample them evenly, or gather more of the rare ones";
    finding.evidence = std::move(evidence);
    finding.threshold = fmt::format("more than {:g} (original)", threshold);
    sink.Report(std::move(finding));
  }

  NamedTensors labels_, predictions_;
  const Limits limits_;
  std::map<std::int64_t, Class> counts_;
  std::int64_t total_ = 0;
};

// Luff's rule: rare classes that are not weighted, and that are mispredicted while others are predicted well;
// classes that evaluations have and the training does not.
class Luff final : public KeptRule {
 public:
  explicit Luff(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::Mode mode = view.rows.info.mode;
    if (mode != query::Mode::kTrain && mode != query::Mode::kEval) return;
    if (mode == query::Mode::kTrain) {
      passes_.OnTrainStep(view);
      weightings_.OnStep(view);
    }
    for (const auto& event : view.index.json_events("answers_counted")) {
      const auto loss = event->find("loss");
      const double call = NumberIn(*event, "call");
      if (call >= 0 && call < 64 && loss != event->end() && loss->is_string() &&
          counted_.size() < LossReader::kMaxKinds)
        counted_.insert(KeyOfCall(loss->get<std::string>(), static_cast<std::size_t>(call)));
    }
    for (const LossCall& call : reader_.Read(view)) {
      if (kinds_.size() >= LossReader::kMaxKinds && !kinds_.contains(call.key)) continue;
      Kind& kind = kinds_[call.key];
      const Recognition found = reader_.Recognise(call);
      if (mode == query::Mode::kEval) {
        if (const auto rows = LabelledRowsOf(call, found, kMaxClasses); rows) {
          Evaluated(view, call, *rows, &kind, sink);
          if (counted_.contains(call.key) && weightings_.Has(call.key) && IsOfSamples(view, call))
            Zero(view, call, weightings_.Evaluate(call.key, *rows), sink);
        }
        continue;
      }
      if (weightings_.Has(call.key)) {
        if (const auto rows = LabelledRowsOf(call, found, kMaxClasses); rows) {
          Weighted(view, call, weightings_.Count(call.key, *rows), sink);
          OfOthers(view, call, weightings_.Count(call.key, {rows->classes, {}, {}}), sink);
          Outweighed(view, call, weightings_.Count(call.key, {rows->classes, {}, {}}), sink);
        } else if (const auto places = ClassWeights::PlacesOf(call, found, kMaxClasses); places) {
          Weighted(view, call, weightings_.Count(call.key, *places), sink);
          Outweighed(view, call, weightings_.Count(call.key, {places->classes, {}, {}}), sink);
        }
      }
      if (found.weights == Weights::kSome) {
        if (kind.open) sink.Heal("unweighted", kind.loss, view.rows.info.mode_step);
        kind = {};
        kind.weighted = true;
      }
      if (kind.weighted) continue;
      if (found.weights == Weights::kNone) ++kind.unweighted;
      const auto rows = LabelledRowsOf(call, found, kMaxClasses);
      if (!rows) continue;
      kind.loss = view.trial.tensor(call.loss).name;
      Take(*rows, view.rows.info.mode_step >= limits_.settle, &kind);
      Judge(view, call, &kind, sink);
    }
  }

  void VisitFields(Fields& io) override {
    io("kinds", kinds_, LossReader::kMaxKinds);
    io("reader", reader_);
    io("passes", passes_);
    io("weightings", weightings_);
    io("counted", counted_, LossReader::kMaxKinds);
  }

 private:
  // Weights that grow with the number of targets, where they should fall with it.
  void Weighted(const StepView& view, const LossCall& call, ClassWeights::Known* known, Sink& sink) const {
    if (known->told) return;
    const std::string fault = known->Fault(limits_.samples);
    if (fault.empty()) return;
    known->told = true;
    const auto [least, most] = std::minmax_element(known->counts.begin(), known->counts.end());
    Finding finding = FindingAt(kName, "weights_upside_down", view, TensorAt{call.loss, call.worker});
    finding.since_step = 0;
    finding.what = "the loss weighs rare classes down: its weights follow how often a class comes";
    finding.why = fmt::format(
        "the most frequent class has {:.3g} times the targets of the rarest, and {}: what is seldom counts "
        "even "
        "less",
        *most / *least, fault);
    finding.remedy = known->positive ? "use pos_weight = negatives / positives"
                                     : "weight by the inverse of the frequency: total / (classes * count)";
    finding.causes = {"counts or shares of classes given as weights, without the inverse"};
    finding.evidence = {{"ratio", *most / *least}, {"weight", known->weights.front()}};
    finding.threshold =
        "weights in proportion to the counts, or pos_weight the share or odds of positives (Luff)";
    sink.Report(std::move(finding));
  }

  // Weights that belong to other classes.
  void OfOthers(const StepView& view, const LossCall& call, ClassWeights::Known* known, Sink& sink) const {
    if (known->told || known->other_told) return;
    const std::string fault = known->OfOthers(limits_.samples);
    if (fault.empty()) return;
    known->other_told = true;
    Finding finding = FindingAt(kName, "weights_of_other_classes", view, TensorAt{call.loss, call.worker});
    finding.since_step = 0;
    finding.what = "the weights of classes that the loss is given do not belong to these classes";
    finding.why = fmt::format("{}: what is weighed up is not what is rare", fault);
    finding.remedy =
        "compute the weights in the order of the class ids (bincount of the labels, or "
        "compute_class_weight with classes in that order), and look at weight and count of each class side "
        "by "
        "side";
    finding.causes = {
        "counts sorted by frequency (value_counts, Counter.most_common) in place of by class id",
        "class names in another order than the ids of the labels",
        "weights of an earlier task, or of another data set"};
    const auto [light, heavy] = std::minmax_element(known->weights.begin(), known->weights.end());
    finding.evidence = {{"largest_weight", *heavy}, {"smallest_weight", *light}};
    finding.threshold =
        "inverse frequencies if sorted and not as they are, or a fiftieth for half of the classes that are "
        "as "
        "frequent as the heaviest (Luff)";
    sink.Report(std::move(finding));
  }

  // Positives that count far more than all negatives together.
  void Outweighed(const StepView& view, const LossCall& call, ClassWeights::Known* known, Sink& sink) const {
    if (known->heavy_told) return;
    const double times = known->PositivesOutweigh(limits_.samples);
    if (!(times > 0)) return;
    known->heavy_told = true;
    const double even = known->counts[0] / known->counts[1];
    Finding finding = FindingAt(kName, "positives_outweigh", view, TensorAt{call.loss, call.worker});
    finding.since_step = 0;
    finding.what = fmt::format("pos_weight={:.3g} lets positives count {:.3g} times as much as all negatives",
                               known->weights.front(), times);
    finding.why = fmt::format(
        "the targets have {:.3g} negatives for each positive, and that is the weight that makes both count "
        "alike: with this one the answer yes for all costs nearly nothing",
        even);
    finding.remedy =
        fmt::format("use pos_weight = negatives / positives of what the loss is given: {:.3g}", even);
    finding.causes = {"a weight from other data, or of whole images in place of pixels",
                      "rare rows that are drawn more often by a sampler, and weighed up once more"};
    finding.evidence = {{"weight", known->weights.front()}, {"times", times}, {"even_weight", even}};
    finding.threshold = "ten times, of 30 targets of each class at least (Luff)";
    sink.Report(std::move(finding));
  }

  // Whether a call has one label for each row of a model's input: not for each place of a text or an image.
  static bool IsOfSamples(const StepView& view, const LossCall& call) {
    if (call.target.whole_shape.empty()) return false;
    for (const ModelInput& input : ModelInputsOf(view)) {
      const auto shape = view.trial.Shape(input.entry->tensor, view.rows.info.global_step,
                                          query::Mode::kGlobal, input.entry->worker);
      if (!shape.ok()) continue;
      const auto& whole = shape->global_shape.empty() ? shape->shape : shape->global_shape;
      if (!whole.empty() && whole.front() == call.target.whole_shape.front()) return true;
    }
    return false;
  }

  // A class that the loss leaves out and the evaluation counts.
  void Zero(const StepView& view, const LossCall& call, ClassWeights::Known* known, Sink& sink) const {
    const std::int64_t zero = known->ZeroClass(limits_.samples);
    if (known->zero >= 0) {
      const auto before = static_cast<std::size_t>(known->zero);
      if (before < known->weights.size() && known->weights[before] == 0) return;
      sink.Heal("weight_of_zero", view.trial.tensor(call.loss).name, view.rows.info.mode_step);
      known->zero = -1;
    }
    if (zero < 0) return;
    known->zero = zero;
    const auto at = static_cast<std::size_t>(zero);
    const double trained = known->counts[at] / Sum(known->counts);
    const double tested = known->evaluated[at] / Sum(known->evaluated);
    Finding finding = FindingAt(kName, "weight_of_zero", view, TensorAt{call.loss, call.worker});
    finding.since_step = 0;
    finding.what = fmt::format(
        "class {} has weight 0 in the loss, and {:.2g} % of the rows that are evaluated", zero, 100 * tested);
    finding.why = fmt::format(
        "the loss leaves {:.2g} % of the training's rows out, so that the model never answers {}; the "
        "evaluation counts all of them as wrong",
        100 * trained, zero);
    finding.remedy =
        "give the class a weight above 0; if it means that there is no label, take its rows out of the "
        "evaluation, too";
    finding.causes = {"a weight of 0 for a background class that this data does not have",
                      "a list of ignored labels that names a real class"};
    finding.evidence = {{"class", static_cast<double>(zero)},
                        {"trained", trained},
                        {"evaluated", tested},
                        {"answered", known->answered[at]}};
    finding.threshold = "weight 0, at least half of an even share on both sides, never answered (Luff)";
    sink.Report(std::move(finding));
  }

  struct Batch {
    std::vector<double> seen, hit;  // by class
    void VisitFields(Fields& io) {
      io("seen", seen, kMaxClasses);
      io("hit", hit, kMaxClasses);
    }
  };
  struct Kind {
    std::string loss;
    std::vector<double> counts;  // by class
    std::deque<Batch> recent;
    std::int64_t unweighted = 0;  // calls whose value proves that no class is weighted
    bool weighted = false, open = false;
    std::vector<double> evaluated;  // targets of evaluations by class
    std::int64_t absent = -1;       // class that is reported
    void VisitFields(Fields& io) {
      io("evaluated", evaluated, kMaxClasses);
      io("absent", absent);
      io("loss", loss);
      io("counts", counts, kMaxClasses);
      io("recent", recent, kRecent);
      io("unweighted", unweighted);
      io("weighted", weighted);
      io("open", open);
      for (const Batch& batch : recent)
        io.Check(batch.seen.size() == counts.size() && batch.hit.size() == counts.size(),
                 "counts of the same classes");
    }
  };

  static void Take(const LabelledRows& rows, bool settled, Kind* kind) {
    if (kind->counts.size() != rows.classes) {
      kind->counts.assign(rows.classes, 0);
      kind->recent.clear();
    }
    Batch batch{std::vector<double>(rows.classes), std::vector<double>(rows.classes)};
    for (std::size_t i = 0; i < rows.labels.size(); ++i) {
      const auto label = static_cast<std::size_t>(rows.labels[i]);
      ++kind->counts[label];
      ++batch.seen[label];
      batch.hit[label] += rows.predictions[i] == rows.labels[i] ? 1 : 0;
    }
    if (!settled) return;
    kind->recent.push_back(std::move(batch));
    if (kind->recent.size() > kRecent) kind->recent.pop_front();
  }

  // A class with a share p of the evaluated targets is missing in n targets of the training by chance with
  // probability (1 - p)^n, if both are drawn from the same rows. The training must have been through its rows
  // once: they may come class by class.
  void Evaluated(const StepView& view, const LossCall& call, const LabelledRows& rows, Kind* kind,
                 Sink& sink) const {
    if (kind->evaluated.size() != rows.classes) kind->evaluated.assign(rows.classes, 0);
    for (const std::int64_t label : rows.labels) ++kind->evaluated[static_cast<std::size_t>(label)];
    if (kind->counts.size() != rows.classes) return;
    const double trained = Sum(kind->counts);
    const double evaluated = Sum(kind->evaluated);
    if (kind->absent >= 0 && kind->counts[static_cast<std::size_t>(kind->absent)] > 0) {
      sink.Heal("absent", kind->loss, view.rows.info.mode_step);
      kind->absent = -1;
    }
    if (kind->absent >= 0 || trained < static_cast<double>(limits_.samples) || passes_.count() < 2) return;
    std::size_t absent = rows.classes;
    for (std::size_t c = 0; c < rows.classes; ++c) {
      if (kind->counts[c] > 0 || kind->evaluated[c] < kLeastEvaluated) continue;
      if (absent == rows.classes || kind->evaluated[c] > kind->evaluated[absent]) absent = c;
    }
    if (absent == rows.classes) return;
    const double share = kind->evaluated[absent] / evaluated;
    const double chance = std::pow(1 - share, trained);
    if (chance > kChance) return;
    kind->absent = static_cast<std::int64_t>(absent);
    Finding finding = FindingAt(kName, "absent", view, TensorAt{call.loss, call.worker});
    finding.tensor = kind->loss;
    finding.since_step = 0;
    finding.what = fmt::format(
        "class {} is {:.2g} % of the targets that are evaluated, and none of {:.0f} that are trained", absent,
        100 * share, trained);
    finding.why = "a class that never comes cannot be learnt: every row of it will be predicted wrongly";
    finding.remedy = "look for a filter, a split by class or a renumbering of the labels before the training";
    finding.causes = {"a filter or a sampler that drops a class", "rows sorted by class before the split",
                      "labels numbered from another start in one of the two sets"};
    finding.evidence = {
        {"class", static_cast<double>(absent)}, {"share", share}, {"trained", trained}, {"chance", chance}};
    finding.threshold = fmt::format("less likely than {:g} by chance (Luff)", kChance);
    sink.Report(std::move(finding));
  }

  static double Sum(const std::vector<double>& counts) noexcept {
    return std::accumulate(counts.begin(), counts.end(), 0.0);
  }

  void Judge(const StepView& view, const LossCall& call, Kind* kind, Sink& sink) const {
    const double total = Sum(kind->counts);
    const double most = *std::max_element(kind->counts.begin(), kind->counts.end());
    if (total < static_cast<double>(limits_.samples) || kind->unweighted < 3) return;
    double rare = 0;
    double rare_hit = 0;
    double other = 0;
    double other_hit = 0;
    double least = most;
    for (std::size_t c = 0; c < kind->counts.size(); ++c) {
      if (kind->counts[c] == 0) continue;  // an absent class is not rare
      const bool is_rare = kind->counts[c] * limits_.imbalance < most;
      least = std::min(least, kind->counts[c]);
      for (const Batch& batch : kind->recent) {
        (is_rare ? rare : other) += batch.seen[c];
        (is_rare ? rare_hit : other_hit) += batch.hit[c];
      }
    }
    if (rare < static_cast<double>(limits_.rare)) return;
    const double missed = 1 - rare_hit / rare;
    if (missed < limits_.misprediction || other_hit < 0.8 * other) {
      if (kind->open && missed < limits_.misprediction - 0.1) {
        sink.Heal("unweighted", kind->loss, view.rows.info.mode_step);
        kind->open = false;
      }
      return;
    }
    kind->open = true;
    Finding finding = FindingAt(kName, "unweighted", view, TensorAt{call.loss, call.worker});
    finding.since_step = 0;
    finding.what =
        fmt::format("{:.0f} % of the samples of rare classes are predicted as something else", 100 * missed);
    finding.why = fmt::format(
        "the most frequent class has {:.0f} times the targets of the rarest, and the value of {} shows that "
        "no "
        "class is weighted: to ignore the rare ones is the easiest way to a low loss",
        most / least, call.kind);
    finding.remedy = "weight the loss (weight=, pos_weight=), or sample the classes evenly";
    finding.causes = {"classes of very different frequency, not weighted"};
    finding.evidence = {{"ratio", most / least},
                        {"rare_mispredicted", missed},
                        {"rare_samples", rare},
                        {"others_right", other > 0 ? other_hit / other : 0}};
    finding.threshold = fmt::format("ratio {:g} and {} samples (original), {:g} % mispredicted (Luff)",
                                    limits_.imbalance, limits_.samples, 100 * limits_.misprediction);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  LossReader reader_;
  Passes passes_;
  ClassWeights weightings_;
  std::map<std::string, Kind> kinds_;
  std::set<std::string> counted_;  // keys of losses whose evaluations count all answers
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecMadeBy(kName, kParams, [](const Limits& limits, const Parameters& all) -> MadeRule {
    LUFF_ASSIGN_OR_RETURN(NamedTensors labels, NamedTensors::Make(limits.labels, ""));
    LUFF_ASSIGN_OR_RETURN(NamedTensors predictions, NamedTensors::Make(limits.predictions, ""));
    if (IsOriginal(all))
      return std::unique_ptr<Rule>(new Original(std::move(labels), std::move(predictions), limits));
    return std::unique_ptr<Rule>(new Luff(limits));
  });
  spec.version =
      7;  // 2: cause "absent"; 3: "weights_upside_down"; 4: Passes by samples; 5: "weight_of_zero"; 6:
  // "weights_of_other_classes"; 7: "positives_outweigh", weights of pixels
  spec.summary =
      "rare classes that nothing weights, and that are not predicted; classes that are never trained";
  spec.needs = [](const Parameters& all) -> std::vector<Need> {
    if (!IsOriginal(all)) return SampleNeeds();
    return {NamedNeed("labels", TextOf(all, "labels_regex")),
            NamedNeed("predictions", TextOf(all, "predictions_regex"))};
  };
  return spec;
}

}  // namespace luff::rules::class_imbalance
