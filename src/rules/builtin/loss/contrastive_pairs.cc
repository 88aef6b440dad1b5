#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/json_event.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/sample.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// ContrastivePairs: docs/rules/contrastive_pairs.md.
namespace luff::rules::contrastive_pairs {
namespace {

constexpr const char* kName = "ContrastivePairs";
constexpr std::size_t kLeastRows = 8;
constexpr double kRounding = 1e-5;  // of float32 after a normalisation and a product
constexpr double kVaries = 1e-2;

struct Limits {
  std::int64_t calls;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::calls, "calls", "8", "captured calls in a row, all of them so (Luff)", AtLeast(2)}};

// What the likenesses of a batch tell: a cross entropy of (n, n) scores whose targets are all different.
enum class Pairs : std::uint8_t { kNone, kOrdinary, kSameView, kItself };

Pairs PairsOf(const LossCall& call) {
  const auto rows = ClassRowsOf(call);
  if (!rows || rows->rows < kLeastRows || !NamesPartners(call) ||
      call.output.whole_shape[0] != call.output.whole_shape[1])
    return Pairs::kNone;
  double least = HUGE_VAL;    // of the partners' scores
  double most = -HUGE_VAL;    // of them
  double others = -HUGE_VAL;  // the largest of another column than the row's own
  double itself = HUGE_VAL;   // least and most of the row's own column
  double most_itself = -HUGE_VAL;
  double lowest = HUGE_VAL;  // of other columns, but for masked ones
  bool own_is_target = false;
  for (std::size_t i = 0; i < rows->rows; ++i) {
    const double* row = &rows->scores[i * rows->classes];
    const double id = rows->ids[i];
    if (!(id >= 0 && id < static_cast<double>(rows->classes))) return Pairs::kNone;
    const auto target = static_cast<std::size_t>(id);
    own_is_target = own_is_target || target == i;
    for (std::size_t c = 0; c < rows->classes; ++c) {
      if (std::isnan(row[c])) return Pairs::kNone;
      if (c == target) {
        least = std::min(least, row[c]);
        most = std::max(most, row[c]);
      } else if (c == i) {
        itself = std::min(itself, row[c]);
        most_itself = std::max(most_itself, row[c]);
      } else {
        others = std::max(others, row[c]);
        if (row[c] > -1e4) lowest = std::min(lowest, row[c]);
      }
    }
  }
  const double size = std::max(std::abs(most), std::abs(others));
  if (!(size > 0) || !std::isfinite(size)) return Pairs::kNone;
  if (!(others - lowest > kVaries * size)) return Pairs::kNone;  // collapsed, or of one row
  const auto same = [&](double low, double high) { return high - low <= kRounding * size; };
  if (same(least, most) && least >= others - kRounding * size && least > 0) return Pairs::kSameView;
  if (!own_is_target && same(itself, most_itself) && itself > 0 && itself >= others - kRounding * size &&
      itself >= most - kRounding * size)
    return Pairs::kItself;
  return Pairs::kOrdinary;
}

// Two first arguments of a loss of pairs or triplets whose rows are the same, though rows differ.
Pairs ViewsOf(const LossCall& call) {
  if (call.output.shape != call.target.shape || call.output.shape.size() != 2 ||
      RowsOf(call.output).count < kLeastRows)
    return Pairs::kNone;
  const std::vector<double>& a = call.output.values;
  double size = 0;
  double apart = 0;
  double spread = 0;
  const std::size_t width = RowsOf(call.output).width;
  for (std::size_t i = 0; i < a.size(); ++i) {
    size = std::max(size, std::abs(a[i]));
    apart = std::max(apart, std::abs(a[i] - call.target.values[i]));
    spread = std::max(spread, std::abs(a[i] - a[i % width]));
  }
  if (!std::isfinite(size) || !(spread > kVaries * size)) return Pairs::kNone;
  return apart <= kRounding * size ? Pairs::kSameView : Pairs::kOrdinary;
}

class ContrastivePairs final : public KeptRule {
 public:
  explicit ContrastivePairs(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.mode != query::Mode::kTrain) return;
    TellCompared(view, sink);
    for (const LossCall& call : LossReader::Read(view)) {
      const bool distances = call.kind == "TripletMarginLoss" || call.kind == "TripletMarginWithDistanceLoss";
      if (!distances && FormulaOfKind(call.kind) != Formula::kCrossEntropy &&
          FormulaOfKind(call.kind) != Formula::kNll)
        continue;
      if (!kinds_.contains(call.key) && kinds_.size() >= LossReader::kMaxKinds) continue;
      Take(view, call, distances ? ViewsOf(call) : PairsOf(call), distances, sink);
    }
  }

  void VisitFields(Fields& io) override {
    io("kinds", kinds_, LossReader::kMaxKinds);
    io("compared", compared_);
  }

 private:
  struct Kind {
    std::int64_t same = 0, itself = 0, since = -1;  // calls in a row
    void VisitFields(Fields& io) {
      io("same", same);
      io("itself", itself);
      io("since", since);
    }
  };

  // Whatever the loss is: the hook has seen two results of a model that are equal in every bit, and where the
  // loss's graph compares them.
  void TellCompared(const StepView& view, Sink& sink) {
    constexpr std::size_t kMaxName = 64;
    for (const auto& event : view.index.json_events("same_view")) {
      const auto compared = event->find("compared");
      if (compared == event->end() || !compared->is_string()) continue;
      const auto& name = compared->get_ref<const std::string&>();
      if (name.size() > kMaxName || name.empty() != compared_) continue;
      if (compared_) {
        sink.Heal("same_view", kCompared, view.rows.info.mode_step);
        compared_ = false;
        continue;
      }
      compared_ = true;
      Finding finding = FindingAt(kName, "same_view", view, TensorAt{format::kNoId});
      finding.severity = Severity::kWarn;
      finding.tensor = kCompared;
      finding.what = "the loss compares two results of the model that are one and the same";
      finding.why = fmt::format(
          "the model has returned the same numbers twice, in every bit and every row, and an operation of "
          "the "
          "loss ({}) compares the two: a difference is 0 and a cosine is 1 whatever the model is, and "
          "nothing "
          "is learnt about what belongs together",
          name);
      finding.remedy =
          "give the second call the other view, or the other sample: model(view_1), model(view_2)";
      finding.causes = {"one view, or the anchor itself, that is used twice",
                        "an augmentation that was drawn once, or with one seed for both views",
                        "a teacher that is the student"};
      finding.threshold = "8 steps in a row that were looked at (Luff)";
      sink.Report(std::move(finding));
    }
  }

  void Take(const StepView& view, const LossCall& call, Pairs pairs, bool distances, Sink& sink) {
    if (pairs == Pairs::kNone) return;
    Kind& kind = kinds_[call.key];
    const std::int64_t step = view.rows.info.mode_step;
    if (pairs == Pairs::kOrdinary) {
      if (kind.same >= limits_.calls) sink.Heal("same_view", call.key, step);
      if (kind.itself >= limits_.calls) sink.Heal("itself", call.key, step);
      kind = Kind();
      return;
    }
    if (kind.same + kind.itself == 0) kind.since = step;
    kind.same = pairs == Pairs::kSameView ? kind.same + 1 : 0;
    kind.itself = pairs == Pairs::kItself ? kind.itself + 1 : 0;
    if (std::max(kind.same, kind.itself) < limits_.calls) return;
    const bool same = pairs == Pairs::kSameView;
    Finding finding = FindingAt(kName, same ? "same_view" : "itself", view, TensorAt{call.loss, call.worker});
    finding.tensor = call.key;
    finding.since_step = kind.since;
    if (same) {
      finding.what = fmt::format("{} gets pairs that are one and the same view of a sample", call.kind);
      finding.why =
          distances
              ? "anchor and positive are equal in every row and every value: their distance is 0 whatever "
                "the "
                "model is, and nothing is learnt about what belongs together"
              : "the score of each row's partner is the same number in all rows and the largest of all, from "
                "the first step on: partners are equal, and nothing is learnt about what belongs together";
      finding.remedy = distances ? "draw the positive from the other samples of the class, or augment it anew"
                                 : "augment each sample twice, each view with its own random numbers";
      finding.causes = {"one augmented view that is used twice",
                        "an augmentation with one seed for both views, or none",
                        "a positive that is drawn with the anchor's own index"};
    } else {
      finding.what = fmt::format("{} counts each sample itself among the negatives", call.kind);
      finding.why =
          "in each row the score of the sample with itself is the same number and the largest of all, and it "
          "is not the target: the loss pushes each sample away from itself, which no model can do";
      finding.remedy = "mask the diagonal with minus infinity before the cross entropy";
      finding.causes = {"the diagonal of the likenesses is not masked"};
    }
    finding.evidence = {{"rows", static_cast<double>(RowsOf(call.output).count)}};
    if (call.value) finding.evidence.emplace_back("loss", *call.value);
    finding.threshold = fmt::format("{} captured calls in a row (Luff)", limits_.calls);
    sink.Report(std::move(finding));
  }

  static constexpr const char* kCompared = "loss";
  const Limits limits_;
  std::map<std::string, Kind> kinds_;  // by key of the call
  bool compared_ = false;              // what the hook has seen was told, and stands
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<ContrastivePairs>(kName, kParams);
  spec.version = 2;  // 2: what the hook sees
  spec.summary =
      "pairs of a contrastive loss that are one view twice, or samples that are their own negatives";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::contrastive_pairs
