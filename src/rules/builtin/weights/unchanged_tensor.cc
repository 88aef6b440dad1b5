#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/slow_average.h"
#include "rules/facts/stale_answers.h"
#include "rules/facts/standing_target.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// UnchangedTensor: docs/rules/unchanged_tensor.md.
namespace luff::rules::unchanged_tensor {
namespace {

using format::EventKind;
using format::Form;
using format::Role;
constexpr const char* kName = "UnchangedTensor";
constexpr std::uint32_t kMaxOptimizers = 64;

struct Limits {
  std::int64_t num_steps;
  double rtol, atol;
  bool equal_nan;
  std::int64_t interval, steps, updates;
};
constexpr Param<Limits> kParams[] = {
    {nullptr, "collection_names", "None", "collections to inspect (original; one of the two is required)"},
    {nullptr, "tensor_regex", "None", "expressions on tensor names to inspect (original)"},
    {&Limits::num_steps, "num_steps", "3", "available steps that are compared (original)", Within(2, 1000)},
    {&Limits::rtol, "rtol", "1e-5", "relative tolerance (original)", {}, "1e-05"},
    {&Limits::atol, "atol", "1e-8", "absolute tolerance (original)", {}, "1e-08"},
    {&Limits::equal_nan, "equal_nan", "false", "NaN equals NaN (original)", {}, "False"},
    {&Limits::interval, "interval", "8", "TRAIN steps between two captures (Luff)", AtLeast(1), "1"},
    {&Limits::steps, "steps", "48", "TRAIN steps without a change; a part of a model may rest for 30 (Luff)"},
    {&Limits::updates, "updates", "40", "updates of its optimizer in that time (Luff)"},
};

// smdebug's rule: numpy.allclose of the values at the last num_steps available steps.
class Original final : public KeptRule {
 public:
  Original(TensorSelector selector, const Limits& limits) : selector_(std::move(selector)), limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    for (const auto& entry : view.rows.summaries) {
      if (!selector_.Selects(view.trial, entry.tensor)) continue;
      std::optional<std::vector<double>> now = ReadNumbers(view, entry.tensor, entry.worker);
      if (!now) continue;
      std::vector<std::vector<double>>& values =
          series_[fmt::format("{}\n{}", entry.worker, view.trial.tensor(entry.tensor).name)];
      // Compares the newest value with each of the num_steps - 1 before it.
      values.push_back(std::move(*now));
      if (values.size() > static_cast<std::size_t>(limits_.num_steps)) values.erase(values.begin());
      if (values.size() < static_cast<std::size_t>(limits_.num_steps)) continue;
      const bool same =
          std::all_of(values.begin(), values.end() - 1,
                      [&](const std::vector<double>& earlier) { return AllClose(values.back(), earlier); });
      if (!same) continue;
      Finding finding = FindingAt(kName, "unchanged", view, entry);
      finding.what = fmt::format("{} has not changed in {} steps", finding.tensor, limits_.num_steps);
      finding.why = "the values of the last steps are all close";
      finding.remedy = "check that the tensor is trained, and the learning rate";
      finding.threshold =
          fmt::format("allclose with rtol {:g}, atol {:g} (original)", limits_.rtol, limits_.atol);
      sink.Report(std::move(finding));
    }
  }
  void VisitFields(Fields& io) override { io("series", series_, SIZE_MAX); }  // tensors may be large

 private:
  [[nodiscard]] bool AllClose(const std::vector<double>& a, const std::vector<double>& b) const {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i] == b[i]) continue;
      if (std::isnan(a[i]) || std::isnan(b[i])) {
        if (limits_.equal_nan && std::isnan(a[i]) && std::isnan(b[i])) continue;
        return false;
      }
      if (!(std::isfinite(a[i]) && std::isfinite(b[i]))) return false;
      if (!(std::abs(a[i] - b[i]) <= limits_.atol + limits_.rtol * std::abs(b[i]))) return false;
    }
    return true;
  }

  TensorSelector selector_;
  const Limits limits_;
  std::map<std::string, std::vector<std::vector<double>>> series_;
};

// Luff's rule: a trainable weight that gets gradients, but whose bits have not changed in `steps` TRAIN steps
// and `updates` updates of its optimizer, with a learning rate that was never zero. ParamNotOptimized reports
// weights in no optimizer, NoGradient weights without gradients, StepSkipped skipped updates.
class Luff final : public KeptRule {
 public:
  explicit Luff(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    target_.OnStep(view);
    average_.OnStep(view);
    if (const auto found = stale_.OnStep(view)) TellStale(view.trial, *found, sink);
    if (stale_.moved() && std::exchange(stale_open_, false)) sink.Heal("evaluated", "", info.mode_step);
    if (info.mode != query::Mode::kTrain) return;
    if (first_step_ < 0) first_step_ = info.mode_step;
    TakeEvents(view);
    for (const auto& [entry, tensor] : view.index.scalars(Role::kOptimizerSetting)) {
      if (tensor.name.ends_with(".lr") && entry.value == 0) lr_zero_[tensor.name] = info.mode_step;
    }
    for (const auto& [entry, tensor] : view.index.summaries(Role::kGradient)) {
      Gradient& gradient = gradients_[ParameterOfGradient(tensor.name)];
      ++gradient.rows;
      gradient.newest = entry.summary.l2();
      if (std::isfinite(gradient.newest)) gradient.largest = std::max(gradient.largest, gradient.newest);
      if (entry.summary.abs_sum > 0) {
        ++gradient.nonzero;
        gradient.last_nonzero = info.mode_step;
      }
    }
    bool judged = false;
    for (const WeightChange& change : view.index.weight_changes()) {
      judged = true;
      Weight& weight = weights_[change.name];
      weight.last_row = info.mode_step;
      if (change.changed > 0) {
        weight.changed = info.mode_step;
        weight.counts = optimizer_steps_;
        weight.gradient_rows = gradients_[change.name].rows;
        weight.gradient_nonzero = gradients_[change.name].nonzero;
      }
    }
    if (judged) Judge(view, sink);
  }
  void OnEnd(const query::Trial& trial, Sink& sink) override {
    if (const auto found = stale_.OnEnd()) TellStale(trial, *found, sink);
    if (const auto found = target_.OnEnd(trial)) TellTarget(trial, *found, sink);
    if (const auto found = average_.OnEnd(trial)) TellAverage(trial, *found, sink);
  }

  void VisitFields(Fields& io) override {
    io("weights", weights_);
    io("gradients", gradients_);
    io("lr_zero", lr_zero_);
    io("optimizer_steps", optimizer_steps_, kMaxOptimizers);
    io("first_step", first_step_);
    io("open", open_);
    io("stale", stale_);
    io("stale_open", stale_open_);
    io("target", target_);
    io("average", average_);
  }

 private:
  struct Weight {
    std::int64_t last_row = -1;
    std::int64_t changed = -1;  // TRAIN step of the last capture that differed from the one before; -1: never
    std::int64_t gradient_rows = 0, gradient_nonzero = 0;  // counts at that step
    std::vector<std::int64_t> counts;                      // updates of each optimizer up to then
    void VisitFields(Fields& io) {
      io("last_row", last_row);
      io("changed", changed);
      io("gradient_rows", gradient_rows);
      io("gradient_nonzero", gradient_nonzero);
      io("counts", counts, kMaxOptimizers);
    }
  };
  struct Gradient {
    std::int64_t rows = 0, nonzero = 0, last_nonzero = -1;
    double newest = 0, largest = 0;  // norms
    void VisitFields(Fields& io) {
      io("newest", newest);
      io("largest", largest);
      io("rows", rows);
      io("nonzero", nonzero);
      io("last_nonzero", last_nonzero);
    }
  };
  void TakeEvents(const StepView& view) {
    for (const query::EventAt& event : view.index.events(EventKind::kOptimizerStep)) {
      if (event.worker != view.index.first_worker() || event.row.subject >= kMaxOptimizers) continue;
      if (optimizer_steps_.size() <= event.row.subject) optimizer_steps_.resize(event.row.subject + 1, 0);
      ++optimizer_steps_[event.row.subject];
    }
  }

  static constexpr double kSumError = 1e-9;  // of a sum in float64
  static constexpr double kRested = 1e-4;    // of the largest gradient: what float32 leaves of a minimum
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
    const ModelFacts& facts = view.memo.Facts(view);
    Group group;
    std::size_t trainable = 0;
    for (const auto& [name, weight] : weights_) {
      const ParameterFacts* fact = facts.Find(name);
      if (fact == nullptr || !fact->requires_grad) continue;
      ++trainable;
      if (!Idle(weight, info)) continue;
      if (!GetsGradients(facts, *fact, name, weight) || IsAtItsBounds(view, name, weight)) continue;
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
    // It has learnt all that its rows tell, to the last bit: full batches of a small model come so far.
    if (weight.changed >= 0 && found->second.newest <= kRested * found->second.largest) return false;
    return (found->second.nonzero - weight.gradient_nonzero) * 10 >= updates * 9;  // else it is resting
  }

  // True if each value is as far from zero as all others: the script clips weights, as a critic of a
  // Wasserstein GAN wants it, and updates only push against the bounds. A weight that never changed may have
  // been made of equal values (the scale of a normalisation), unless they have both signs.
  static bool IsAtItsBounds(const StepView& view, const std::string& name, const Weight& weight) {
    for (const auto& [entry, tensor] : view.index.summaries(Role::kWeight)) {
      if (tensor.name != name) continue;
      const Summary& summary = entry.summary;
      const double bound = summary.abs_max(entry.dtype);
      const double all = static_cast<double>(summary.count) * bound;
      const bool both = summary.min(entry.dtype) == -bound && summary.max(entry.dtype) == bound;
      return bound > 0 && std::abs(summary.abs_sum - all) <= kSumError * all && (both || weight.changed >= 0);
    }
    return false;
  }

  void Tell(const StepView& view, const Group& group, bool all, Sink& sink) {
    const query::StepInfo& info = view.rows.info;
    if (open_.empty()) open_ = group.names.front();
    Finding finding = FindingAt(kName, "unchanged", view, TensorAt{format::kNoId});
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
    finding.evidence = {{"weights", group.names.size()}, {"steps", idle}};
    finding.threshold =
        fmt::format("not one bit in {} steps and {} updates (Luff)", limits_.steps, limits_.updates);
    sink.Report(std::move(finding));
  }

  void TellStale(const query::Trial& trial, const StaleAnswers::Found& found, Sink& sink) {
    stale_open_ = true;
    Finding finding = FindingAt(kName, "evaluated", trial, format::kNoId, 0, found.at.Info());
    finding.since_step = found.since;
    finding.what = fmt::format(
        "evaluations ask a model that does not change: {} of them had the same outputs to the last bit",
        found.evaluations);
    finding.why = fmt::format(
        "{} passes over the same rows were compared, {} updates lie between the first and the last of them; "
        "evaluations call {}, the training calls {}, whose weights do change",
        found.passes, found.updates, found.evaluated, found.trained);
    finding.remedy =
        "evaluate the model that is trained, or bring its copy up to date before each evaluation: an average "
        "takes "
        "the weights of the trained model";
    finding.causes = {"an average (EMA) that is updated from itself, or never",
                      "a copy that was made before the training",
                      "another model of the same kind was passed to the evaluation"};
    finding.evidence = {
        {"evaluations", found.evaluations}, {"updates", found.updates}, {"passes", found.passes}};
    finding.threshold = fmt::format("not one bit in {} evaluations, {} updates or more between them (Luff)",
                                    StaleAnswers::kEvaluations, StaleAnswers::kUpdates);
    sink.Report(std::move(finding));
  }

  static void TellTarget(const query::Trial& trial, const StandingTarget::Found& found, Sink& sink) {
    Finding finding = FindingAt(kName, "target", trial, format::kNoId, 0, found.at.Info());
    finding.since_step = 0;
    finding.what =
        fmt::format("{} is asked for targets in {} updates, and was not brought up to date in them",
                    found.target, found.updates);
    finding.why = fmt::format(
        "it has the shapes of {}, which is trained; it was called without gradients for each update, about "
        "other rows than those of the update, and its weights are {}",
        found.trained,
        found.copy ? "those that both had at the start" : "as they were drawn at random, and are its own");
    finding.remedy = fmt::format(
        "bring it up to date now and then, {}.load_state_dict({}.state_dict()), or a little after each "
        "update "
        "(t.lerp_(p, 0.005) of their parameters)",
        found.target, found.trained);
    finding.causes = {"the copy of the weights is missing, or its condition never holds",
                      "a period of the copies that is longer than the training"};
    finding.evidence = {{"updates", found.updates}};
    finding.threshold = fmt::format("a fact at the end, after {} updates or more (Luff)",
                                    found.copy ? StandingTarget::kOfACopy : StandingTarget::kUpdates);
    sink.Report(std::move(finding));
  }

  static void TellAverage(const query::Trial& trial, const SlowAverage::Found& found, Sink& sink) {
    Finding finding = FindingAt(kName, "slow_average", trial, format::kNoId, 0, found.at.Info());
    finding.since_step = 0;
    finding.what =
        fmt::format("{} is evaluated, an average of {} that has come {:.2g} % of the way to it in {} updates",
                    found.average, found.trained, 100 * found.share, found.updates);
    finding.why =
        "the rest of it is what the weights were at its first evaluation: its decay is too close to 1 for so "
        "few "
        "updates, and the evaluations do not tell what the training has learnt";
    finding.remedy = fmt::format(
        "lower the decay of the average: 1 - 10 / updates looks back over a tenth of a training (here "
        "{:.3g}), or let it "
        "rise from 0, min(decay, (1 + n) / (10 + n)); or evaluate {}",
        1 - 10.0 / static_cast<double>(found.updates), found.trained);
    finding.causes = {"a decay of a longer training (0.9999 looks back over 10,000 updates)",
                      "decay and 1 - decay exchanged"};
    finding.evidence = {{"share", found.share}, {"updates", found.updates}};
    finding.threshold = fmt::format(
        "less than {:g} of the way, after {} updates or more, while the trained weights moved steadily "
        "(Luff)",
        SlowAverage::kShare, SlowAverage::kUpdates);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  StaleAnswers stale_;
  StandingTarget target_;
  SlowAverage average_;
  bool stale_open_ = false;
  std::map<std::string, Weight> weights_;
  std::map<std::string, Gradient> gradients_;    // by parameter
  std::map<std::string, std::int64_t> lr_zero_;  // last TRAIN step with a learning rate of zero, by setting
  std::vector<std::int64_t> optimizer_steps_;    // by optimizer number
  std::int64_t first_step_ = -1;
  std::string open_;  // tensor of the open finding
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<Luff, Original>(kName, kParams);
  // 4: "target"; 5: weights that have reached their minimum; 6: "slow_average"; weights at their bounds
  spec.version = 6;
  spec.summary =
      "weights that ought to be trained and do not change, and evaluations or targets of such a model";
  spec.needs = [](const Parameters& all) -> std::vector<Need> {
    if (IsOriginal(all)) return SelectedNeeds(all, "unchanged_tensor", Bit(Form::kSummary) | Bit(Form::kRaw));
    std::vector<Need> needs = SampleNeeds();
    needs.push_back(WeightChangeNeed(IntervalOf(all), 0));
    needs.push_back({.collection = "weights",
                     .roles = {Role::kWeight},
                     .forms = Bit(Form::kSummary),
                     .save_interval = IntervalOf(all)});
    return needs;
  };
  return spec;
}

}  // namespace luff::rules::unchanged_tensor
