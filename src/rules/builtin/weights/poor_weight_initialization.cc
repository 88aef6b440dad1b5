#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "luff/base/regex.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/loss_tracker.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// PoorWeightInitialization: docs/rules/poor_weight_initialization.md.
namespace luff::rules::poor_weight_initialization {
namespace {

using format::Form;
using format::Role;
constexpr const char* kName = "PoorWeightInitialization";
constexpr double kTwiceHe = 2.83;  // He's initialisation has a gain of 1.41
// Outputs that are far too wide, and a layer that explains it: PyTorch's default gives a gain of 0.58, so
// targets that are tiny on purpose have no such layer. A module that scales its weights when it uses them
// (equalised, or NTK's) has outputs of about 1: the layer explains them only if they are wide by themselves,
// at least by this share of its gain, since what reaches it behind a ReLU or a normalisation is about 0.6
// to 1.
constexpr double kWideOutputs = 10, kWideGain = 5, kOwnShare = 0.25;

struct Limits {
  std::string inputs;
  double threshold, range;
  std::int64_t patience;
  double steps;
  double one, all;
  std::int64_t layers, captures;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::inputs, "activation_inputs_regex", ".*relu_input", "activation inputs (original)"},
    {&Limits::threshold, "threshold", "10.0",
     "largest over smallest variance of activation inputs (original)"},
    {&Limits::range, "distribution_range", "0.001", "95th minus 5th percentile of a gradient (original)"},
    {&Limits::patience, "patience", "5", "steps without a better loss (original)"},
    {&Limits::steps, "steps", "10", "steps that are looked at (original)", AtLeast(0)},  // smdebug: a float
    {&Limits::one, "one", "100", "gain of one layer (Luff)"},
    {&Limits::all, "all", "10", "median gain of all layers (Luff)"},
    {&Limits::layers, "layers", "2", "layers for a median (Luff)", AtLeast(1)},
    {&Limits::captures, "captures", "4",
     "captures before it is said, so that what names the cause better speaks first (Luff)", AtLeast(1)},
};

// As numpy.percentile with linear interpolation. Sorts `values`.
double Percentile(std::vector<double>* values, double percent) {
  std::sort(values->begin(), values->end());
  const double place = percent / 100 * static_cast<double>(values->size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values->size() - 1);
  return (*values)[below] + (place - static_cast<double>(below)) * ((*values)[above] - (*values)[below]);
}

// smdebug's rule: in the first `steps` steps, (1) variances of activation inputs differ by more than
// `threshold` between layers, (2) the 5 % to 95 % range of some gradient is below `distribution_range`, (3)
// the loss has not improved in `patience` steps. Any of them fires.
class Original final : public KeptRule {
 public:
  Original(Regex inputs, const Limits& limits) : inputs_(std::move(inputs)), limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.global_step >= static_cast<std::int64_t>(limits_.steps)) return;
    Variances(view, sink);
    Ranges(view, sink);
    for (const LossValue& loss : view.index.losses()) {
      Best& best = losses_[view.trial.tensor(loss.tensor).name];
      if (best.seen && !(loss.value < best.value)) {
        ++best.without;
      } else {
        best = {true, loss.value, 0};
      }
      if (best.without < limits_.patience) continue;
      Finding finding = FindingAt(kName, "loss", view, loss);
      finding.what = fmt::format("the loss has not improved in the last {} of the first steps", best.without);
      finding.threshold = fmt::format("{} steps (original)", limits_.patience);
      finding.evidence = {{"best", best.value}, {"loss", loss.value}};
      Finish(std::move(finding), sink);
    }
  }
  void VisitFields(Fields& io) override { io("losses", losses_); }

 private:
  struct Best {
    bool seen = false;
    double value = 0;
    std::int64_t without = 0;
    void VisitFields(Fields& io) {
      io("seen", seen);
      io("value", value);
      io("without", without);
    }
  };

  static void Finish(Finding finding, Sink& sink) {
    finding.why = "weights that start badly scaled learn late or never";
    finding.remedy = "use the initialisation made for the activation (He for ReLU, Xavier for tanh)";
    sink.Report(std::move(finding));
  }

  void Variances(const StepView& view, Sink& sink) {
    double low = HUGE_VAL;
    double high = -HUGE_VAL;
    query::TensorId widest = format::kNoId;
    std::uint32_t worker = 0;
    for (const auto& entry : view.rows.summaries) {
      if (!inputs_.Search(view.trial.tensor(entry.tensor).name)) continue;
      const double variance = entry.summary.variance();
      if (std::isnan(variance)) continue;
      low = std::min(low, variance);
      if (variance > high) {
        high = variance;
        widest = entry.tensor;
        worker = entry.worker;
      }
    }
    if (widest == format::kNoId || !(high > limits_.threshold * low)) return;
    Finding finding = FindingAt(kName, "variance", view, TensorAt{widest, worker});
    finding.what = fmt::format("variances of activation inputs lie between {:.3g} and {:.3g}", low, high);
    finding.threshold = fmt::format("largest over smallest above {:g} (original)", limits_.threshold);
    finding.evidence = {{"smallest", low}, {"largest", high}};
    Finish(std::move(finding), sink);
  }

  void Ranges(const StepView& view, Sink& sink) {
    double least = HUGE_VAL;
    query::TensorId narrow = format::kNoId;
    std::uint32_t worker = 0;
    for (const auto& [entry, tensor] : view.index.summaries(Role::kGradient)) {
      std::optional<std::vector<double>> read = ReadNumbers(view, entry.tensor, entry.worker);
      if (!read || read->empty()) continue;
      std::vector<double> values = std::move(*read);
      if (!std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); })) continue;
      const double high = Percentile(&values, 95);
      const double range = high - Percentile(&values, 5);
      if (range < least) {
        least = range;
        narrow = entry.tensor;
        worker = entry.worker;
      }
    }
    if (narrow == format::kNoId || !(least < limits_.range)) return;
    Finding finding = FindingAt(kName, "gradient", view, TensorAt{narrow, worker});
    finding.what = fmt::format("nine tenths of the values of {} lie within {:.3g}", finding.tensor, least);
    finding.threshold = fmt::format("95th minus 5th percentile below {:g} (original)", limits_.range);
    finding.evidence = {{"range", least}};
    Finish(std::move(finding), sink);
  }

  Regex inputs_;
  const Limits limits_;
  std::map<std::string, Best> losses_;
};

// Luff's rule: the gain of a layer, by which its weights multiply the size of its input: sqrt(mean(w^2) *
// inputs of a unit). PyTorch's default gives 0.58, He's 1.41. Judged at the first capture, reported after
// `captures`.
class Luff final : public KeptRule {
 public:
  explicit Luff(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    Tiny(view, sink);
    if (done_) return;
    if (LoadsWeights(view.index)) done_ = true;
    if (info.update > 16) done_ = true;  // no longer a fact of the initialisation
    if (captures_ == 0 && !done_) Widths(view);
    std::vector<std::pair<double, query::TensorId>> gains;
    std::uint32_t worker = 0;
    bool ruined =
        false;  // weights are not finite: what was seen at the start is the cause, and waits no more
    for (const auto& [entry, tensor] : view.index.units(Role::kWeight)) {
      if (entry.counts.axis == UnitAxis::kLast || entry.counts.sum.empty()) continue;
      if (gains.empty()) worker = entry.worker;
      if (entry.worker != worker) continue;
      const Summary* all = view.memo.SummaryOf(view, entry.tensor, entry.worker);
      ruined = ruined || (all != nullptr && all->finite_count() != all->count);
      if (all == nullptr || all->count == 0 || all->finite_count() != all->count) continue;
      const double inputs = static_cast<double>(entry.counts.sum.size());
      gains.emplace_back(std::sqrt(all->sum_sq / static_cast<double>(all->count) * inputs), entry.tensor);
    }
    if ((gains.empty() && !ruined) || done_) return;
    if (captures_++ == 0 && !ruined) {
      FindTiny(view, gains);
      Judge(view, gains);
    }
    if ((captures_ < limits_.captures && !ruined) || lead_.empty()) return;
    done_ = true;
    Finding finding = FindingAt(kName, "scale", view, TensorAt{format::kNoId, worker});
    finding.tensor = lead_;
    finding.since_step = first_step_;
    finding.other_tensors = others_;
    finding.what = others_.empty()
                       ? fmt::format("{} is initialised {:.2g} times too large", lead_, gain_ / 1.41)
                       : fmt::format("{} layers multiply the size of what they get by about {:.2g}",
                                     others_.size() + 1, gain_);
    finding.why =
        "what a layer gets should leave it at about the same size; gains multiply from layer to layer, and "
        "so do "
        "gradients on their way back";
    finding.remedy =
        "use the initialisation made for the activation: a standard deviation of sqrt(2 / inputs) for ReLU, "
        "sqrt(1 / inputs) for tanh";
    finding.causes = {"standard deviation that does not depend on the number of inputs", "a wrong factor"};
    finding.evidence = {{"gain", gain_}};
    if (by_outputs_) {
      finding.what = fmt::format("{} is initialised {:.2g} times too large", lead_, gain_ / 1.41);
      finding.why = fmt::format(
          "before the first update the outputs of the model are spread {:.2g} times as widely as the "
          "targets: "
          "{}",
          wider_, finding.why);
      finding.evidence.push_back({"outputs_beside_targets", wider_});
    }
    finding.threshold =
        by_outputs_ ? fmt::format(
                          "a gain above {:g} (He: 1.41), and outputs {:g} times as wide as the targets of a "
                          "regression (Luff)",
                          kWideGain, kWideOutputs)
        : others_.empty()
            ? fmt::format("a gain above {:g} at the first capture (He: 1.41; Luff)", limits_.one)
            : fmt::format(
                  "the median gain of {} layers or more above {:g} at the first capture, without "
                  "normalisation (He: 1.41; Luff)",
                  limits_.layers, limits_.all);
    sink.Report(std::move(finding));
  }

  void VisitFields(Fields& io) override {
    io("captures", captures_);
    io("done", done_);
    io("lead", lead_);
    io("others", others_);
    io("gain", gain_);
    io("first_step", first_step_);
    io("wider", wider_);
    io("spread", spread_);
    io("by_outputs", by_outputs_);
    io("reader", reader_);
    io("tiny", tiny_, kMaxTiny);
    io("told_tiny", told_tiny_);
    io("tiny_gain", tiny_gain_);
    io("tiny_losses", losses_);
  }

 private:
  // Every layer, two at least, gives next to nothing of what it gets. No initialisation in use has that of
  // all layers: a last one, a gate or an adapter begins there, or at zero, which is another matter.
  void FindTiny(const StepView& view, const std::vector<std::pair<double, query::TensorId>>& gains) {
    std::vector<std::string> names;
    double largest = 0;
    for (const auto& [gain, tensor] : gains) {
      largest = std::max(largest, gain);
      if (gain > 0 && names.size() < kMaxTiny) names.push_back(view.trial.tensor(tensor).name);
    }
    if (done_ || view.rows.info.update > 0 || largest > kTinyGain || names.size() < 2) return;
    tiny_ = std::move(names);
    tiny_gain_ = largest;
  }

  // It costs the updates in which the weights grow, if any are needed for that.
  void Tiny(const StepView& view, Sink& sink) {
    if (view.rows.info.update > kTinyUpdates && tiny_.empty() && told_tiny_.empty()) return;
    losses_.OnStep(view);
    const bool learnt = std::any_of(losses_.series().begin(), losses_.series().end(),
                                    [](const auto& one) { return one.second.Improved(kLearnt); });
    if (!told_tiny_.empty() && learnt)
      sink.Heal("tiny", std::exchange(told_tiny_, {}), view.rows.info.mode_step);
    if (tiny_.empty()) return;
    if (LoadsWeights(view.index)) tiny_.clear();
    if (tiny_.empty() || view.rows.info.update < kTinyUpdates || !losses_.EnoughEvidence(kTinyUpdates))
      return;
    const std::vector<std::string> names = std::exchange(tiny_, {});
    const bool both_signs = std::any_of(losses_.series().begin(), losses_.series().end(),
                                        [](const auto& one) { return one.second.takes_both_signs(); });
    if (learnt || both_signs) return;
    told_tiny_ = names.front();
    Finding finding = FindingAt(kName, "tiny", view, TensorAt{format::kNoId, view.index.first_worker()});
    finding.tensor = names.front();
    finding.other_tensors.assign(names.begin() + 1, names.end());
    finding.since_step = 0;
    finding.what = fmt::format(
        "{} layers are initialised far too small: each gives {:.1g} of the size of what it gets, or less",
        names.size(), tiny_gain_);
    finding.why = fmt::format(
        "gains multiply from layer to layer, and so do gradients on their way back: the loss has not fallen "
        "in {} updates, which the weights need to grow",
        view.rows.info.update);
    finding.remedy =
        "use the initialisation made for the activation: a standard deviation of sqrt(2 / inputs) for ReLU, "
        "sqrt(1 / inputs) for tanh";
    finding.causes = {"a standard deviation that does not depend on the number of inputs", "a wrong factor"};
    finding.evidence = {{"largest_gain", tiny_gain_}, {"layers", static_cast<double>(names.size())}};
    finding.threshold = fmt::format(
        "the gain of every layer, two or more, at most {:g} at the first capture (PyTorch's default: 0.58), "
        "and no loss {:g} % below its first values after {} updates (Luff)",
        kTinyGain, 100 * kLearnt, kTinyUpdates);
    sink.Report(std::move(finding));
  }

  // How many times as wide as the targets the outputs of regressions are before the first update: the least
  // of all calls; 0 if it is not known.
  void Widths(const StepView& view) {
    if (view.rows.info.update > 0) return;
    bool first = wider_ == 0;
    for (const LossCall& call : LossReader::Read(view)) {
      if (!IsRegression(reader_.Recognise(call).formula)) continue;
      const double outputs = Deviation(call.output.values);
      const double targets = Deviation(call.target.values);
      const double times = targets > 0 && call.target.values.size() >= kLeastTargets ? outputs / targets : 0;
      wider_ = std::isfinite(times) ? (first ? times : std::min(wider_, times)) : 0;
      spread_ = first ? outputs : std::min(spread_, outputs);
      first = false;
    }
  }
  static double Deviation(const std::vector<double>& values) {
    double mean = 0;
    double squares = 0;
    for (const double value : values) mean += value / static_cast<double>(values.size());
    for (const double value : values) squares += (value - mean) * (value - mean);
    return values.empty() ? 0 : std::sqrt(squares / static_cast<double>(values.size()));
  }

  /// True if a module normalises, by its type or, for documents that name no types, by a parameter's name.
  static bool Normalises(const ModelFacts& facts) {
    return facts.HasModule(ModuleKind::kNorm) ||
           std::any_of(facts.parameters().begin(), facts.parameters().end(),
                       [](const auto& known) { return known.first.find("Norm") != std::string::npos; });
  }

  void Judge(const StepView& view, std::vector<std::pair<double, query::TensorId>> gains) {
    first_step_ = view.rows.info.mode_step;
    std::sort(gains.rbegin(), gains.rend());
    // Gains multiply, so the median of an even number is the geometric mean of the middle two.
    const double median = std::sqrt(gains[(gains.size() - 1) / 2].first * gains[gains.size() / 2].first);
    const bool one = gains.front().first > limits_.one;
    const bool all = gains.size() >= static_cast<std::size_t>(limits_.layers) && median > limits_.all &&
                     !Normalises(view.memo.Facts(view));
    by_outputs_ = !one && !all && wider_ > kWideOutputs && gains.front().first > kWideGain &&
                  spread_ > kOwnShare * gains.front().first;
    if (!one && !all && !by_outputs_) return;
    lead_ = view.trial.tensor(gains.front().second).name;
    const double bound = one ? limits_.one : kTwiceHe;
    for (std::size_t i = 1; i < gains.size() && gains[i].first > bound; ++i)
      others_.push_back(view.trial.tensor(gains[i].second).name);
    gain_ = one || by_outputs_ || others_.empty() ? gains.front().first : median;
    if (others_.size() > 20) others_.resize(20);
  }

  static constexpr std::size_t kLeastTargets = 8;
  static constexpr double kTinyGain = 0.02, kLearnt = 0.05;
  static constexpr std::int64_t kTinyUpdates = 32;
  static constexpr std::size_t kMaxTiny = 20;
  const Limits limits_;
  LossReader reader_;
  double wider_ = 0;   // outputs beside targets
  double spread_ = 0;  // of outputs
  bool by_outputs_ = false;
  std::int64_t captures_ = 0, first_step_ = 0;
  bool done_ = false;
  std::string lead_;
  std::vector<std::string> others_;
  double gain_ = 0;
  std::vector<std::string> tiny_;  // layers, until it is known whether anything is learnt
  double tiny_gain_ = 0;
  std::string told_tiny_;  // the layer that was told of, until something is learnt
  LossTracker losses_;     // of the first updates, and until then
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecMadeBy(kName, kParams, [](const Limits& limits, const Parameters& all) -> MadeRule {
    LUFF_ASSIGN_OR_RETURN(Regex inputs, Regex::Compile(limits.inputs));
    if (!(limits.steps < 1e15)) return InvalidArgument("'steps' must be below 1e15");
    if (IsOriginal(all)) return std::unique_ptr<Rule>(new Original(std::move(inputs), limits));
    return std::unique_ptr<Rule>(new Luff(limits));
  });
  // 2: outputs behind normalisation, of regressions; 3: their own spread; 4: ruined weights; 5: "tiny"
  spec.version = 5;
  spec.summary = "weights that are initialised far too large or far too small";
  spec.needs = [](const Parameters& all) -> std::vector<Need> {
    if (!IsOriginal(all)) {
      std::vector<Need> needs = SampleNeeds();
      needs.push_back(WeightRowsNeed(64));
      return needs;
    }
    Need inputs = {.collection = "relu_input",
                   .include = {TextOf(all, "activation_inputs_regex")},
                   .forms = Bit(Form::kSummary)};
    Need gradients = {.collection = "gradient_values",
                      .roles = {Role::kGradient},
                      .forms = Bit(Form::kSummary) | Bit(Form::kRaw)};
    inputs.save_interval = gradients.save_interval = 1'000'000;
    inputs.first_steps = gradients.first_steps = IntervalOf(all, "steps", 10);
    return {inputs, gradients};
  };
  return spec;
}

}  // namespace luff::rules::poor_weight_initialization
