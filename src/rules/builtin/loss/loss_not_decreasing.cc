#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/builtin/boosting/boosted_rules.h"
#include "rules/facts/asked_first.h"
#include "rules/facts/json_event.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/loss_tracker.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/phases.h"
#include "rules/facts/sample.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// LossNotDecreasing: docs/rules/loss_not_decreasing.md.
namespace luff::rules::loss_not_decreasing {
namespace {

using format::Role;
constexpr const char* kName = "LossNotDecreasing";
constexpr const char* kSquaredError = "squared error";  // of predictions, computed by the script itself

struct Limits {
  bool use_losses;
  std::int64_t num_steps;
  double diff_percent, increase_threshold_percent;
  bool strict;
  std::string mode;
  double rise;
  std::int64_t rise_steps, patience, maximised, constant;
};
constexpr Param<Limits> kParams[] = {
    {nullptr, "collection_names", "None", "collections to inspect (original)"},
    {nullptr, "tensor_regex", "None", "expressions on tensor names to inspect (original)"},
    {&Limits::use_losses, "use_losses_collection", "true", "inspect losses (original)", {}, "True"},
    {&Limits::num_steps, "num_steps", "10", "steps between two evaluations (original)"},
    {&Limits::diff_percent, "diff_percent", "0.1", "decrease in percent that is enough (original)"},
    {&Limits::increase_threshold_percent, "increase_threshold_percent", "5",
     "increase in percent that is tolerated (original)"},
    {&Limits::strict,
     "strict",
     "false",
     "any increase counts, not only one above the threshold (original)",
     {},
     "False"},
    {&Limits::mode, "mode", "GLOBAL", "TRAIN, EVAL, PREDICT or GLOBAL (original)"},
    {&Limits::rise, "rise", "2", "times the first level (Luff)"},
    {&Limits::rise_steps, "rise_steps", "128",
     "steps for which the loss stays there; longer than blocks of alternating tasks (Luff)"},
    {&Limits::patience, "patience", "3000",
     "TRAIN steps before a flat loss is said; plateaus of 2,000 steps are normal (Luff)"},
    {&Limits::maximised, "maximised", "16", "updates of one optimizer that make a loss larger (Luff)"},
    {&Limits::constant, "constant", "48", "updates in a row, from the first on, with one value (Luff)",
     AtLeast(8)},
};

// smdebug's rule: at an available step s, at least num_steps after the last evaluation (first: s >=
// num_steps), loss(s) is compared with the newest available loss at p <= s - num_steps:
// pct = 100 (loss_p - loss_s) / |loss_p|.
class Original final : public KeptRule {
 public:
  Original(const Limits& limits, TensorSelector selector, query::Mode mode)
      : limits_(limits),
        selector_(std::move(selector)),
        mode_(mode) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (mode_ != query::Mode::kGlobal && info.mode != mode_) return;
    const std::int64_t step = mode_ == query::Mode::kGlobal ? info.global_step : info.mode_step;
    for (const auto& entry : view.rows.summaries) {
      if (entry.summary.count == 1 && Wanted(view.trial, entry.tensor)) {
        Check(view, entry, step, entry.summary.sum, sink);
      }
    }
    for (const auto& entry : view.rows.scalars) {
      if (Wanted(view.trial, entry.tensor)) Check(view, entry, step, entry.value, sink);
    }
  }
  void VisitFields(Fields& io) override { io("series", series_); }

 private:
  struct Series {
    std::int64_t last_evaluation = 0;
    std::deque<std::pair<std::int64_t, double>> values;
    void VisitFields(Fields& io) {
      io("last_evaluation", last_evaluation);
      io("values", values);
    }
  };

  bool Wanted(const query::Trial& trial, query::TensorId id) {
    return (limits_.use_losses && trial.tensor(id).role == Role::kLoss) || selector_.Selects(trial, id);
  }

  template <typename Entry>
  void Check(const StepView& view, const Entry& entry, std::int64_t step, double loss, Sink& sink) {
    Series& series = series_[fmt::format("{}/{}", entry.worker, view.trial.tensor(entry.tensor).name)];
    if (!series.values.empty() && series.values.back().first == step) return;  // both a scalar and a summary
    series.values.emplace_back(step, loss);
    if (step < series.last_evaluation + limits_.num_steps) return;
    // Keeps the newest value at or before step - num_steps; older ones are not needed again.
    while (series.values.size() > 1 && series.values[1].first <= step - limits_.num_steps)
      series.values.pop_front();
    const auto [then, earlier] = series.values.front();
    if (then > step - limits_.num_steps) return;
    series.last_evaluation = step;
    const double percent = 100 * (earlier - loss) / std::abs(earlier);
    const bool stuck = percent >= 0 ? percent <= limits_.diff_percent : limits_.strict;
    const bool rose = -percent > limits_.increase_threshold_percent;
    if (!stuck && !rose) return;
    Finding finding = FindingAt(kName, rose ? "rose" : "stuck", view, entry);
    finding.since_step = then;
    finding.what = fmt::format("{} went from {:g} at step {} to {:g} at step {}", finding.tensor, earlier,
                               then, loss, step);
    finding.why = fmt::format("it changed by {:.3g} %", -percent);
    finding.remedy = "check learning rate, data and labels";
    finding.evidence = {{"earlier", earlier}, {"loss", loss}, {"percent", percent}};
    finding.threshold =
        fmt::format("must fall by more than {:g} %, may rise by {:g} % in {} steps (original)",
                    limits_.diff_percent, limits_.increase_threshold_percent, limits_.num_steps);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  TensorSelector selector_;
  const query::Mode mode_;
  std::map<std::string, Series> series_;
};

class Luff final : public KeptRule {
 public:
  explicit Luff(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) {
      asked_first_.OnPass(view, !view.index.losses().empty());
      return;
    }
    asked_first_.OnTrainStep(view);
    for (const query::EventAt& event : view.index.events(format::EventKind::kOptimizerStep)) {
      if (event.row.subject < 64) optimizers_ |= std::uint64_t{1} << event.row.subject;
    }
    tracker_.OnStep(view);
    const std::vector<LossValue>& losses = view.index.losses();
    mutual_ = mutual_ || PullTogether(view);
    for (const LossValue& loss : losses) {
      if (loss.worker != losses.front().worker) continue;
      Judge(view, loss, sink);
    }
    Maximised(view, sink);
    Constant(view, sink);
  }

  void VisitFields(Fields& io) override {
    io("losses", tracker_);
    io("optimizers", optimizers_);
    io("asked_first", asked_first_);
    io("above_since", above_since_);
    io("open", open_);
    io("maximised", maximised_, kMaxKind);
    io("maximised_updates", maximised_updates_);
    io("by_setting", by_setting_);
    io("loaded", loaded_);
    io("trained", trained_, 2);
    io("phases", phases_);
    io("constant", constant_);
    io("mutual", mutual_);
  }

 private:
  // Kinds of losses that are known of the training. Targets that are all alike are those of an adversary:
  // real or made.
  void TakeKinds(const StepView& view) {
    for (const LossCall& call : LossReader::Read(view)) {
      const auto [low, high] = std::minmax_element(call.target.values.begin(), call.target.values.end());
      const bool alike = low == call.target.values.end() || *low == *high;
      if (trained_.size() < 2) trained_.insert(alike ? std::string(kAlike) : call.kind);
    }
  }

  // Whether of two losses of a step each has for its target what the other has for its answer: both sides are
  // learnt, as codes and what they stand for (VQ-VAE). Such distances grow from next to nothing as the model
  // learns to use its codes.
  static bool PullTogether(const StepView& view) {
    const std::vector<LossCall>& calls = LossReader::Read(view);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const SampleValues &answer = calls[i].output, &target = calls[i].target;
      if (!answer.is_float() || answer.values.size() < 2 || answer.values == target.values) continue;
      for (std::size_t j = i + 1; j < calls.size(); ++j)
        if (calls[j].output.values == target.values && calls[j].target.values == answer.values) return true;
    }
    return false;
  }

  // The hook follows signs through the graph and names losses that enter the roots with a minus only.
  // Adversaries, whose optimizers take turns, do so on purpose: what one makes larger, another makes smaller.
  // Where no other loss is known than the one that is only ever made larger, there is none.
  void Maximised(const StepView& view, Sink& sink) {
    for (const auto& event : view.index.json_events("maximised")) {
      maximised_.clear();
      maximised_updates_ = 0;
      const auto by = event->find("optimizer");
      by_setting_ = by != event->end() && by->is_boolean() && by->get<bool>();
      for (const auto& loss : ListIn(*event, "losses")) {
        // Only losses that have a lower bound for sure.
        if (!loss.is_string()) continue;
        const std::string& kind = loss.get_ref<const std::string&>();
        if (kind == kSquaredError || FormulaOfKind(kind) != Formula::kUnknown) maximised_ = kind;
      }
    }
    if (trained_.size() < 2) TakeKinds(view);
    const auto open = open_.find("");
    const bool alone = trained_.size() == 1 && trained_.contains(maximised_);
    // Weights that were loaded may be made to forget: by a setting that nobody sets by chance.
    loaded_ = loaded_ || LoadsWeights(view.index);
    if (maximised_.empty() || (Several() && !alone) || (by_setting_ && loaded_)) {
      if (open == open_.end()) return;
      sink.Heal(open->second, "", view.rows.info.mode_step);
      open_.erase(open);
      return;
    }
    if (open != open_.end() || view.index.events(format::EventKind::kOptimizerStep).empty()) return;
    const std::int64_t needed = (Several() ? kOfSeveral : 1) * limits_.maximised;
    if (++maximised_updates_ < needed) return;
    Finding finding = FindingAt(kName, "maximised", view, TensorAt{format::kNoId});
    // A script may want a variance to be large, and center it by a constant.
    const bool surely = maximised_ != kSquaredError && !Several();
    finding.severity = surely ? Severity::kStop : Severity::kWarn;
    finding.since_step = 0;
    finding.what =
        fmt::format("the training makes {}{} larger: {}", maximised_ == kSquaredError ? "a " : "", maximised_,
                    by_setting_ ? "the optimizer has maximize=True, and gets a loss"
                                : "it enters what is minimised with a minus");
    finding.why =
        Several()
            ? "the graph of the backward pass says so, in all steps that were looked at, and no loss that is "
              "known is made smaller"
            : "the graph of the backward pass says so, in all steps that were looked at, and one optimizer "
              "follows it";
    finding.remedy = by_setting_ ? "make the optimizer without maximize=True, so that the loss is minimised"
                                 : "take the minus from the loss, so that it is minimised";
    finding.causes = {"sign of the loss", "a gain that was meant, with a loss in its place"};
    if (by_setting_) finding.causes.front() = "maximize=True of a script that made a reward larger";
    finding.evidence = {{"updates", static_cast<double>(maximised_updates_)}};
    finding.threshold = fmt::format("{} updates (Luff)", needed);
    sink.Report(std::move(finding));
    open_[""] = "maximised";
  }

  // The one loss of each step, as long as it is the same number although batches differ.
  struct OneValue {
    double value = 0;
    std::int64_t since = -1, updates = 0;  // the first step; updates since then; < 0: it has changed
    std::uint64_t batch = 0;               // of the first
    std::int64_t others = 0;               // steps with another batch than the first
    bool coarse = false;                   // gradients have so few bits that a loss of theirs may stand still
    bool moves = false;                    // some gradient is not zero
    void VisitFields(Fields& io) {
      io("value", value);
      io("since", since);
      io("updates", updates);
      io("batch", batch);
      io("others", others);
      io("coarse", coarse);
      io("moves", moves);
    }
  };

  // Whether a type of 16 bits can hold the number: its significand has at most 11 bits.
  static bool IsCoarse(double value) {
    int exponent = 0;
    const double significand = std::ldexp(std::frexp(value, &exponent), 11);
    return significand == std::floor(significand);
  }

  // Whether somebody may have chosen the number: it has at most three digits. A loss that is divided by its
  // own value is 1, or the weight that it has, and trains.
  static bool IsRound(double value) {
    const double scaled = std::abs(value) * std::pow(10, 2 - std::floor(std::log10(std::abs(value))));
    return std::abs(scaled - std::round(scaled)) <= kRounding * scaled;
  }

  // Tells the batch of a step from others; 0: unknown. Views with gaps have no event, but samples.
  static std::uint64_t BatchOf(const StepView& view) {
    const auto batches = view.index.events(format::EventKind::kBatch);
    if (!batches.empty()) return batches.front().row.argument;
    for (const ModelInput& input : ModelInputsOf(view)) {
      const auto sample = LoadSample(view, *input.entry);
      if (sample == nullptr) continue;
      std::uint64_t all = 1;
      for (const std::uint64_t row : RowHashes(*sample)) all = all * 31 + row;
      return all;
    }
    return 0;
  }

  // A loss that does not depend on what the model answers. From the first update on, or from that of a new
  // optimizer on: later it may be that nothing is left to learn. 0 is what margins give, and no fault.
  void Constant(const StepView& view, Sink& sink) {
    const std::vector<LossValue>& losses = view.index.losses();
    const std::int64_t step = view.rows.info.mode_step;
    const auto open = open_.find(kConstant);
    if (phases_.OnStep(view)) constant_ = {};
    if (losses.empty() || constant_.updates < 0) return;
    const double value = losses.front().value;
    const bool one = std::all_of(losses.begin(), losses.end(), [&](const LossValue& loss) {
      return loss.tensor == losses.front().tensor && std::isfinite(loss.value) && loss.value != 0;
    });
    const std::uint64_t batch = BatchOf(view);
    if (constant_.since < 0) constant_ = {value, step, 0, batch, 0, false, false};
    for (const auto& [gradient, tensor] : view.index.summaries(Role::kGradient)) {
      constant_.coarse =
          constant_.coarse || gradient.dtype == DType::kFloat16 || gradient.dtype == DType::kBFloat16;
      constant_.moves = constant_.moves || gradient.summary.zero_count < gradient.summary.count;
    }
    if (constant_.batch == 0) constant_.batch = batch;
    if (!one || phases_.several() ||
        std::abs(value - constant_.value) > kRounding * std::abs(constant_.value)) {
      constant_.updates = -1;
      if (open == open_.end()) return;
      sink.Heal(kConstant, open->second, step);
      open_.erase(open);
      return;
    }
    constant_.others += batch != 0 && batch != constant_.batch ? 1 : 0;
    constant_.updates += view.index.events(format::EventKind::kOptimizerStep).empty() ? 0 : 1;
    if (open != open_.end() || constant_.updates < limits_.constant ||
        4 * constant_.others < limits_.constant || (constant_.coarse && IsCoarse(value)) ||
        (constant_.moves && IsRound(value)))
      return;
    Finding finding = FindingAt(kName, kConstant, view, losses.front());
    finding.since_step = constant_.since;
    finding.what = fmt::format("the loss is {:.6g} in each of {} updates, whatever the batch is", value,
                               constant_.updates);
    finding.why =
        "it does not depend on what the model answers: what the answers add to it cancels out, or is cut off";
    finding.remedy =
        "look for a difference of two equal things in the loss (the same rows or the same model on both "
        "sides, "
        "as a reference that is the model itself), a softmax over an axis of length 1, a clamp, or a mask "
        "that "
        "leaves nothing";
    finding.causes = {"the same samples on both sides of a comparison",
                      "a reference or a target network that is the trained model itself",
                      "softmax over a single class", "outputs beyond a clamp"};
    finding.evidence = {{"loss", value}, {"updates", constant_.updates}, {"other_batches", constant_.others}};
    finding.threshold =
        fmt::format("{} updates from the first on, equal to {:g} (Luff)", limits_.constant, kRounding);
    open_[kConstant] = finding.tensor;
    sink.Report(std::move(finding));
  }

  [[nodiscard]] bool Several() const noexcept { return (optimizers_ & (optimizers_ - 1)) != 0; }

  // False for losses that do not measure progress: those of adversaries, those that take both signs, and
  // errors of values that are learnt from their own estimates, which grow with them. Losses of classes are no
  // such errors.
  bool Judgeable(const std::string& loss, const LossSeries& series) const {
    if (Several() || series.takes_both_signs() || !series.has_levels()) return false;
    const Formula formula = FormulaOfKind(loss.substr(0, loss.find("_output_")));
    return !asked_first_.mostly() || !(formula == Formula::kUnknown || IsRegression(formula));
  }

  void Judge(const StepView& view, const LossValue& loss, Sink& sink) {
    const std::string& name = view.trial.tensor(loss.tensor).name;
    const auto& all = tracker_.series();
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const auto& entry) { return entry.first == name; });
    if (found == all.end() || !Judgeable(name, found->second)) return;
    const LossSeries& series = found->second;
    const std::int64_t step = view.rows.info.mode_step;

    const bool above = series.start() > 0 && series.recent() > limits_.rise * series.start() &&
                       series.recent() > series.start() + 4 * series.noise();
    if (!above) {
      above_since_.erase(name);
    } else {
      above_since_.try_emplace(name, step);
    }
    if (above && !mutual_ && step - above_since_[name] >= limits_.rise_steps) {
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
    Finding finding = FindingAt(kName, cause, view, loss);
    finding.evidence = {{"start", series.start()},
                        {"recent", series.recent()},
                        {"best", series.best()},
                        {"noise", series.noise()}};
    finding.series = series.Picture();
    return finding;
  }

  const Limits limits_;
  LossTracker tracker_;
  AskedFirst asked_first_;
  std::uint64_t optimizers_ = 0;  // bit per optimizer that has stepped
  std::map<std::string, std::int64_t> above_since_;
  std::map<std::string, std::string> open_;  // loss, cause; "" for what concerns no curve
  static constexpr std::size_t kMaxKind = 128;
  static constexpr std::int64_t kOfSeveral = 4;  // times as many updates, where there are several optimizers
  static constexpr const char* kAlike = "targets that are all alike";
  static constexpr const char* kConstant = "constant";
  static constexpr double kRounding = 1e-6;  // a few units in the last place of a float32
  Phases phases_;
  OneValue constant_;
  bool mutual_ = false;    // two losses whose answers and targets are each other's
  std::string maximised_;  // kind of a loss
  std::int64_t maximised_updates_ = 0;
  bool by_setting_ = false, loaded_ = false;  // the optimizer maximises; weights were loaded
  std::set<std::string> trained_;             // the first two different kinds of losses of the training
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecMadeBy(kName, kParams, [](const Limits& limits, const Parameters& all) -> MadeRule {
    LUFF_ASSIGN_OR_RETURN(TensorSelector selector, TensorSelector::Make(all, false));
    LUFF_ASSIGN_OR_RETURN(const query::Mode mode, query::ParseMode(limits.mode));
    if (!IsOriginal(all)) {
      return std::unique_ptr<Rule>(Together(std::make_unique<Luff>(limits), BoostedLossNotDecreasing()));
    }
    if (!limits.use_losses && selector.empty()) {
      return InvalidArgument(
          "use_losses_collection is false and neither collection_names nor tensor_regex is given; give one");
    }
    return std::unique_ptr<Rule>(new Original(limits, std::move(selector), mode));
  });
  // 5: "constant"; 6: values learnt from their own estimates; 7: tests by hand are none; 8: several
  // optimizers, codes
  spec.version = 9;
  spec.summary =
      "a loss that rises and stays up, does not fall in a long time, never changes, or is maximised";
  spec.needs = [](const Parameters& all) -> std::vector<Need> {
    if (!IsOriginal(all)) return {};  // losses and events are always taken
    return SelectedNeeds(all, "loss_not_decreasing", Bit(format::Form::kSummary));
  };
  return spec;
}

}  // namespace luff::rules::loss_not_decreasing
