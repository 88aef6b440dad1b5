#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/loss_input.h"
#include "rules/facts/sample.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// ConstantOutput: docs/rules/constant_output.md.
namespace luff::rules::constant_output {
namespace {

constexpr const char* kName = "ConstantOutput";

struct Limits {
  std::int64_t calls, steps;
  double tolerance;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::calls, "calls", "12", "captured batches in a row", AtLeast(1)},
    {&Limits::steps, "steps", "40", "TRAIN steps over which it lasts (an output layer of zeros begins so)"},
    {&Limits::tolerance, "tolerance", "1e-6", "difference between rows, as a share of the largest output",
     AtLeast(0)},
};

class ConstantOutput final : public KeptRule {
 public:
  explicit ConstantOutput(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    makers_.OnStep(view);
    const std::vector<LossCall>& calls = LossReader::Read(view);
    if (calls.empty()) return;
    std::set<std::pair<std::uint32_t, std::size_t>> varied;  // (worker, rows) of inputs whose rows differ
    for (const ModelInput& input : ModelInputsOf(view)) {
      const auto sample = LoadSample(view, *input.entry);
      if (sample == nullptr) continue;
      const std::vector<std::uint64_t> hashes = RowHashes(*sample);
      if (std::set<std::uint64_t>(hashes.begin(), hashes.end()).size() >= 2)
        varied.emplace(input.entry->worker, hashes.size());
    }
    for (const LossCall& call : calls) {
      if (kinds_.size() >= LossReader::kMaxKinds && !kinds_.contains(call.kind)) continue;
      const SampleValues& output = call.output;
      const Rows rows = RowsOf(output);
      if (rows.count < 2 || !output.is_float()) continue;
      Kind& kind = kinds_[call.kind];
      if (!AllEqual(output, rows)) {
        if (kind.open) sink.Heal("constant", view.trial.tensor(call.loss).name, info.mode_step);
        kind = {};
        kind.differed = true;
        continue;
      }
      // A head of 16 bits that began with zeros, or learns slowly, differs by less than one rounding: until
      // its answers have differed once, nothing is known.
      const bool coarse = output.dtype == DType::kFloat16 || output.dtype == DType::kBFloat16;
      if (coarse && !kind.differed) continue;
      if (!varied.contains({call.worker, rows.count})) continue;  // equal inputs: equal outputs prove nothing
      if (kind.calls++ == 0) {
        kind.since = info.mode_step;
        kind.update = info.update;
      }
      if (kind.calls < limits_.calls || info.mode_step - kind.since < limits_.steps ||
          info.update <= kind.update)
        continue;
      kind.open = true;
      Finding finding = FindingAt(kName, "constant", view, TensorAt{call.loss, call.worker});
      finding.severity = Severity::kStop;
      finding.since_step = kind.since;
      finding.what = fmt::format("the output that {} gets is the same for every sample", call.kind);
      finding.why = fmt::format(
          "in {} captured batches since step {} the rows of the output were equal while the inputs differed: "
          "what goes in does not reach the output",
          kind.calls, kind.since);
      finding.remedy = "find the first layer whose output does not depend on the input";
      finding.causes = {"a layer of dead or saturated units", "weights that have shrunk to 0",
                        "a softmax over one class, or along the wrong axis", "an input that is not used"};
      const auto& values = output.values;
      if (makers_.Of(call) == "relu" &&
          std::all_of(values.begin(), values.end(), [](double v) { return v == 0; })) {
        finding.why +=
            "; the model ends in a ReLU, which gives 0 for all of them: its units are dead, and get no "
            "gradient";
        finding.remedy =
            "leave the ReLU behind the last layer out (of probabilities, take a sigmoid or softmax in its "
            "place)";
        finding.causes = {"a ReLU at the output whose units are dead"};
      }
      finding.evidence = {
          {"calls", kind.calls}, {"rows", rows.count}, {"first_value", output.values.front()}};
      finding.threshold = fmt::format("{} calls over {} steps (Luff)", limits_.calls, limits_.steps);
      sink.Report(std::move(finding));
    }
  }

  void VisitFields(Fields& io) override {
    io("kinds", kinds_, LossReader::kMaxKinds);
    io("makers", makers_);
  }

 private:
  struct Kind {
    std::int64_t calls = 0, since = -1, update = -1;
    bool open = false, differed = false;
    void VisitFields(Fields& io) {
      io("differed", differed);
      io("calls", calls);
      io("since", since);
      io("update", update);
      io("open", open);
    }
  };

  [[nodiscard]] bool AllEqual(const SampleValues& output, const Rows& rows) const {
    double scale = 0;
    for (const double value : output.values) {
      if (!std::isfinite(value)) return false;
      scale = std::max(scale, std::abs(value));
    }
    const double limit = limits_.tolerance * scale;
    for (std::size_t i = rows.width; i < rows.count * rows.width; ++i) {
      if (std::abs(output.values[i] - output.values[i % rows.width]) > limit) return false;
    }
    return true;
  }

  const Limits limits_;
  LossInputMakers makers_;
  std::map<std::string, Kind> kinds_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<ConstantOutput>(kName, kParams);
  spec.version = 3;  // 2: 16 bits; 3: a ReLU at the output
  spec.summary = "a model that gives one answer for all samples while its inputs differ";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::constant_output
