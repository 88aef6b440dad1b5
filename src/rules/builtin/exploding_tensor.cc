#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "rules/builtin/builtin.h"
#include "rules/loss_tracker.h"
#include "rules/select.h"

/// ExplodingTensor: docs/rules/exploding_tensor.md.
namespace luff::rules {
namespace {

using Json = nlohmann::json;
using format::Role;
constexpr const char* kName = "ExplodingTensor";
constexpr const char* kPage = "docs/rules/exploding_tensor.md";

// ---- original: any inspected tensor holds NaN, or infinity unless only_nan
// -------------------------------------------

class Original final : public Rule {
 public:
  Original(TensorSelector selector, bool only_nan) : selector_(std::move(selector)), only_nan_(only_nan) {}

  void OnStep(const StepView& view, Sink& sink) override {
    for (const auto& entry : view.rows.summaries) {
      if (!selector_.Selects(view.trial, entry.tensor)) continue;
      const std::uint64_t bad = entry.summary.nan_count + (only_nan_ ? 0 : entry.summary.inf_count);
      if (bad > 0)
        Tell(view, entry.tensor, entry.worker, entry.summary.nan_count, entry.summary.inf_count, sink);
    }
    for (const auto& entry : view.rows.scalars) {
      if (!selector_.Selects(view.trial, entry.tensor)) continue;
      const bool nan = std::isnan(entry.value);
      const bool inf = std::isinf(entry.value);
      if (nan || (inf && !only_nan_)) Tell(view, entry.tensor, entry.worker, nan ? 1 : 0, inf ? 1 : 0, sink);
    }
  }
  [[nodiscard]] std::string SaveState() const override { return "{}"; }
  [[nodiscard]] Status LoadState(std::string_view) override { return Status::Ok(); }

 private:
  static void Tell(const StepView& view, query::TensorId tensor, std::uint32_t worker, std::uint64_t nans,
                   std::uint64_t infs, Sink& sink) {
    Finding finding =
        FindingAt(kName, kPage, nans > 0 ? "nan" : "inf", view.trial, tensor, worker, view.rows.info);
    finding.what = fmt::format("{} holds {}", finding.tensor, nans > 0 ? "NaN" : "infinity");
    finding.why = "a value that is no number spreads to everything that is computed from it";
    finding.remedy =
        "lower the learning rate, clip gradients, look for a division by zero or a logarithm of zero";
    finding.evidence = {{"nan_count", static_cast<double>(nans)}, {"inf_count", static_cast<double>(infs)}};
    finding.threshold = "any (original)";
    sink.Report(std::move(finding));
  }

  TensorSelector selector_;
  bool only_nan_;
};

// ---- Luff's own
// ------------------------------------------------------------------------------------------------------

struct Limits {
  std::int64_t loss_steps = 3;       // steps in a row with a non-finite loss, when no weight tells more
  std::int64_t gradient_steps = 25;  // recorded steps in a row with non-finite gradients
  double growth = 1e4;               // loss over its first level
};

// Steps in a row in which one kind of tensor was not finite.
struct Streak {
  std::int64_t steps = 0;
  std::int64_t first_step = -1, first_global = -1, first_update = -1;
  std::string tensor;
  std::uint32_t worker = 0;
  bool nan = false;
};

void to_json(Json& json, const Streak& s) {
  json = {s.steps, s.first_step, s.first_global, s.first_update, s.tensor, s.worker, s.nan};
}
void from_json(const Json& json, Streak& s) {
  s.steps = json.at(0);
  s.first_step = json.at(1);
  s.first_global = json.at(2);
  s.first_update = json.at(3);
  s.tensor = json.at(4);
  s.worker = json.at(5);
  s.nan = json.at(6);
}

class Luff final : public Rule {
 public:
  explicit Luff(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    std::vector<std::string> bad_weights;
    bool weights_seen = false;
    bool gradients_seen = false;
    bool gradient_bad = false;
    for (const auto& entry : view.rows.summaries) {
      const Role role = view.trial.tensor(entry.tensor).role;
      const std::uint64_t bad = entry.summary.nan_count + entry.summary.inf_count;
      if (role == Role::kWeight || role == Role::kBias) {
        weights_seen = true;
        if (bad == 0) continue;
        const std::string& name = view.trial.tensor(entry.tensor).name;
        if (BornInfinite(name, entry.summary)) continue;
        if (bad_weights.empty()) Extend(&weights_, info, name, entry.worker, entry.summary.nan_count > 0);
        bad_weights.push_back(name);
      } else if (role == Role::kGradient) {
        gradients_seen = true;
        if (bad == 0) continue;
        if (!gradient_bad)
          Extend(&gradients_, info, view.trial.tensor(entry.tensor).name, entry.worker,
                 entry.summary.nan_count > 0);
        gradient_bad = true;
      }
    }
    if (weights_seen && bad_weights.empty()) weights_ = {};
    if (gradients_seen && !gradient_bad) gradients_ = {};
    first_train_ = false;

    const std::vector<LossValue> losses = LossesOf(view.trial, view.rows);
    bool loss_bad = false;
    for (const LossValue& loss : losses) {
      if (std::isfinite(loss.value)) continue;
      if (!loss_bad)
        Extend(&loss_, info, view.trial.tensor(loss.tensor).name, loss.worker, std::isnan(loss.value));
      loss_bad = true;
    }
    if (!losses.empty() && !loss_bad) loss_ = {};

    const bool confirmed =
        weights_.steps > 0 || loss_.steps >= limits_.loss_steps || gradients_.steps >= limits_.gradient_steps;
    if (confirmed) {
      TellNonfinite(info, bad_weights, sink);
    } else if (!open_tensor_.empty() && loss_.steps == 0 && gradients_.steps == 0) {
      sink.Heal("nonfinite", open_tensor_, info.mode_step);
      open_tensor_.clear();
    }
    for (const LossValue& loss : losses) Growth(view, loss, sink);
  }

  void OnEnd(const query::Trial&, Sink& sink) override {
    // The run ended on a loss that is no number: nothing came after it that could have shown it harmless.
    if (loss_.steps == 0 || !open_tensor_.empty()) return;
    query::StepInfo info;
    info.mode = query::Mode::kTrain;
    info.mode_step = loss_.first_step + loss_.steps - 1;
    info.global_step = loss_.first_global;
    info.update = loss_.first_update;
    TellNonfinite(info, {}, sink);
  }

  [[nodiscard]] std::string SaveState() const override {
    Json growth = Json::object();
    for (const auto& [name, g] : growth_) growth[name] = {g.values, g.level, g.above, g.since};
    return Json{{"loss", loss_},        {"gradients", gradients_}, {"weights", weights_},
                {"open", open_tensor_}, {"born", born_infinite_},  {"first", first_train_},
                {"growth", growth}}
        .dump();
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    try {
      const Json json = Json::parse(text);
      loss_ = json.at("loss").get<Streak>();
      gradients_ = json.at("gradients").get<Streak>();
      weights_ = json.at("weights").get<Streak>();
      open_tensor_ = json.at("open").get<std::string>();
      born_infinite_ = json.at("born").get<std::set<std::string>>();
      first_train_ = json.at("first").get<bool>();
      for (const auto& [name, g] : json.at("growth").items()) {
        growth_[name] = {g.at(0).get<std::int64_t>(), g.at(1).get<double>(), g.at(2).get<int>(),
                         g.at(3).get<std::int64_t>()};
      }
    } catch (const std::exception& error) {
      return Corruption(error.what());
    }
    return Status::Ok();
  }

 private:
  struct LossGrowth {
    std::int64_t values = 0;
    double level = 0;  // largest of the first kLevelValues losses
    int above = 0;
    std::int64_t since = 0;
  };
  static constexpr std::int64_t kLevelValues = 5;

  static void Extend(Streak* streak, const query::StepInfo& info, const std::string& tensor,
                     std::uint32_t worker, bool nan) {
    if (streak->steps == 0) {
      *streak = {0, info.mode_step, info.global_step, info.update, tensor, worker, nan};
    }
    ++streak->steps;
    streak->nan = streak->nan || nan;
  }

  // A parameter that holds infinities (no NaN) from the first step on is a mask.
  bool BornInfinite(const std::string& name, const Summary& summary) {
    if (summary.nan_count > 0) return false;
    if (first_train_) born_infinite_.insert(name);
    return born_infinite_.contains(name);
  }

  void TellNonfinite(const query::StepInfo& info, const std::vector<std::string>& bad_weights, Sink& sink) {
    // The first fault leads: weights of a step were there before its loss, its loss before its gradients.
    const Streak* lead = nullptr;
    for (const Streak* streak : {&weights_, &loss_, &gradients_}) {
      if (streak->steps > 0 && (lead == nullptr || streak->first_step < lead->first_step)) lead = streak;
    }
    if (lead == nullptr) return;
    if (open_tensor_.empty()) open_tensor_ = lead->tensor;
    Finding finding;
    finding.page = kPage;
    finding.cause = "nonfinite";
    finding.severity = Severity::kStop;
    finding.tensor = open_tensor_;
    finding.worker = lead->worker;
    finding.step = finding.last_step = info.mode_step;
    finding.since_step = lead->first_step;
    finding.global_step = info.global_step;
    finding.update = info.update;
    for (const std::string& name : bad_weights) {
      if (name != open_tensor_) finding.other_tensors.push_back(name);
    }
    const char* kind = lead->nan ? "NaN" : "infinite";
    if (lead == &loss_) {
      finding.what = fmt::format("the loss is {} since step {}", kind, lead->first_step);
      finding.why = weights_.steps > 0 ? "its gradients were applied, and now the weights are not finite "
                                         "either: every later step is lost"
                                       : fmt::format("it was so in {} steps in a row", lead->steps);
      finding.causes = {"logarithm, square root or division of zero in the loss", "learning rate too high",
                        "inputs or targets that hold NaN", "overflow in half precision"};
    } else if (lead == &gradients_) {
      finding.what = fmt::format("gradients are {} since step {}", kind, lead->first_step);
      finding.why =
          weights_.steps > 0
              ? "they were applied, and now the weights are not finite: every later step is lost"
              : fmt::format("it was so in {} updates in a row, so none of them can teach the model anything",
                            lead->steps);
      finding.causes = {"loss scale that overflows on every step", "gradients that explode",
                        "infinite derivative (square root or norm at zero)"};
    } else {
      finding.what = fmt::format("weights are {} since step {}", kind, lead->first_step);
      finding.why = "every later step computes with them and is lost";
      finding.causes = {"learning rate too high", "weights that were never initialised",
                        "a checkpoint that holds NaN"};
    }
    finding.remedy =
        "go back to a checkpoint before that step; lower the learning rate or clip gradients; use the fused, "
        "stable form "
        "of the loss (with logits); check the batch of that step";
    finding.evidence = {{"loss_steps", static_cast<double>(loss_.steps)},
                        {"gradient_steps", static_cast<double>(gradients_.steps)},
                        {"weights_affected", static_cast<double>(bad_weights.size())}};
    finding.threshold = fmt::format("any weight, {} losses or {} gradients in a row (Luff)",
                                    limits_.loss_steps, limits_.gradient_steps);
    sink.Report(std::move(finding));
  }

  void Growth(const StepView& view, const LossValue& loss, Sink& sink) {
    const std::string& name = view.trial.tensor(loss.tensor).name;
    if (growth_.size() >= LossTracker::kMaxLosses && !growth_.contains(name)) return;
    LossGrowth& g = growth_[name];
    if (!std::isfinite(loss.value)) return;
    if (g.values++ < kLevelValues) {
      g.level = std::max(g.level, std::abs(loss.value));
      return;
    }
    const bool above = std::abs(loss.value) > limits_.growth * g.level && g.level > 0;
    if (!above) {
      if (g.above >= 3) sink.Heal("growth", name, view.rows.info.mode_step);
      g.above = 0;
      return;
    }
    if (g.above++ == 0) g.since = view.rows.info.mode_step;
    if (g.above < 3) return;
    Finding finding = FindingAt(kName, kPage, "growth", view.trial, loss.tensor, loss.worker, view.rows.info);
    finding.severity = Severity::kStop;
    finding.since_step = g.since;
    finding.what = fmt::format("the loss has grown to {:.3g}, {:.1g} times its first values", loss.value,
                               std::abs(loss.value) / g.level);
    finding.why =
        "it explodes: numbers of this size overflow soon, and the weights behind them are worthless";
    finding.remedy =
        "lower the learning rate (by ten), clip gradients, check that the loss has a lower bound and gets "
        "what it expects";
    finding.causes = {"learning rate too high", "loss without a lower bound (NLLLoss fed with logits)",
                      "exploding recurrence"};
    finding.evidence = {{"loss", loss.value}, {"first_level", g.level}};
    finding.threshold =
        fmt::format("{:g} times the largest of the first {} losses, three steps in a row (Luff)",
                    limits_.growth, kLevelValues);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  Streak loss_, gradients_, weights_;
  std::string open_tensor_;
  std::set<std::string> born_infinite_;
  bool first_train_ = true;
  std::map<std::string, LossGrowth> growth_;
};

}  // namespace

RuleSpec ExplodingTensorSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.version = 1;
  spec.page = kPage;
  spec.summary = "loss, weights or gradients that are not finite, or a loss that grows without bound";
  spec.parameters = {
      {"collection_names", "None", "None", "collections to inspect (original); none of both: all tensors"},
      {"tensor_regex", "None", "None", "expressions on tensor names to inspect (original)"},
      {"only_nan", "false", "False", "infinity is fine (original)"},
      {"loss_steps", "3", "3", "steps in a row with a non-finite loss, when weights stay finite (Luff)"},
      {"gradient_steps", "25", "25",
       "recorded steps in a row with non-finite gradients; a dynamic loss scale needs up to 16 (Luff)"},
      {"growth", "1e4", "1e4", "loss over the largest of its first five values, three steps in a row (Luff)"},
  };
  spec.needs = [](const Parameters& parameters) -> std::vector<Need> {
    if (!IsOriginal(parameters)) return {};  // summaries of weights and gradients and losses are always taken
    Result<TensorSelector> selector = TensorSelector::Make(parameters, true);
    return selector.ok() ? selector.value().NeedsOf("exploding_tensor", Bit(format::Form::kSummary))
                         : std::vector<Need>{};
  };
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    LUFF_ASSIGN_OR_RETURN(TensorSelector selector, TensorSelector::Make(parameters, true));
    LUFF_ASSIGN_OR_RETURN(const bool only_nan, ParseBool(TextOf(parameters, "only_nan")));
    Limits limits;
    LUFF_ASSIGN_OR_RETURN(limits.loss_steps, ParseInt(TextOf(parameters, "loss_steps")));
    LUFF_ASSIGN_OR_RETURN(limits.gradient_steps, ParseInt(TextOf(parameters, "gradient_steps")));
    LUFF_ASSIGN_OR_RETURN(limits.growth, ParseDouble(TextOf(parameters, "growth")));
    if (IsOriginal(parameters)) return std::unique_ptr<Rule>(new Original(std::move(selector), only_nan));
    return std::unique_ptr<Rule>(new Luff(limits));
  };
  return spec;
}

}  // namespace luff::rules
