#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/boosted_rules.h"
#include "rules/builtin/builtin.h"
#include "rules/json_state.h"
#include "rules/loss_tracker.h"
#include "rules/select.h"

/// LossNotDecreasing: docs/rules/loss_not_decreasing.md.
namespace luff::rules {
namespace {

using Json = nlohmann::json;
using format::Role;
constexpr const char* kName = "LossNotDecreasing";
constexpr const char* kPage = "docs/rules/loss_not_decreasing.md";

// ---- original
// -------------------------------------------------------------------------------------------------------- At
// an available step s, at least num_steps after the last evaluation (first: s >= num_steps), loss(s) is
// compared with the newest available loss at p <= s - num_steps: pct = 100 (loss_p - loss_s) / |loss_p|.

struct OriginalSettings {
  TensorSelector selector;
  bool use_losses = true;
  std::int64_t num_steps = 10;
  double diff_percent = 0.1;
  double increase_threshold_percent = 5;
  bool strict = false;
  query::Mode mode = query::Mode::kGlobal;
};

class Original final : public Rule {
 public:
  explicit Original(OriginalSettings settings) : settings_(std::move(settings)) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (settings_.mode != query::Mode::kGlobal && info.mode != settings_.mode) return;
    const std::int64_t step = settings_.mode == query::Mode::kGlobal ? info.global_step : info.mode_step;
    for (const auto& entry : view.rows.summaries) {
      if (entry.summary.count == 1 && Wanted(view.trial, entry.tensor)) {
        Check(view, entry.tensor, entry.worker, step, entry.summary.sum, sink);
      }
    }
    for (const auto& entry : view.rows.scalars) {
      if (Wanted(view.trial, entry.tensor)) Check(view, entry.tensor, entry.worker, step, entry.value, sink);
    }
  }
  [[nodiscard]] std::string SaveState() const override {
    Json json = Json::object();
    for (const auto& [name, series] : series_) {
      json[name] = {{"last", series.last_evaluation},
                    {"values", std::vector<std::pair<std::int64_t, double>>(series.values.begin(),
                                                                            series.values.end())}};
    }
    return JsonText(json);
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    return LoadJson(text, [&](const Json& json) {
      for (const auto& [name, saved] : json.items()) {
        Series& series = series_[name];
        series.last_evaluation = saved.at("last").get<std::int64_t>();
        for (const Json& pair : saved.at("values")) {
          series.values.emplace_back(pair.at(0).get<std::int64_t>(),
                                     pair.at(1).is_number() ? pair.at(1).get<double>() : std::nan(""));
        }
      }
    });
  }

 private:
  struct Series {
    std::int64_t last_evaluation = 0;
    std::deque<std::pair<std::int64_t, double>> values;
  };

  bool Wanted(const query::Trial& trial, query::TensorId id) {
    return (settings_.use_losses && trial.tensor(id).role == Role::kLoss) ||
           settings_.selector.Selects(trial, id);
  }

  void Check(const StepView& view, query::TensorId tensor, std::uint32_t worker, std::int64_t step,
             double loss, Sink& sink) {
    Series& series = series_[fmt::format("{}/{}", worker, view.trial.tensor(tensor).name)];
    if (!series.values.empty() && series.values.back().first == step) return;  // a scalar and its summary
    series.values.emplace_back(step, loss);
    if (step < series.last_evaluation + settings_.num_steps) return;
    // The newest value at or before step - num_steps; older ones are not needed again.
    while (series.values.size() > 1 && series.values[1].first <= step - settings_.num_steps)
      series.values.pop_front();
    const auto [then, earlier] = series.values.front();
    if (then > step - settings_.num_steps) return;
    series.last_evaluation = step;
    const double percent = 100 * (earlier - loss) / std::abs(earlier);
    const bool stuck = percent >= 0 ? percent <= settings_.diff_percent : settings_.strict;
    const bool rose = -percent > settings_.increase_threshold_percent;
    if (!stuck && !rose) return;
    Finding finding =
        FindingAt(kName, kPage, rose ? "rose" : "stuck", view.trial, tensor, worker, view.rows.info);
    finding.since_step = then;
    finding.what = fmt::format("{} went from {:g} at step {} to {:g} at step {}", finding.tensor, earlier,
                               then, loss, step);
    finding.why = fmt::format("it changed by {:.3g} %", -percent);
    finding.remedy = "check learning rate, data and labels";
    finding.evidence = {{"earlier", earlier}, {"loss", loss}, {"percent", percent}};
    finding.threshold =
        fmt::format("must fall by more than {:g} %, may rise by {:g} % in {} steps (original)",
                    settings_.diff_percent, settings_.increase_threshold_percent, settings_.num_steps);
    sink.Report(std::move(finding));
  }

  OriginalSettings settings_;
  std::map<std::string, Series> series_;
};

// ---- Luff's own
// ------------------------------------------------------------------------------------------------------

struct Limits {
  double rise = 2;                // times the first level
  std::int64_t rise_steps = 128;  // for so many steps
  std::int64_t patience = 3000;   // TRAIN steps before a flat loss is said
};

class Luff final : public Rule {
 public:
  explicit Luff(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    for (const auto& event : view.rows.events) {
      if (event.row.kind == static_cast<std::uint16_t>(format::EventKind::kOptimizerStep) &&
          event.row.subject < 64) {
        optimizers_ |= std::uint64_t{1} << event.row.subject;
      }
    }
    const std::vector<LossValue> losses = tracker_.OnStep(view.trial, view.rows);
    for (const LossValue& loss : losses) {
      if (loss.worker != losses.front().worker) continue;
      Judge(view, loss, sink);
    }
  }

  [[nodiscard]] std::string SaveState() const override {
    Json json;
    tracker_.Save(&json["losses"]);
    json["optimizers"] = optimizers_;
    json["above"] = above_since_;
    json["open"] = open_;
    return JsonText(json);
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    return LoadJson(text, [&](const Json& json) {
      tracker_.Load(json.at("losses"));
      optimizers_ = json.at("optimizers").get<std::uint64_t>();
      above_since_ = json.at("above").get<std::map<std::string, std::int64_t>>();
      open_ = json.at("open").get<std::map<std::string, std::string>>();
    });
  }

 private:
  // Losses that are no measure of progress: those of adversaries, and those without a sign.
  bool Judgeable(const LossSeries& series) const {
    const bool several_players = (optimizers_ & (optimizers_ - 1)) != 0;
    return !several_players && !series.takes_both_signs() && series.has_levels();
  }

  void Judge(const StepView& view, const LossValue& loss, Sink& sink) {
    const std::string& name = view.trial.tensor(loss.tensor).name;
    const auto& all = tracker_.series();
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const auto& entry) { return entry.first == name; });
    if (found == all.end() || !Judgeable(found->second)) return;
    const LossSeries& series = found->second;
    const std::int64_t step = view.rows.info.mode_step;

    const bool above = series.start() > 0 && series.recent() > limits_.rise * series.start() &&
                       series.recent() > series.start() + 4 * series.noise();
    if (!above) {
      above_since_.erase(name);
    } else {
      above_since_.try_emplace(name, step);
    }
    if (above && step - above_since_[name] >= limits_.rise_steps) {
      Finding finding = Base(view, loss, "rising", series);
      finding.severity = Severity::kStop;
      finding.since_step = series.best_step() >= 0 ? series.best_step() : above_since_[name];
      finding.what = fmt::format("the loss rises: {:.3g} now, {:.3g} at the start, {:.3g} at best (step {})",
                                 series.recent(), series.start(), series.best(), series.best_step());
      finding.why =
          fmt::format("it has been above {:g} times its first level for {} steps: the training diverges",
                      limits_.rise, step - above_since_[name]);
      finding.remedy =
          "lower the learning rate, add a warm-up or clip gradients; check that the loss is minimised and "
          "not maximised";
      finding.causes = {"learning rate too high", "gradients that are not cleared", "sign of the loss"};
      finding.threshold =
          fmt::format("{:g} times the first level for {} steps (Luff)", limits_.rise, limits_.rise_steps);
      sink.Report(std::move(finding));
      open_[name] = "rising";
      return;
    }
    if (series.count() >= limits_.patience && series.count() % 64 == 0 && all.size() == 1 &&
        !series.Improved()) {
      const LossSeries::Trend trend = series.TrendSince(0);
      if (trend.z > -1.64) {
        Finding finding = Base(view, loss, "flat", series);
        finding.since_step = 0;
        finding.what = fmt::format("the loss has not decreased in {} steps: {:.4g} now, {:.4g} at the start",
                                   series.count(), series.recent(), series.start());
        finding.why =
            fmt::format("its trend is no decrease (Mann-Kendall z = {:.2f}); the noise of a level is {:.2g}",
                        trend.z, series.noise());
        finding.remedy =
            "check that labels belong to inputs, that the learning rate is not far too small, and that the "
            "parameters in the optimizer are those of the model";
        finding.causes = {"labels shuffled apart from the inputs",
                          "learning rate far too low or far too high",
                          "parameters that are not in the optimizer", "initialisation on a plateau"};
        finding.evidence.emplace_back("mann_kendall_z", trend.z);
        finding.threshold = fmt::format("no significant decrease (5 %) and less than 1 % in {} steps (Luff)",
                                        limits_.patience);
        sink.Report(std::move(finding));
        open_[name] = "flat";
        return;
      }
    }
    if (const auto open = open_.find(name); open != open_.end()) {
      const bool well = open->second == "rising" ? series.recent() < series.start() : series.Improved();
      if (well) {
        sink.Heal(open->second, name, step);
        open_.erase(open);
      }
    }
  }

  static Finding Base(const StepView& view, const LossValue& loss, const char* cause,
                      const LossSeries& series) {
    Finding finding = FindingAt(kName, kPage, cause, view.trial, loss.tensor, loss.worker, view.rows.info);
    finding.evidence = {{"start", series.start()},
                        {"recent", series.recent()},
                        {"best", series.best()},
                        {"noise", series.noise()}};
    finding.series = series.Picture();
    return finding;
  }

  const Limits limits_;
  LossTracker tracker_;
  std::uint64_t optimizers_ = 0;  // bit per optimizer that has stepped
  std::map<std::string, std::int64_t> above_since_;
  std::map<std::string, std::string> open_;  // loss, cause
};

}  // namespace

RuleSpec LossNotDecreasingSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.version = 2;
  spec.page = kPage;
  spec.summary = "a loss that rises and stays up, or does not fall in a long time";
  spec.parameters = {
      {"collection_names", "None", "None", "collections to inspect (original)"},
      {"tensor_regex", "None", "None", "expressions on tensor names to inspect (original)"},
      {"use_losses_collection", "true", "True", "inspect losses (original)"},
      {"num_steps", "10", "10", "steps between two evaluations (original)"},
      {"diff_percent", "0.1", "0.1", "decrease in percent that is enough (original)"},
      {"increase_threshold_percent", "5", "5", "increase in percent that is tolerated (original)"},
      {"strict", "false", "False", "any increase counts, not only one above the threshold (original)"},
      {"mode", "GLOBAL", "GLOBAL", "TRAIN, EVAL, PREDICT or GLOBAL (original)"},
      {"rise", "2", "2", "times the first level (Luff)"},
      {"rise_steps", "128", "128",
       "steps for which the loss stays there; longer than blocks of alternating tasks (Luff)"},
      {"patience", "3000", "3000",
       "TRAIN steps before a flat loss is said; plateaus of 2,000 steps are normal (Luff)"},
  };
  spec.needs = [](const Parameters& parameters) -> std::vector<Need> {
    if (!IsOriginal(parameters)) return {};  // losses and events are always taken
    Result<TensorSelector> selector = TensorSelector::Make(parameters, false);
    return selector.ok() ? selector.value().NeedsOf("loss_not_decreasing", Bit(format::Form::kSummary))
                         : std::vector<Need>{};
  };
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    OriginalSettings settings;
    LUFF_ASSIGN_OR_RETURN(settings.selector, TensorSelector::Make(parameters, false));
    LUFF_ASSIGN_OR_RETURN(settings.use_losses, ParseBool(TextOf(parameters, "use_losses_collection")));
    LUFF_ASSIGN_OR_RETURN(settings.num_steps, ParseInt(TextOf(parameters, "num_steps")));
    LUFF_ASSIGN_OR_RETURN(settings.diff_percent, ParseDouble(TextOf(parameters, "diff_percent")));
    LUFF_ASSIGN_OR_RETURN(settings.increase_threshold_percent,
                          ParseDouble(TextOf(parameters, "increase_threshold_percent")));
    LUFF_ASSIGN_OR_RETURN(settings.strict, ParseBool(TextOf(parameters, "strict")));
    LUFF_ASSIGN_OR_RETURN(settings.mode, query::ParseMode(TextOf(parameters, "mode")));
    Limits limits;
    LUFF_ASSIGN_OR_RETURN(limits.rise, ParseDouble(TextOf(parameters, "rise")));
    LUFF_ASSIGN_OR_RETURN(limits.rise_steps, ParseInt(TextOf(parameters, "rise_steps")));
    LUFF_ASSIGN_OR_RETURN(limits.patience, ParseInt(TextOf(parameters, "patience")));
    if (!IsOriginal(parameters))
      return Together(std::unique_ptr<Rule>(new Luff(limits)), BoostedLossNotDecreasing());
    if (!settings.use_losses && settings.selector.empty()) {
      return InvalidArgument(
          "use_losses_collection is false and neither collection_names nor tensor_regex is given; give one");
    }
    return std::unique_ptr<Rule>(new Original(std::move(settings)));
  };
  return spec;
}

}  // namespace luff::rules
