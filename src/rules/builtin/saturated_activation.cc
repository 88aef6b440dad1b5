#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/builtin/builtin.h"
#include "rules/json_state.h"
#include "rules/loss_tracker.h"
#include "rules/model_facts.h"
#include "rules/model_modules.h"
#include "rules/select.h"

/// SaturatedActivation: docs/rules/saturated_activation.md.
namespace luff::rules {
namespace {

using Json = nlohmann::json;
using format::Form;
using format::Role;
constexpr const char* kName = "SaturatedActivation";
constexpr const char* kPage = "docs/rules/saturated_activation.md";
constexpr std::size_t kMaxLayers = 1 << 14;

// ---- original: a node (position along all axes but the first) is saturated when less than
// threshold_inactivity percent of its inputs lie inside the range; fires when more than threshold_layer
// percent of a tensor's nodes are. The name of the tensor tells which range.

struct OriginalSettings {
  double tanh_min = -9.4999, tanh_max = 9.4999, sigmoid_min = -23, sigmoid_max = 16.99999;
  double inactivity = 1, layer = 50;
};

class Original final : public Rule {
 public:
  Original(TensorSelector selector, const OriginalSettings& settings)
      : selector_(std::move(selector)),
        settings_(settings) {}

  void OnStep(const StepView& view, Sink& sink) override {
    for (const auto& entry : view.rows.summaries) {
      if (!selector_.Selects(view.trial, entry.tensor)) continue;
      const std::string& name = view.trial.tensor(entry.tensor).name;
      const bool sigmoid =
          name.find("sigmoid") != std::string::npos || name.find("Sigmoid") != std::string::npos;
      const double low = sigmoid ? settings_.sigmoid_min : settings_.tanh_min;
      const double high = sigmoid ? settings_.sigmoid_max : settings_.tanh_max;
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
        return 100.0 * inside / static_cast<double>(batch) < settings_.inactivity;
      });
      const double percent = 100.0 * static_cast<double>(saturated) / static_cast<double>(nodes);
      if (!(percent > settings_.layer)) continue;
      Finding finding =
          FindingAt(kName, kPage, "saturated", view.trial, entry.tensor, entry.worker, view.rows.info);
      finding.what = fmt::format("{:.3g} % of the nodes of {} are saturated", percent, name);
      finding.why = fmt::format("less than {:g} % of their inputs lie between {:g} and {:g}",
                                settings_.inactivity, low, high);
      finding.remedy = "use smaller initial weights or normalise what goes into the activation";
      finding.evidence = {{"saturated_percent", percent}};
      finding.threshold = fmt::format("more than {:g} % of the nodes (original)", settings_.layer);
      sink.Report(std::move(finding));
    }
  }
  [[nodiscard]] std::string SaveState() const override { return "{}"; }
  [[nodiscard]] Status LoadState(std::string_view) override { return Status::Ok(); }

 private:
  TensorSelector selector_;
  OriginalSettings settings_;
};

// ---- Luff's own: the mean slope of the activation, beside the largest it has, from the statistics of its
// output alone. tanh' = 1 - y^2; sigmoid' = y (1 - y), at most 1/4.

struct Limits {
  double slope = 0.15;
  std::int64_t captures = 2;
  double stuck = 0.02;
  std::int64_t later = 4;
};

constexpr double kOneSide = 0.9;    // a mean output further out: driven by a bias, which gates are on purpose
constexpr std::int64_t kStart = 8;  // TRAIN steps that count as the start
constexpr double kNothing = 1e-4;   // slope of units that a bias has switched off for good

enum class Kind { kNone, kTanh, kSigmoid };

Kind KindOf(const query::TensorInfo& tensor) {
  if (tensor.role != Role::kOutput) return Kind::kNone;
  if (tensor.module_type == "Tanh") return Kind::kTanh;
  return tensor.module_type == "Sigmoid" ? Kind::kSigmoid : Kind::kNone;
}

class Luff final : public Rule {
 public:
  explicit Luff(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    tracker_.OnStep(view.trial, view.rows);
    // Weights of a trained model were loaded: nothing of the start is a fact of the initialisation.
    if (!loaded_known_ || info.mode_step <= kStart) loaded_ = loaded_ || LoadsWeights(view.rows);
    loaded_known_ = true;
    if (modules_.OnStep(view.trial, info)) FindOutputs();
    query::TensorId lead = format::kNoId;
    std::uint32_t worker = 0;
    double least = 2;
    bool start = false;
    bool looked = false;
    std::int64_t since = 0;
    std::vector<std::string> others;
    for (const auto& entry : view.rows.summaries) {
      const query::TensorInfo& tensor = view.trial.tensor(entry.tensor);
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
    Finding finding = FindingAt(kName, kPage, "saturated", view.trial, lead, worker, info);
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

  [[nodiscard]] std::string SaveState() const override {
    Json json;
    tracker_.Save(&json["losses"]);
    Json layers = Json::object();
    for (const auto& [name, l] : layers_) layers[name] = {l.captures, l.first_step, l.low, l.stuck, l.since};
    json["layers"] = std::move(layers);
    json["loaded"] = {loaded_known_, loaded_};
    json["open"] = open_;
    return JsonText(json);
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    return LoadJson(text, [&](const Json& json) {
      tracker_.Load(json.at("losses"));
      for (const auto& [name, l] : json.at("layers").items())
        layers_[name] = {l.at(0), l.at(1), l.at(2), l.at(3), l.at(4)};
      loaded_known_ = json.at("loaded").at(0);
      loaded_ = json.at("loaded").at(1);
      open_ = json.at("open").get<std::string>();
    });
  }

 private:
  struct Layer {
    std::int64_t captures = 0, first_step = 0;
    std::int64_t low = 0;    // captures in a row with a low slope
    std::int64_t stuck = 0;  // after the start: with next to none
    std::int64_t since = 0;
  };

  [[nodiscard]] bool IsOutput(const query::TensorInfo& tensor, Kind kind) const {
    return kind == Kind::kSigmoid && outputs_.contains(tensor.module_path);
  }
  // A sigmoid behind the last layer with weights is the model's output: it may be sure of itself.
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
      } else if (module.type.ends_with("Linear") || module.type.starts_with("Conv")) {
        waiting.clear();
      }
    }
    end_of_model();
  }

  const Limits limits_;
  LossTracker tracker_;
  std::map<std::string, Layer> layers_;  // worker and name
  bool loaded_known_ = false, loaded_ = false;
  std::string open_;
  ModelModules modules_;
  std::set<std::string> outputs_;  // paths and names of sigmoids that are outputs
};

}  // namespace

RuleSpec SaturatedActivationSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.page = kPage;
  spec.summary = "tanh or sigmoid units at their limits, where no gradient gets through";
  spec.parameters = {
      {"collection_names", "None", "None", "collections to inspect (original)"},
      {"tensor_regex", ".*tanh_input|.*sigmoid_input", ".*tanh_input|.*sigmoid_input",
       "inputs to inspect (original; Luff's set takes outputs of modules of type Tanh and Sigmoid)"},
      {"threshold_tanh_min", "-9.4999", "-9.4999", "lower end of tanh's range (original)"},
      {"threshold_tanh_max", "9.4999", "9.4999", "upper end of tanh's range (original)"},
      {"threshold_sigmoid_min", "-23", "-23", "lower end of sigmoid's range (original)"},
      {"threshold_sigmoid_max", "16.99999", "16.99999", "upper end of sigmoid's range (original)"},
      {"threshold_inactivity", "1.0", "1.0",
       "percent of inputs inside the range below which a node is saturated (original)"},
      {"threshold_layer", "50.0", "50.0", "percent of saturated nodes (original)"},
      {"slope", "0.15", "0.15", "mean slope at the start, beside the largest (Luff)"},
      {"captures", "2", "2", "captures at the start (Luff)"},
      {"stuck", "0.02", "0.02", "mean slope later on, beside the largest (Luff)"},
      {"later", "4", "4", "captures in a row later on (Luff)"},
      {"interval", "16", "1", "TRAIN steps between two captures"},
  };
  spec.needs = [](const Parameters& parameters) -> std::vector<Need> {
    const Result<std::int64_t> interval = ParseInt(TextOf(parameters, "interval"));
    std::vector<Need> needs;
    if (IsOriginal(parameters)) {
      Result<TensorSelector> selector = TensorSelector::Make(parameters, false);
      if (selector.ok())
        needs = selector.value().NeedsOf("saturation_inputs", Bit(Form::kSummary) | Bit(Form::kRaw));
    } else {
      Need need;
      need.collection = "saturation_outputs";
      need.roles = {Role::kOutput};
      need.module_types = {"Tanh", "Sigmoid"};
      need.forms = Bit(Form::kSummary);
      need.first_steps = 4;
      needs.push_back(need);
    }
    for (Need& need : needs)
      need.save_interval = interval.ok() ? std::max<std::int64_t>(1, interval.value()) : 1;
    return needs;
  };
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    LUFF_ASSIGN_OR_RETURN(TensorSelector selector, TensorSelector::Make(parameters, false));
    OriginalSettings settings;
    LUFF_ASSIGN_OR_RETURN(settings.tanh_min, ParseDouble(TextOf(parameters, "threshold_tanh_min")));
    LUFF_ASSIGN_OR_RETURN(settings.tanh_max, ParseDouble(TextOf(parameters, "threshold_tanh_max")));
    LUFF_ASSIGN_OR_RETURN(settings.sigmoid_min, ParseDouble(TextOf(parameters, "threshold_sigmoid_min")));
    LUFF_ASSIGN_OR_RETURN(settings.sigmoid_max, ParseDouble(TextOf(parameters, "threshold_sigmoid_max")));
    LUFF_ASSIGN_OR_RETURN(settings.inactivity, ParseDouble(TextOf(parameters, "threshold_inactivity")));
    LUFF_ASSIGN_OR_RETURN(settings.layer, ParseDouble(TextOf(parameters, "threshold_layer")));
    Limits limits;
    LUFF_ASSIGN_OR_RETURN(limits.slope, ParseDouble(TextOf(parameters, "slope")));
    LUFF_ASSIGN_OR_RETURN(limits.captures, ParseInt(TextOf(parameters, "captures")));
    LUFF_ASSIGN_OR_RETURN(limits.stuck, ParseDouble(TextOf(parameters, "stuck")));
    LUFF_ASSIGN_OR_RETURN(limits.later, ParseInt(TextOf(parameters, "later")));
    LUFF_ASSIGN_OR_RETURN(const std::int64_t interval, ParseInt(TextOf(parameters, "interval")));
    if (interval < 1 || limits.captures < 1 || limits.later < 1)
      return InvalidArgument("'interval', 'captures' and 'later' must be at least 1");
    if (IsOriginal(parameters)) return std::unique_ptr<Rule>(new Original(std::move(selector), settings));
    return std::unique_ptr<Rule>(new Luff(limits));
  };
  return spec;
}

}  // namespace luff::rules
