#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/loss_tracker.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/model_modules.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// SaturatedActivation: docs/rules/saturated_activation.md.
namespace luff::rules::saturated_activation {
namespace {

using format::Form;
using format::Role;
constexpr const char* kName = "SaturatedActivation";
constexpr std::size_t kMaxLayers = 1 << 14;

struct Limits {
  double tanh_min, tanh_max, sigmoid_min, sigmoid_max, inactivity, layer;
  double slope;
  std::int64_t captures;
  double stuck;
  std::int64_t later, interval;
};
constexpr Param<Limits> kParams[] = {
    {nullptr, "collection_names", "None", "collections to inspect (original)"},
    {nullptr, "tensor_regex", ".*tanh_input|.*sigmoid_input",
     "inputs to inspect (original; Luff's set takes outputs of modules of type Tanh and Sigmoid)"},
    {&Limits::tanh_min, "threshold_tanh_min", "-9.4999", "lower end of tanh's range (original)"},
    {&Limits::tanh_max, "threshold_tanh_max", "9.4999", "upper end of tanh's range (original)"},
    {&Limits::sigmoid_min, "threshold_sigmoid_min", "-23", "lower end of sigmoid's range (original)"},
    {&Limits::sigmoid_max, "threshold_sigmoid_max", "16.99999", "upper end of sigmoid's range (original)"},
    {&Limits::inactivity, "threshold_inactivity", "1.0",
     "percent of inputs inside the range below which a node is saturated (original)"},
    {&Limits::layer, "threshold_layer", "50.0", "percent of saturated nodes (original)"},
    {&Limits::slope, "slope", "0.15", "mean slope at the start, beside the largest (Luff)"},
    {&Limits::captures, "captures", "2", "captures at the start (Luff)", AtLeast(1)},
    {&Limits::stuck, "stuck", "0.02", "mean slope later on, beside the largest (Luff)"},
    {&Limits::later, "later", "4", "captures in a row later on (Luff)", AtLeast(1)},
    {&Limits::interval, "interval", "16", "TRAIN steps between two captures", AtLeast(1), "1"},
};

// smdebug's rule: a node (position along all axes but the first) is saturated when less than
// threshold_inactivity percent of its inputs lie inside the range; fires when more than threshold_layer
// percent of a tensor's nodes are. The name of the tensor selects the range.
class Original final : public KeptRule {
 public:
  Original(TensorSelector selector, const Limits& limits) : selector_(std::move(selector)), limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    for (const auto& entry : view.rows.summaries) {
      if (!selector_.Selects(view.trial, entry.tensor)) continue;
      const std::string& name = view.trial.tensor(entry.tensor).name;
      const bool sigmoid =
          name.find("sigmoid") != std::string::npos || name.find("Sigmoid") != std::string::npos;
      const double low = sigmoid ? limits_.sigmoid_min : limits_.tanh_min;
      const double high = sigmoid ? limits_.sigmoid_max : limits_.tanh_max;
      const Result<query::Value> read =
          view.trial.ReadValue(entry.tensor, view.rows.info.global_step, query::Mode::kGlobal, entry.worker);
      if (!read.ok()) continue;  // not saved at this step
      const query::Value& value = read.value();
      const std::size_t batch =
          value.shape.empty() ? 1 : static_cast<std::size_t>(std::max<std::int64_t>(1, value.shape[0]));
      const std::vector<double> inputs = NumbersOf(value);
      const std::size_t nodes = inputs.size() / batch;
      if (nodes == 0) continue;
      std::vector<std::uint32_t> active(nodes, 0);
      for (std::size_t sample = 0; sample < batch; ++sample) {
        const double* row = &inputs[sample * nodes];
        for (std::size_t i = 0; i < nodes; ++i) active[i] += row[i] > low && row[i] < high ? 1 : 0;
      }
      const auto saturated = std::count_if(active.begin(), active.end(), [&](std::uint32_t inside) {
        return 100.0 * inside / static_cast<double>(batch) < limits_.inactivity;
      });
      const double percent = 100.0 * static_cast<double>(saturated) / static_cast<double>(nodes);
      if (!(percent > limits_.layer)) continue;
      Finding finding = FindingAt(kName, "saturated", view, entry);
      finding.what = fmt::format("{:.3g} % of the nodes of {} are saturated", percent, name);
      finding.why = fmt::format("less than {:g} % of their inputs lie between {:g} and {:g}",
                                limits_.inactivity, low, high);
      finding.remedy = "use smaller initial weights or normalise what goes into the activation";
      finding.evidence = {{"saturated_percent", percent}};
      finding.threshold = fmt::format("more than {:g} % of the nodes (original)", limits_.layer);
      sink.Report(std::move(finding));
    }
  }

 private:
  TensorSelector selector_;
  const Limits limits_;
};

// Luff's rule: the mean slope of the activation relative to its largest slope, from the statistics of its
// output alone. tanh' = 1 - y^2; sigmoid' = y (1 - y), at most 1/4.
constexpr double kOneSide = 0.9;    // a mean output beyond it comes from a bias, as intended in gates
constexpr std::int64_t kStart = 8;  // TRAIN steps that count as the start
constexpr double kNothing = 1e-4;   // slope of units that a bias has switched off for good

enum class Kind { kNone, kTanh, kSigmoid };

Kind KindOf(const query::TensorInfo& tensor) {
  if (tensor.module_type == "Tanh") return Kind::kTanh;
  return tensor.module_type == "Sigmoid" ? Kind::kSigmoid : Kind::kNone;
}

class Luff final : public KeptRule {
 public:
  explicit Luff(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    tracker_.OnStep(view);
    // If trained weights were loaded, the start does not show the initialisation.
    if (!loaded_known_ || info.mode_step <= kStart) loaded_ = loaded_ || LoadsWeights(view.index);
    loaded_known_ = true;
    if (modules_.OnStep(view)) FindOutputs();
    query::TensorId lead = format::kNoId;
    std::uint32_t worker = 0;
    double least = 2;
    bool start = false;
    bool looked = false;
    std::int64_t since = 0;
    std::vector<std::string> others;
    for (const auto& [entry, tensor] : view.index.summaries(Role::kOutput)) {
      const Kind kind = KindOf(tensor);
      if (kind == Kind::kNone || entry.summary.count == 0 ||
          entry.summary.finite_count() != entry.summary.count || IsOutput(tensor, kind))
        continue;
      const std::string key = fmt::format("{}\n{}", entry.worker, tensor.name);
      if (layers_.size() >= kMaxLayers && !layers_.contains(key)) continue;
      looked = true;
      Layer& layer = layers_[key];
      const double n = static_cast<double>(entry.summary.count);
      const double mean = kind == Kind::kTanh ? entry.summary.sum / n : 2 * entry.summary.sum / n - 1;
      const double slope = kind == Kind::kTanh ? 1 - entry.summary.sum_sq / n
                                               : 4 * (entry.summary.sum - entry.summary.sum_sq) / n;
      const bool both_sides = std::abs(mean) < kOneSide;
      if (layer.captures++ == 0) layer.first_step = info.mode_step;
      const bool low = (slope < limits_.slope && both_sides) || slope < kNothing;
      layer.low = low ? layer.low + 1 : 0;
      layer.stuck = slope < limits_.stuck && info.mode_step > kStart ? layer.stuck + 1 : 0;
      const bool from_start = !loaded_ && layer.low == layer.captures && layer.captures >= limits_.captures &&
                              layer.first_step <= kStart;
      if (layer.low == 1 || layer.stuck == 1) layer.since = info.mode_step;
      const bool later =
          layer.stuck >= limits_.later && tracker_.EnoughEvidence(48) && !tracker_.AnyImproved(0.02);
      if (!from_start && !later) continue;
      if (lead == format::kNoId || slope < least) {
        if (lead != format::kNoId) others.push_back(view.trial.tensor(lead).name);
        lead = entry.tensor;
        worker = entry.worker;
        least = slope;
        start = from_start;
        since = from_start ? layer.first_step : layer.since;
      } else {
        others.push_back(tensor.name);
      }
    }
    if (!looked) return;
    if (lead == format::kNoId) {
      if (!open_.empty()) sink.Heal("saturated", open_, info.mode_step);
      open_.clear();
      return;
    }
    Finding finding = FindingAt(kName, "saturated", view, TensorAt{lead, worker});
    if (open_.empty()) open_ = finding.tensor;
    if (open_ != finding.tensor) others.push_back(finding.tensor);
    std::erase(others, open_);
    finding.tensor = open_;
    finding.other_tensors = std::move(others);
    finding.since_step = since;
    finding.what = fmt::format("the activations {} are saturated: their mean slope is {:.2g} of the largest",
                               finding.tensor, std::max(0.0, least));
    finding.why =
        start ? "they are so from the start on: most inputs lie where the curve is flat, so next to no "
                "gradient gets through"
              : "they have become so and the loss does not fall: next to no gradient gets through";
    finding.remedy =
        start ? "initialise with smaller weights (the framework's default, or Xavier), normalise the "
                "inputs, or put a normalisation before the activation"
              : "lower the learning rate, normalise before the activation, or use ReLU-like ones";
    finding.causes = {"initial weights far too large", "inputs that are not normalised",
                      "learning rate too high"};
    finding.evidence = {{"mean_slope", std::max(0.0, least)}};
    finding.threshold =
        start ? fmt::format("mean slope below {:g} of the largest in the first {} captures (Luff)",
                            limits_.slope, limits_.captures)
              : fmt::format(
                    "mean slope below {:g} of the largest in {} captures in a row, and no better loss (Luff)",
                    limits_.stuck, limits_.later);
    sink.Report(std::move(finding));
  }

  void VisitFields(Fields& io) override {
    io("losses", tracker_);
    io("layers", layers_, kMaxLayers);
    io("loaded_known", loaded_known_);
    io("loaded", loaded_);
    io("open", open_);
  }

 private:
  struct Layer {
    std::int64_t captures = 0, first_step = 0;
    std::int64_t low = 0;    // captures in a row with a low slope
    std::int64_t stuck = 0;  // after the start: captures in a row with nearly no slope
    std::int64_t since = 0;
    void VisitFields(Fields& io) {
      io("captures", captures);
      io("first_step", first_step);
      io("low", low);
      io("stuck", stuck);
      io("since", since);
    }
  };

  [[nodiscard]] bool IsOutput(const query::TensorInfo& tensor, Kind kind) const {
    return kind == Kind::kSigmoid && outputs_.contains(tensor.module_path);
  }
  // Finds the sigmoids after the last layer with weights: these are outputs of the model and may saturate.
  void FindOutputs() {
    outputs_.clear();
    std::set<std::string> waiting;
    const std::string* model = nullptr;
    const auto end_of_model = [&] {
      outputs_.merge(waiting);
      waiting.clear();
    };
    for (const ModuleFacts& module : modules_.modules()) {
      if (model != nullptr && *model != module.model) end_of_model();
      model = &module.model;
      if (module.type == "Sigmoid") {
        waiting.insert(module.path);
        if (!module.name.empty()) waiting.insert(module.name);
      } else if (module.kind == ModuleKind::kLinear || module.kind == ModuleKind::kConvolution) {
        waiting.clear();
      }
    }
    end_of_model();
  }

  const Limits limits_;
  LossTracker tracker_;
  std::map<std::string, Layer> layers_;  // by worker and name
  bool loaded_known_ = false, loaded_ = false;
  std::string open_;
  ModelModules modules_;
  std::set<std::string> outputs_;  // paths and names of sigmoids that are outputs
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<Luff, Original>(kName, kParams);
  spec.summary = "tanh or sigmoid units at their limits, where no gradient gets through";
  spec.needs = [](const Parameters& all) {
    std::vector<Need> needs = {{.collection = "saturation_outputs",
                                .roles = {Role::kOutput},
                                .module_types = {"Tanh", "Sigmoid"},
                                .forms = Bit(Form::kSummary),
                                .first_steps = 4}};
    if (IsOriginal(all))
      needs = SelectedNeeds(all, "saturation_inputs", Bit(Form::kSummary) | Bit(Form::kRaw));
    for (Need& need : needs) need.save_interval = IntervalOf(all);
    return needs;
  };
  return spec;
}

}  // namespace luff::rules::saturated_activation
