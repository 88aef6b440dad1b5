#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "base/format.h"
#include "rules/facts/common_needs.h"
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
  }

 private:
  struct Kind {
    std::int64_t hits = 0, since = -1;
    void VisitFields(Fields& io) {
      io("hits", hits);
      io("since", since);
    }
  };

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
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<LossShapeMismatch>(kName, kParams);
  spec.summary = "output and target of a loss that broadcast to something larger than both";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::loss_shape_mismatch
