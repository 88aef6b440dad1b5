#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/builtin/builtin.h"
#include "rules/json_state.h"
#include "rules/model_facts.h"
#include "rules/select.h"
#include "rules/step_memo.h"

/// UnchangedTensor: docs/rules/unchanged_tensor.md.
namespace luff::rules {
namespace {

using Json = nlohmann::json;
using format::EventKind;
using format::Form;
using format::Role;
constexpr const char* kName = "UnchangedTensor";
constexpr const char* kPage = "docs/rules/unchanged_tensor.md";

// ---- original: numpy.allclose of the values at the last num_steps available steps
// -----------------------------------

struct OriginalSettings {
  TensorSelector selector;
  std::int64_t num_steps = 3;
  double rtol = 1e-5, atol = 1e-8;
  bool equal_nan = false;
};

class Original final : public Rule {
 public:
  explicit Original(OriginalSettings settings) : settings_(std::move(settings)) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    for (const auto& entry : view.rows.summaries) {
      if (!settings_.selector.Selects(view.trial, entry.tensor)) continue;
      std::optional<std::vector<double>> now = ReadNumbers(view, entry.tensor, entry.worker);
      if (!now) continue;
      Series& series = series_[fmt::format("{}\n{}", entry.worker, view.trial.tensor(entry.tensor).name)];
      // Close to every one of the last num_steps - 1 values: a run of values close to the newest is counted
      // backwards.
      series.values.push_back(std::move(*now));
      if (series.values.size() > static_cast<std::size_t>(settings_.num_steps))
        series.values.erase(series.values.begin());
      if (series.values.size() < static_cast<std::size_t>(settings_.num_steps)) continue;
      const bool same = std::all_of(
          series.values.begin(), series.values.end() - 1,
          [&](const std::vector<double>& earlier) { return AllClose(series.values.back(), earlier); });
      if (!same) continue;
      Finding finding = FindingAt(kName, kPage, "unchanged", view.trial, entry.tensor, entry.worker, info);
      finding.what = fmt::format("{} has not changed in {} steps", finding.tensor, settings_.num_steps);
      finding.why = "the values of the last steps are all close";
      finding.remedy = "check that the tensor is trained, and the learning rate";
      finding.threshold =
          fmt::format("allclose with rtol {:g}, atol {:g} (original)", settings_.rtol, settings_.atol);
      sink.Report(std::move(finding));
    }
  }
  [[nodiscard]] std::string SaveState() const override {
    Json json = Json::object();
    for (const auto& [name, series] : series_) json[name] = series.values;
    return JsonText(json);
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    return LoadJson(text, [&](const Json& json) {
      for (const auto& [name, values] : json.items()) {
        for (const Json& value : values) {
          std::vector<double> row;
          for (const Json& number : value)
            row.push_back(number.is_number() ? number.get<double>() : std::nan(""));
          series_[name].values.push_back(std::move(row));
        }
      }
    });
  }

 private:
  struct Series {
    std::vector<std::vector<double>> values;
  };

  [[nodiscard]] bool AllClose(const std::vector<double>& a, const std::vector<double>& b) const {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i] == b[i]) continue;
      if (std::isnan(a[i]) || std::isnan(b[i])) {
        if (settings_.equal_nan && std::isnan(a[i]) && std::isnan(b[i])) continue;
        return false;
      }
      if (!(std::isfinite(a[i]) && std::isfinite(b[i]))) return false;
      if (!(std::abs(a[i] - b[i]) <= settings_.atol + settings_.rtol * std::abs(b[i]))) return false;
    }
    return true;
  }

  OriginalSettings settings_;
  std::map<std::string, Series> series_;
};

// ---- Luff's own
// ------------------------------------------------------------------------------------------------------ A
// trainable weight that gets gradients, and whose bits have not changed in `steps` TRAIN steps and `updates`
// updates of its optimizer, with a learning rate that was never zero. Weights in no optimizer are
// ParamNotOptimized's, weights without gradients NoGradient's, updates that are left out StepSkipped's.

struct Limits {
  std::int64_t steps = 48;
  std::int64_t updates = 40;
};

class Luff final : public Rule {
 public:
  explicit Luff(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    if (first_step_ < 0) first_step_ = info.mode_step;
    TakeEvents(view);
    for (const auto& entry : view.rows.scalars) {
      const query::TensorInfo& tensor = view.trial.tensor(entry.tensor);
      if (tensor.role == Role::kOptimizerSetting && tensor.name.ends_with(".lr") && entry.value == 0)
        lr_zero_[tensor.name] = info.mode_step;
    }
    for (const auto& entry : view.rows.summaries) {
      const query::TensorInfo& tensor = view.trial.tensor(entry.tensor);
      if (tensor.role != Role::kGradient) continue;
      Gradient& gradient = gradients_[ParameterOfGradient(tensor.name)];
      ++gradient.rows;
      if (entry.summary.abs_sum > 0) {
        ++gradient.nonzero;
        gradient.last_nonzero = info.mode_step;
      }
    }
    bool judged = false;
    for (const auto& entry : view.rows.forms) {
      if (entry.row.form != Bit(Form::kDifference)) continue;
      const query::TensorInfo& tensor = view.trial.tensor(entry.tensor);
      if (tensor.role != Role::kWeight) continue;
      judged = true;
      Weight& weight = weights_[tensor.name];
      weight.last_row = info.mode_step;
      if (entry.row.values[3] > 0) {
        weight.changed = info.mode_step;
        weight.counts = optimizer_steps_;
        weight.gradient_rows = gradients_[tensor.name].rows;
        weight.gradient_nonzero = gradients_[tensor.name].nonzero;
      }
    }
    if (judged) Judge(view, sink);
  }

  [[nodiscard]] std::string SaveState() const override {
    Json weights = Json::object();
    for (const auto& [name, w] : weights_)
      weights[name] = {w.last_row, w.changed, w.gradient_rows, w.gradient_nonzero, w.counts};
    Json gradients = Json::object();
    for (const auto& [name, g] : gradients_) gradients[name] = {g.rows, g.nonzero, g.last_nonzero};
    return JsonText(Json{{"weights", weights},
                         {"gradients", gradients},
                         {"lr_zero", lr_zero_},
                         {"steps", optimizer_steps_},
                         {"first", first_step_},
                         {"open", open_}});
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    return LoadJson(text, [&](const Json& json) {
      for (const auto& [name, w] : json.at("weights").items()) {
        weights_[name] = {w.at(0).get<std::int64_t>(), w.at(1).get<std::int64_t>(),
                          w.at(2).get<std::int64_t>(), w.at(3).get<std::int64_t>(),
                          w.at(4).get<std::vector<std::int64_t>>()};
      }
      for (const auto& [name, g] : json.at("gradients").items()) {
        gradients_[name] = {g.at(0).get<std::int64_t>(), g.at(1).get<std::int64_t>(),
                            g.at(2).get<std::int64_t>()};
      }
      lr_zero_ = json.at("lr_zero").get<std::map<std::string, std::int64_t>>();
      optimizer_steps_ = json.at("steps").get<std::vector<std::int64_t>>();
      first_step_ = json.at("first");
      open_ = json.at("open").get<std::string>();
    });
  }

 private:
  struct Weight {
    std::int64_t last_row = -1;
    std::int64_t changed = -1;  // TRAIN step of the last capture that differed from the one before; -1: never
    std::int64_t gradient_rows = 0, gradient_nonzero = 0;  // as they were then
    std::vector<std::int64_t> counts;                      // updates of each optimizer until then
  };
  struct Gradient {
    std::int64_t rows = 0, nonzero = 0, last_nonzero = -1;
  };
  static constexpr std::uint32_t kMaxOptimizers = 64;

  void TakeEvents(const StepView& view) {
    for (const auto& event : view.rows.events) {
      if (event.worker != view.rows.events.front().worker) continue;
      const auto kind = static_cast<EventKind>(event.row.kind);
      if (kind == EventKind::kOptimizerStep && event.row.subject < kMaxOptimizers) {
        if (optimizer_steps_.size() <= event.row.subject) optimizer_steps_.resize(event.row.subject + 1, 0);
        ++optimizer_steps_[event.row.subject];
      }
    }
  }

  struct Group {
    std::vector<std::string> names;
    std::int64_t since = 0;
  };

  void Judge(const StepView& view, Sink& sink) {
    const query::StepInfo& info = view.rows.info;
    std::size_t still = 0;
    for (const auto& [name, weight] : weights_) still += Idle(weight, info) ? 1 : 0;
    if (still == 0) {
      if (!open_.empty()) sink.Heal("unchanged", open_, info.mode_step);
      open_.clear();
      return;
    }
    const ModelFacts& facts = view.memo.Facts(view.trial);
    Group group;
    std::size_t trainable = 0;
    for (const auto& [name, weight] : weights_) {
      const ParameterFacts* fact = facts.Find(name);
      if (fact == nullptr || !fact->requires_grad) continue;
      ++trainable;
      if (!Idle(weight, info)) continue;
      if (!GetsGradients(facts, *fact, name, weight)) continue;
      group.names.push_back(name);
      group.since = std::max(group.since, std::max<std::int64_t>(weight.changed, first_step_));
    }
    if (!group.names.empty()) {
      Tell(view, group, group.names.size() == trainable, sink);
    } else if (!open_.empty()) {
      sink.Heal("unchanged", open_, info.mode_step);
      open_.clear();
    }
  }

  [[nodiscard]] bool Idle(const Weight& weight, const query::StepInfo& info) const {
    return weight.last_row == info.mode_step &&
           info.mode_step - std::max<std::int64_t>(weight.changed, first_step_) >= limits_.steps;
  }

  [[nodiscard]] bool GetsGradients(const ModelFacts& facts, const ParameterFacts& fact,
                                   const std::string& name, const Weight& weight) const {
    const std::int64_t since = std::max<std::int64_t>(weight.changed, first_step_);
    const std::optional<std::uint32_t> number = facts.OptimizerNumber(fact.optimizer);
    if (!number || *number >= optimizer_steps_.size()) return false;
    const std::int64_t then = *number < weight.counts.size() ? weight.counts[*number] : 0;
    const std::int64_t updates = optimizer_steps_[*number] - then;
    if (updates < limits_.updates) return false;
    const auto zero = lr_zero_.find(fmt::format("optimizer/{}.group{}.lr", fact.optimizer, fact.group));
    if (zero != lr_zero_.end() && zero->second > since) return false;
    const auto found = gradients_.find(name);
    if (found == gradients_.end()) return false;
    return (found->second.nonzero - weight.gradient_nonzero) * 10 >= updates * 9;  // else it rests
  }

  void Tell(const StepView& view, const Group& group, bool all, Sink& sink) {
    const query::StepInfo& info = view.rows.info;
    if (open_.empty()) open_ = group.names.front();
    Finding finding = FindingAt(kName, kPage, "unchanged", view.trial, format::kNoId, 0, info);
    finding.severity = all ? Severity::kStop : Severity::kWarn;
    finding.tensor = open_;
    for (const std::string& name : group.names) {
      if (name != open_) finding.other_tensors.push_back(name);
    }
    finding.since_step = group.since;
    const std::int64_t idle = info.mode_step - finding.since_step;
    const std::string what = all ? "no trainable weight of the model changes"
                                 : fmt::format("{} trainable weight{} not change", group.names.size(),
                                               group.names.size() == 1 ? " does" : "s do");
    finding.what = fmt::format("{}, for {} steps now", what, idle);
    finding.why = "they get gradients that are not zero, and not one bit of them changes";
    finding.remedy =
        "raise the learning rate, or keep a float32 copy of half-precision weights: an update below half a "
        "unit in the last place is lost";
    finding.causes = {"learning rate that rounds away", "half-precision weights without a float32 copy"};
    finding.evidence = {{"weights", static_cast<double>(group.names.size())},
                        {"steps", static_cast<double>(idle)}};
    finding.threshold =
        fmt::format("not one bit in {} steps and {} updates (Luff)", limits_.steps, limits_.updates);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  std::map<std::string, Weight> weights_;
  std::map<std::string, Gradient> gradients_;    // by parameter
  std::map<std::string, std::int64_t> lr_zero_;  // last TRAIN step with a learning rate of zero, by setting
  std::vector<std::int64_t> optimizer_steps_;    // by optimizer number
  std::int64_t first_step_ = -1;
  std::string open_;  // tensor of the open finding
};

}  // namespace

RuleSpec UnchangedTensorSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.version = 2;
  spec.page = kPage;
  spec.summary = "weights that ought to be trained and do not change";
  spec.parameters = {
      {"collection_names", "None", "None", "collections to inspect (original; one of the two is required)"},
      {"tensor_regex", "None", "None", "expressions on tensor names to inspect (original)"},
      {"num_steps", "3", "3", "available steps that are compared (original)"},
      {"rtol", "1e-5", "1e-05", "relative tolerance (original)"},
      {"atol", "1e-8", "1e-08", "absolute tolerance (original)"},
      {"equal_nan", "false", "False", "NaN equals NaN (original)"},
      {"interval", "8", "1", "TRAIN steps between two captures (Luff)"},
      {"steps", "48", "48", "TRAIN steps without a change; a part of a model may rest for 30 (Luff)"},
      {"updates", "40", "40", "updates of its optimizer in that time (Luff)"},
  };
  spec.needs = [](const Parameters& parameters) -> std::vector<Need> {
    if (IsOriginal(parameters)) {
      Result<TensorSelector> selector = TensorSelector::Make(parameters, false);
      return selector.ok()
                 ? selector.value().NeedsOf("unchanged_tensor", Bit(Form::kSummary) | Bit(Form::kRaw))
                 : std::vector<Need>{};
    }
    const Result<std::int64_t> interval = ParseInt(TextOf(parameters, "interval"));
    Need need;
    need.collection = "weight_changes";
    need.roles = {Role::kWeight};
    need.forms = Bit(Form::kDifference);
    need.save_interval = interval.ok() ? interval.value() : 8;
    return {need};
  };
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    OriginalSettings settings;
    LUFF_ASSIGN_OR_RETURN(settings.selector, TensorSelector::Make(parameters, false));
    LUFF_ASSIGN_OR_RETURN(settings.num_steps, ParseInt(TextOf(parameters, "num_steps")));
    LUFF_ASSIGN_OR_RETURN(settings.rtol, ParseDouble(TextOf(parameters, "rtol")));
    LUFF_ASSIGN_OR_RETURN(settings.atol, ParseDouble(TextOf(parameters, "atol")));
    LUFF_ASSIGN_OR_RETURN(settings.equal_nan, ParseBool(TextOf(parameters, "equal_nan")));
    if (settings.num_steps < 2 || settings.num_steps > 1000)
      return InvalidArgument("'num_steps' must be between 2 and 1000");
    Limits limits;
    LUFF_ASSIGN_OR_RETURN(const std::int64_t interval, ParseInt(TextOf(parameters, "interval")));
    LUFF_ASSIGN_OR_RETURN(limits.steps, ParseInt(TextOf(parameters, "steps")));
    LUFF_ASSIGN_OR_RETURN(limits.updates, ParseInt(TextOf(parameters, "updates")));
    if (interval < 1) return InvalidArgument("'interval' must be at least 1");
    if (IsOriginal(parameters)) return std::unique_ptr<Rule>(new Original(std::move(settings)));
    return std::unique_ptr<Rule>(new Luff(limits));
  };
  return spec;
}

}  // namespace luff::rules
