#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/json_event.h"
#include "rules/facts/loss_call.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// LossShapeMismatch: docs/rules/loss_shape_mismatch.md.
namespace luff::rules::loss_shape_mismatch {
namespace {

constexpr const char* kName = "LossShapeMismatch";

struct Limits {
  std::int64_t calls;
};
constexpr Param<Limits> kParams[] = {{&Limits::calls, "calls", "2", "calls in a row", AtLeast(1)}};

std::int64_t Product(const std::vector<std::int64_t>& shape) {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

class LossShapeMismatch final : public KeptRule {
 public:
  explicit LossShapeMismatch(const Limits& limits) : calls_(limits.calls) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.mode != query::Mode::kTrain) return;
    Flattened(view, sink);
    Products(view, sink);
    for (const LossCall& call : reader_.Read(view)) {
      if (kinds_.size() >= LossReader::kMaxKinds && !kinds_.contains(call.kind)) continue;
      Kind& kind = kinds_[call.kind];
      const auto& a = call.output.whole_shape;
      const auto& b = call.target.whole_shape;
      if (a == b) {
        kind.hits = 0;
        continue;
      }
      const auto both = BroadcastShape(a, b);
      if (!both || Product(*both) <= std::max(Product(a), Product(b))) continue;
      const Recognition found = reader_.Recognise(call);
      if (!Broadcasts(call, found)) {
        kind.hits = 0;
        continue;
      }
      if (kind.hits++ == 0) kind.since = view.rows.info.mode_step;
      if (kind.hits < calls_) continue;
      Finding finding = FindingAt(kName, "broadcast", view, TensorAt{call.loss, call.worker});
      finding.severity = Severity::kStop;
      finding.since_step = kind.since;
      finding.what = fmt::format("{} compares an output of shape ({}) with a target of shape ({})", call.kind,
                                 fmt::join(a, ", "), fmt::join(b, ", "));
      finding.why = fmt::format(
          "the two broadcast to ({}): every output is compared with every target, and the best that the "
          "model "
          "can do is to answer the mean{}",
          fmt::join(*both, ", "), found.by_value ? " (the loss's value is that of all pairs)" : "");
      finding.remedy = "give both one shape: squeeze the output's last axis, or add one to the target";
      finding.causes = {"an output layer with one unit keeps its axis, the target has none"};
      finding.evidence = {{"elements_compared", Product(*both)}, {"elements_of_target", Product(b)}};
      if (call.value) finding.evidence.emplace_back("loss", *call.value);
      finding.threshold = fmt::format("{} calls in a row (Luff)", calls_);
      sink.Report(std::move(finding));
    }
  }

  void VisitFields(Fields& io) override {
    io("kinds", kinds_, LossReader::kMaxKinds);
    io("reader", reader_);
    io("crossed", crossed_, kMostCalls);
    io("paired", paired_);
  }

 private:
  struct Kind {
    std::int64_t hits = 0, since = -1;
    void VisitFields(Fields& io) {
      io("hits", hits);
      io("since", since);
    }
  };

  // Reports rows that were flattened in one order in the output and in another in the target.
  void Flattened(const StepView& view, Sink& sink) {
    for (const auto& event : view.index.json_events("loss_rows")) {
      const double number = NumberIn(*event, "call");
      const auto kind = event->find("loss");
      const auto crossed = event->find("crossed");
      if (!(number >= 0 && number < kMostCalls) || kind == event->end() || !kind->is_string() ||
          crossed == event->end() || !crossed->is_string())
        continue;
      const std::string key = KeyOfCall(kind->get<std::string>(), static_cast<std::size_t>(number));
      const std::string how = crossed->get<std::string>();
      const bool known = crossed_.contains(key);
      if (CauseOf(how) == nullptr) {
        if (!known) continue;
        if (const char* cause = CauseOf(crossed_[key])) sink.Heal(cause, key, view.rows.info.mode_step);
        crossed_.erase(key);
        continue;
      }
      if (!known && crossed_.size() >= kMostCalls) continue;
      crossed_[key] = how;
      const std::string name = kind->get<std::string>();
      const std::string output = ShapeIn(*event, "output");
      const std::string target = ShapeIn(*event, "target");
      Finding finding = FindingAt(kName, CauseOf(how), view, TensorAt{format::kNoId});
      finding.tensor = key;
      finding.severity = Severity::kStop;
      finding.since_step = view.rows.info.mode_step;
      if (how == "rows") {
        finding.what = fmt::format(
            "{} pairs outputs with targets of other rows: an output of ({}) and a target of ({}) are "
            "flattened",
            name, output, target);
        finding.why =
            "both have as many rows, but not in the same order: all outputs but a few are compared with the "
            "target of another sample or place, and the model can learn only how frequent targets are";
        finding.remedy =
            "flatten both in one order: transpose the output back before its reshape, or the target too";
        finding.causes = {"axes of batch and time exchanged before the reshape of one of the two"};
      } else if (how == "axes") {
        finding.what =
            fmt::format("{} gets scores of ({}) that were reshaped, not transposed, for targets of ({})",
                        name, output, target);
        finding.why =
            "the classes are the last axis of what the model returns, and the loss takes the second one for "
            "them: a reshape leaves the memory in its order and does not exchange axes, so the scores of a "
            "place "
            "are pieces of the scores of several";
        finding.remedy = "move the classes with transpose(1, -1) or permute in the place of reshape or view";
        finding.causes = {"reshape or view where transpose or permute was meant"};
      } else {
        finding.what = fmt::format(
            "{} gets rows of scores that are cut across the axis of classes: an output of ({}) is flattened",
            name, output);
        finding.why =
            "the classes are not its last axis, so a row holds the scores of one class at neighbouring "
            "places, "
            "not those of all classes at one place";
        finding.remedy =
            "permute the axis of classes to the end before the reshape, or give the loss (N, C, ...) "
            "unflattened";
        finding.causes = {"view or reshape to (-1, classes) without permute"};
      }
      finding.threshold = "a fact of the graph (Luff)";
      sink.Report(std::move(finding));
    }
  }

  // Reports a loss that the script writes itself, in which outputs meet the targets of all samples.
  void Products(const StepView& view, Sink& sink) {
    for (const auto& event : view.index.json_events("loss_pairs")) {
      const auto paired = event->find("paired");
      if (paired == event->end() || !paired->is_boolean()) continue;
      const bool before = std::exchange(paired_, paired->get<bool>());
      if (before && !paired_) sink.Heal("broadcast", "", view.rows.info.mode_step);
      if (before || !paired_) continue;
      const std::string output = ShapeIn(*event, "output");
      const std::string target = ShapeIn(*event, "target");
      // No stop: fixed places that are as many as the samples look the same, unless they are evenly spaced.
      Finding finding = FindingAt(kName, "broadcast", view, TensorAt{format::kNoId});
      finding.since_step = 0;
      finding.what = fmt::format(
          "the loss multiplies values of shape ({}) by others of shape ({}), which have no gradient", output,
          target);
      finding.why =
          "the two broadcast to a product for each pair of samples, and the loss adds all of them up: each "
          "output meets the targets (labels, weights, returns) of all samples, and the sum stays the same if "
          "these change places";
      finding.remedy =
          "give both one shape before they meet: squeeze(-1), or unsqueeze(-1), or keepdim=True where a norm "
          "or a distance drops the axis";
      finding.causes = {"one of the two has lost its axis of length 1, the other has not"};
      finding.threshold = "a fact of the graph (Luff)";
      sink.Report(std::move(finding));
    }
  }

  // The cause for what an event says of a call; null for none.
  static const char* CauseOf(const std::string& how) {
    if (how == "rows") return "rows_crossed";
    if (how == "classes") return "classes_cut";
    return how == "axes" ? "axes_reshaped" : nullptr;
  }

  static std::string ShapeIn(const nlohmann::json& event, const char* key) {
    std::string text;
    for (const auto& size : ListIn(event, key)) {
      if (!size.is_number_integer() || text.size() > 64) continue;
      text += fmt::format("{}{}", text.empty() ? "" : ", ", size.get<std::int64_t>());
    }
    return text;
  }

  // Elementwise losses of torch broadcast. A custom one may squeeze first, so its value decides.
  static bool Broadcasts(const LossCall& call, const Recognition& found) {
    switch (FormulaOfKind(call.kind)) {
      case Formula::kMse:
      case Formula::kL1:
      case Formula::kSmoothL1:
      case Formula::kHuber:
      case Formula::kKlDivergence: return true;
      case Formula::kUnknown: return found.broadcast;
      default: return false;  // the others reject such shapes, or give them another meaning
    }
  }

  const std::int64_t calls_;
  LossReader reader_;
  std::map<std::string, Kind> kinds_;
  bool paired_ = false;  // outputs meet the targets of all samples in products
  static constexpr std::size_t kMostCalls = 64;
  std::map<std::string, std::string> crossed_;  // by key of the call: "rows", "classes" or "axes"
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<LossShapeMismatch>(kName, kParams);
  spec.version = 4;  // 2: causes "rows_crossed" and "classes_cut"; 3: "axes_reshaped"; 4: products
  spec.summary =
      "output and target of a loss that broadcast to something larger, or whose rows do not belong together";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::loss_shape_mismatch
