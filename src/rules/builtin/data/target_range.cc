#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/builtin/boosting/boosted_rules.h"
#include "rules/builtin/data/class_labels.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/loss_input.h"
#include "rules/facts/model_tail.h"
#include "rules/facts/sample.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// TargetRange: docs/rules/target_range.md.
namespace luff::rules::target_range {
namespace {

constexpr const char* kName = "TargetRange";

struct Limits {
  std::int64_t calls, targets;
  double share;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::calls, "calls", "3", "calls in a row", AtLeast(1)},
    {&Limits::targets, "targets", "256", "targets before constancy and reach are judged", AtLeast(1)},
    {&Limits::share, "share", "0.05", "share of targets out of the model's reach"},
};

struct Range {
  double low, high;
};

// The outputs that a model whose last module is of this type can give.
std::optional<Range> RangeOf(const std::string& type) {
  if (type == "Tanh" || type == "Softsign" || type == "Hardtanh") return Range{-1, 1};
  if (type == "Sigmoid" || type == "Hardsigmoid" || type == "Softmax") return Range{0, 1};
  if (type == "ReLU" || type == "Softplus") return Range{0, HUGE_VAL};
  return std::nullopt;
}

// The outputs that an operation can give, named as in the event `loss_input`.
std::optional<Range> RangeOfOperation(const std::string& name) {
  if (name == "tanh") return RangeOf("Tanh");
  if (name == "sigmoid" || name == "softmax") return RangeOf("Sigmoid");
  if (name == "relu" || name == "softplus" || name == "exp") return RangeOf("ReLU");
  return std::nullopt;
}

// Keras' losses of numbers that are to be met and that have no formula here.
bool IsOfNumbers(const std::string& kind) {
  return kind == "Poisson" || kind == "LogCosh" || kind == "MeanAbsolutePercentageError" ||
         kind == "MeanSquaredLogarithmicError";
}

// Bounds that a function after the last module can set: a sigmoid, a ReLU, an exponential, a tanh.
struct End {
  double at, side;  // side -1: outputs stay above `at`; 1: below it
};
constexpr double kLevels = 255;                     // of a pixel
constexpr double kHardlyYes = 0.6, kOffHalf = 0.1;  // a smoothed 1, and how far 0 and 1 are from being alike
constexpr std::int64_t kShown = 4;                  // times fewer targets, where the graph shows the bound
constexpr std::array<End, 3> kEnds = {End{0, -1}, End{-1, -1}, End{1, 1}};

class TargetRange final : public KeptRule {
 public:
  explicit TargetRange(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const bool train = view.rows.info.mode == query::Mode::kTrain;
    if (!train && view.rows.info.mode != query::Mode::kEval) return;
    if (train) modules_.OnStep(view);
    if (train) makers_.OnStep(view);
    for (const LossCall& call : reader_.Read(view)) {
      if (kinds_.size() >= LossReader::kMaxKinds && !kinds_.contains(call.kind)) continue;
      if (call.target.values.empty()) continue;
      Kind& kind = kinds_[call.kind];
      TakeTargets(call, train, &kind);
      TakeColumns(call, train, &kind);
      if (!train) {
        JudgeConstant(view, call, kind, sink);
        JudgeColumns(view, call, kind, sink);
        continue;
      }
      const Recognition found = reader_.Recognise(call);
      JudgeShares(view, call, found, &kind, sink);
      JudgeLabels(view, call, found, &kind, sink);
      JudgeScaledTwice(view, call, found, kind, sink);
      JudgeSmoothed(view, call, found, kind, sink);
      JudgeIgnored(view, call, found, &kind, sink);
      JudgeReach(view, call, found, &kind, sink);
      JudgeSilenced(view, call, found, &kind, sink);
      JudgeScale(view, call, found, &kind, sink);
      anchor_.Take(view.rows.info);
    }
  }

  void VisitFields(Fields& io) override {
    io("kinds", kinds_, LossReader::kMaxKinds);
    io("reader", reader_);
    io("anchor", anchor_);
    io("makers", makers_);
  }

 private:
  // Outputs and targets compared with one of kEnds.
  struct Held {
    bool inside = true;
    std::int64_t outputs = 0, near = 0, targets = 0, beyond = 0;
    void VisitFields(Fields& io) {
      io("inside", inside);
      io("outputs", outputs);
      io("near", near);
      io("targets", targets);
      io("beyond", beyond);
    }
  };
  // One of several targets of a row.
  struct Column {
    double value = 0;                  // the first of the training
    bool constant = true;              // all of them equal it
    double evaluated = 0, others = 0;  // targets of the current evaluation; of them those that differ from it
    void VisitFields(Fields& io) {
      io("value", value);
      io("constant", constant);
      io("evaluated", evaluated);
      io("others", others);
    }
  };
  struct Kind {
    std::vector<Column> columns;
    std::int64_t rows = 0;             // of the training
    std::int64_t seen = 0, calls = 0;  // training targets, and the calls that had them
    bool constant = true;              // all of them equal `value`
    double value = 0;
    std::set<double> values;  // of the training's targets, the first three different ones
    bool eval_varies = false;
    double eval_low = 0, eval_high = 0;
    std::int64_t bad_shares = 0, ignored = 0;  // consecutive calls
    std::int64_t reach_targets = 0, beyond = 0, at_bound = 0;
    bool inside = true;  // all outputs lay within the module's range
    std::array<Held, kEnds.size()> held;
    std::int64_t first_step = -1, behind = 0;  // consecutive calls whose outputs are far below the targets
    bool began_behind = false;                 // the first of them was
    ClassLabels labels;
    // Targets since the last judgement; those that are large; of them those whose output is exactly 0.
    std::int64_t judged = 0, large = 0, silent = 0;
    double squares = 0, squared = 0;  // sum and number of squares of targets
    bool silenced = false;
    void VisitFields(Fields& io) {
      io("columns", columns, kMaxColumns);
      io("rows", rows);
      io("seen", seen);
      io("calls", calls);
      io("constant", constant);
      io("value", value);
      io("values", values, 3);
      io("eval_varies", eval_varies);
      io("eval_low", eval_low);
      io("eval_high", eval_high);
      io("bad_shares", bad_shares);
      io("ignored", ignored);
      io("reach_targets", reach_targets);
      io("beyond", beyond);
      io("at_bound", at_bound);
      io("held", held);
      io("first_step", first_step);
      io("behind", behind);
      io("began_behind", began_behind);
      io("labels", labels);
      io("judged", judged);
      io("large", large);
      io("squares", squares);
      io("squared", squared);
      io("silent", silent);
      io("silenced", silenced);
      io("inside", inside);
    }
  };

  static void TakeTargets(const LossCall& call, bool train, Kind* kind) {
    const auto [low, high] = std::minmax_element(call.target.values.begin(), call.target.values.end());
    if (!std::isfinite(*low) || !std::isfinite(*high)) {
      kind->constant = false;
      return;
    }
    if (!train) {
      kind->eval_varies = kind->eval_varies || *low != *high;
      kind->eval_low = *low;
      kind->eval_high = *high;
      return;
    }
    if (kind->seen == 0) kind->value = *low;
    kind->constant = kind->constant && *low == kind->value && *high == kind->value;
    kind->seen += static_cast<std::int64_t>(call.target.values.size());
    ++kind->calls;
    for (std::size_t i = 0; kind->values.size() < 3 && i < call.target.values.size(); ++i)
      kind->values.insert(call.target.values[i]);
  }

  static void TakeColumns(const LossCall& call, bool train, Kind* kind) {
    const SampleValues& target = call.target;
    if (target.shape.size() != 2 || !target.is_float() || target.shape[1] < 2 ||
        target.shape[1] > static_cast<std::int64_t>(kMaxColumns))
      return;
    const auto width = static_cast<std::size_t>(target.shape[1]);
    std::vector<Column>& columns = kind->columns;
    if (columns.empty() && train) {
      columns.resize(width);
      for (std::size_t k = 0; k < width; ++k) columns[k].value = target.values[k];
    }
    if (columns.size() != width) return;
    for (std::size_t i = 0; i < target.values.size(); ++i) {
      Column& column = columns[i % width];
      const bool other = target.values[i] != column.value;  // NaN too
      if (train) {
        column.constant = column.constant && !other;
        column.evaluated = column.others = 0;
      } else {
        column.evaluated += 1;
        column.others += other ? 1 : 0;
      }
    }
    if (train) kind->rows += target.shape[0];
  }

  // One of several targets that is the same in all rows of the training, and often another in evaluations.
  void JudgeColumns(const StepView& view, const LossCall& call, const Kind& kind, Sink& sink) const {
    if (kind.rows < limits_.targets || kind.calls < 8 || kind.constant || anchor_.mode_step < 0) return;
    for (std::size_t k = 0; k < kind.columns.size(); ++k) {
      const Column& column = kind.columns[k];
      if (!column.constant || column.others < kOthers || column.others < kOthersShare * column.evaluated)
        continue;
      Finding finding =
          FindingAt(kName, "constant_column", view.trial, call.loss, call.worker, anchor_.Info());
      finding.since_step = 0;
      finding.what = fmt::format("column {} of the targets of {} is {:g} in all {} rows of the training", k,
                                 call.kind, column.value, kind.rows);
      finding.why = fmt::format(
          "in evaluations {:.0f} of {:.0f} rows have another value there: the model can only learn that it "
          "is "
          "always the same",
          column.others, column.evaluated);
      finding.remedy = "look at how this column of the training's targets is loaded";
      finding.causes = {"a label that is missing in the training's source, and was filled in",
                        "a column that was overwritten or joined by another name"};
      finding.evidence = {{"column", static_cast<double>(k)},
                          {"value", column.value},
                          {"rows", kind.rows},
                          {"others_in_evaluation", column.others}};
      finding.threshold = fmt::format("{} rows, {:g} % of those of an evaluation and {:g} at least (Luff)",
                                      limits_.targets, 100 * kOthersShare, kOthers);
      sink.Report(std::move(finding));
      return;
    }
  }

  Finding Make(const StepView& view, const LossCall& call, const char* cause) const {
    Finding finding = FindingAt(kName, cause, view, TensorAt{call.loss, call.worker});
    const auto [low, high] = std::minmax_element(call.target.values.begin(), call.target.values.end());
    finding.evidence = {{"lowest_target", *low}, {"highest_target", *high}};
    finding.threshold = fmt::format("{} calls in a row (Luff)", limits_.calls);
    return finding;
  }

  // Constant targets may be intended (a residual that should vanish), but not if those of evaluations vary.
  void JudgeConstant(const StepView& view, const LossCall& call, const Kind& kind, Sink& sink) const {
    if (!kind.constant || !kind.eval_varies || kind.seen < limits_.targets || kind.calls < 8 ||
        anchor_.mode_step < 0)
      return;
    Finding finding = FindingAt(kName, "constant", view.trial, call.loss, call.worker, anchor_.Info());
    finding.severity = Severity::kStop;
    finding.since_step = 0;
    finding.what = fmt::format("all {} targets of {} in training are {:g}", kind.seen, call.kind, kind.value);
    finding.why =
        fmt::format("evaluations have targets from {:g} to {:g}: nothing can be learnt from one answer",
                    kind.eval_low, kind.eval_high);
    finding.remedy = "look at how the training's targets are loaded";
    finding.causes = {"labels lost when the data were loaded or filtered", "a wrong column"};
    finding.evidence = {{"targets", kind.seen}, {"value", kind.value}};
    finding.threshold = fmt::format("{} targets (Luff)", limits_.targets);
    sink.Report(std::move(finding));
  }

  // Two targets of a binary loss, 0 and 1 / 255: nothing is ever true. Other small targets may be meant:
  // labels that share a row's 1, or the targets of a game of two networks.
  void JudgeScaledTwice(const StepView& view, const LossCall& call, const Recognition& found,
                        const Kind& kind, Sink& sink) const {
    if (found.formula != Formula::kBceWithLogits && found.formula != Formula::kBce) return;
    if (kind.values.size() != 2 || *kind.values.begin() != 0 || kind.seen < limits_.targets || kind.calls < 8)
      return;
    const double high = *kind.values.rbegin();
    if (!(std::abs(1 / high - kLevels) < 0.5)) return;
    Finding finding = Make(view, call, "scaled_twice");
    finding.since_step = 0;
    finding.what = fmt::format("the targets of {} are 0 and {:.3g}, never 1", call.kind, high);
    finding.why = fmt::format(
        "all {} targets of the training have one of these two values: the best answer is no, everywhere; 1 / "
        "255 "
        "is what is left of a 1 that is divided by 255",
        kind.seen);
    finding.remedy = "give targets of 0 and 1: scale labels and masks once, or not at all";
    finding.causes = {"labels or masks that were divided by 255 twice, or had been 0 and 1 before"};
    finding.threshold =
        fmt::format("two values, 0 and 1 / {:g}, in all of {} targets (Luff)", kLevels, limits_.targets);
    sink.Report(std::move(finding));
  }

  // Two targets of a binary loss that do not lie around a half, of which the higher one hardly says yes:
  // labels smoothed by another formula than a * (1 - e) + e / 2. One-sided smoothing leaves the higher one
  // near 1.
  void JudgeSmoothed(const StepView& view, const LossCall& call, const Recognition& found, const Kind& kind,
                     Sink& sink) const {
    if (found.formula != Formula::kBceWithLogits && found.formula != Formula::kBce) return;
    if (kind.values.size() != 2 || kind.seen < limits_.targets || kind.calls < 8) return;
    const double low = *kind.values.begin(), high = *kind.values.rbegin();
    if (!(low > 0 && low < 0.25 && high > 0.5 && high < kHardlyYes && low + high < 1 - kOffHalf)) return;
    Finding finding = Make(view, call, "smoothed_to_a_half");
    finding.since_step = 0;
    finding.what = fmt::format("the targets of {} are {:.3g} and {:.3g}: the higher one hardly says yes",
                               call.kind, low, high);
    finding.why = fmt::format(
        "all {} targets of the training have one of these two values. Smoothed labels lie as far from 0 as "
        "from 1; with these, the best answer to a yes is {:.3g}, next to the threshold",
        kind.seen, high);
    finding.remedy = "smooth by target * (1 - eps) + eps / 2, and leave the kept labels as they are";
    finding.causes = {"a bracket or a factor that is missing, as in (target + eps) / 2",
                      "labels that are smoothed in place, again in each epoch"};
    finding.threshold = fmt::format("two values, the higher one below {:g}, in all of {} targets (Luff)",
                                    kHardlyYes, limits_.targets);
    sink.Report(std::move(finding));
  }

  void JudgeShares(const StepView& view, const LossCall& call, const Recognition& found, Kind* kind,
                   Sink& sink) const {
    const std::vector<double>& targets = call.target.values;
    const bool binary = found.formula == Formula::kBceWithLogits || found.formula == Formula::kBce;
    const bool shares = found.formula == Formula::kCrossEntropy && call.target.is_float() &&
                        targets.size() == call.output.values.size();
    const bool kl = found.formula == Formula::kKlDivergence && !call.settings.log_target;
    // Labels slightly outside of [0, 1] are in use.
    const double margin = binary ? 0.25 : 1e-6;
    const bool below = std::any_of(targets.begin(), targets.end(), [&](double y) { return y < -margin; });
    const bool above =
        binary && std::any_of(targets.begin(), targets.end(), [&](double y) { return y > 1 + margin; });
    if (!((binary && (below || above)) || ((shares || kl) && below))) {
      kind->bad_shares = 0;
      return;
    }
    if (++kind->bad_shares < limits_.calls) return;
    Finding finding = Make(view, call, "no_probabilities");
    finding.severity = Severity::kStop;
    finding.what = fmt::format("{} has targets that are no probabilities ({:g} to {:g})", call.kind,
                               finding.evidence[0].value, finding.evidence[1].value);
    finding.why =
        kl ? "the divergence needs probabilities as targets (or log_target=True for their logarithms)"
           : "the loss needs targets in [0, 1]; with others it has no lowest value and falls for ever";
    finding.remedy = kl ? "give probabilities, or set log_target=True" : "map the labels to 0 and 1";
    finding.causes = {"labels -1 and 1, or 1 and 2", "pixels from 0 to 255",
                      "targets that were standardised"};
    sink.Report(std::move(finding));
  }

  // Labels of a loss of classes: class_labels.h.
  void JudgeLabels(const StepView& view, const LossCall& call, const Recognition& found, Kind* kind,
                   Sink& sink) const {
    const bool keras = view.memo.Facts(view).keras();
    const bool softmax =
        found.formula == Formula::kCrossEntropy ||  // it applies one itself
        (makers_.Of(call) == "softmax" && (found.formula != Formula::kUnknown || IsOfNumbers(call.kind)));
    const std::optional<LabelFault> fault =
        kind->labels.Add(call, keras, softmax, {limits_.calls, limits_.targets, limits_.share});
    if (!fault) return;
    Finding finding = Make(view, call, fault->cause);
    if (fault->stop) finding.severity = Severity::kStop;
    finding.what = fault->what;
    finding.why = fault->why;
    finding.remedy = fault->remedy;
    finding.causes = fault->causes;
    finding.evidence.emplace_back("share", fault->share);
    finding.threshold = fault->threshold;
    sink.Report(std::move(finding));
  }

  void JudgeIgnored(const StepView& view, const LossCall& call, const Recognition& found, Kind* kind,
                    Sink& sink) const {
    const bool classes = found.formula == Formula::kCrossEntropy || found.formula == Formula::kNll;
    const bool all = classes && !call.target.is_float() && call.target.whole() &&
                     std::all_of(call.target.values.begin(), call.target.values.end(),
                                 [&](double id) { return id == call.settings.ignore_index; });
    if (!all) {
      kind->ignored = 0;
      return;
    }
    if (++kind->ignored < limits_.calls) return;
    Finding finding = Make(view, call, "all_ignored");
    finding.severity = Severity::kStop;
    finding.what =
        fmt::format("every target of {} is {:g}, which is ignored", call.kind, call.settings.ignore_index);
    finding.why = "a mean over no target is not a number, a sum is 0: nothing is learnt";
    finding.remedy = "look at the masking of the labels";
    finding.causes = {"labels cut off before the answer begins", "a mask that is the wrong way round"};
    sink.Report(std::move(finding));
  }

  // Reports targets that the model's last module can never give.
  void JudgeReach(const StepView& view, const LossCall& call, const Recognition& found, Kind* kind,
                  Sink& sink) const {
    const bool regression = IsRegression(found.formula) || IsOfNumbers(call.kind);
    ModelTail tail = regression ? TailOf(modules_) : ModelTail();
    std::optional<Range> range = RangeOf(tail.type);
    bool shown = false;
    if (const std::string maker = makers_.Of(call); regression && RangeOfOperation(maker)) {
      range = RangeOfOperation(maker);  // the graph says so
      tail = {maker, true};
      shown = true;
    }
    if (const auto clamp = makers_.ClampOf(call); regression && clamp) {
      range = Range{clamp->first, clamp->second};
      tail = {"clamp", true};
    }
    if (regression && !range) JudgeHeld(view, call, kind, sink);
    if (!range || !kind->inside) return;
    const double span =
        std::isfinite(range->high) && std::isfinite(range->low) ? range->high - range->low : 0;
    for (const double x : call.output.values) {
      kind->inside = kind->inside && x >= range->low - 1e-6 && x <= range->high + 1e-6;
      kind->at_bound += x <= range->low + 0.02 * span || x >= range->high - 0.02 * span ? 1 : 0;
    }
    for (const double y : call.target.values)
      kind->beyond += y < range->low - 0.05 * span - 1e-6 || y > range->high + 0.05 * span + 1e-6 ? 1 : 0;
    kind->reach_targets += static_cast<std::int64_t>(call.target.values.size());
    const double share = static_cast<double>(kind->beyond) / static_cast<double>(kind->reach_targets);
    const double least = tail.type == "clamp" ? std::max(limits_.share, kHeldShare) : limits_.share;
    // Where the graph shows the operation, and it is no matter of outliers, fewer targets tell.
    const std::int64_t needed = shown && share >= kHeldShare ? limits_.targets / kShown : limits_.targets;
    if (!kind->inside || kind->reach_targets < needed || share < least) return;
    // A module that was only registered last need not run last: then outputs must also have reached the
    // bound.
    if (!tail.certain && (kind->reach_targets < 4 * limits_.targets || kind->at_bound < 8)) return;
    Finding finding = Make(view, call, "out_of_reach");
    finding.since_step = 0;
    finding.what = fmt::format("{:.0f} % of the targets of {} lie where the model's output cannot go",
                               100 * share, call.kind);
    finding.why =
        fmt::format("the model ends in {}, which gives {:g} to {:g}", tail.type, range->low, range->high);
    finding.remedy = "scale the targets into this range, or leave the last activation out";
    finding.causes = {"targets that are not scaled", "an activation behind the output layer"};
    finding.evidence.emplace_back("share_beyond", share);
    finding.threshold = fmt::format("{:g} % of {} targets (Luff)",
                                    100 * (needed < limits_.targets ? kHeldShare : limits_.share), needed);
    sink.Report(std::move(finding));
  }

  // Reports a ReLU at the output that gives 0 for nearly all that should be well above it: these get no
  // gradient. Next to a peak targets are as good as 0, and the answer 0 is right there; it is the best one,
  // too, of absolute errors, where more than half of the targets are 0.
  void JudgeSilenced(const StepView& view, const LossCall& call, const Recognition& found, Kind* kind,
                     Sink& sink) const {
    const std::vector<double>& outputs = call.output.values;
    const std::vector<double>& targets = call.target.values;
    if (!IsRegression(found.formula) || makers_.Of(call) != "relu" || outputs.size() != targets.size() ||
        view.rows.info.mode_step < kSettle)
      return;
    for (const double y : targets) kind->squares += y * y;
    kind->squared += static_cast<double>(targets.size());
    const double large = 0.5 * std::sqrt(kind->squares / std::max(kind->squared, 1.0));
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      ++kind->judged;
      if (!(targets[i] > large)) continue;
      ++kind->large;
      kind->silent += outputs[i] == 0 ? 1 : 0;
    }
    if (kind->large < limits_.targets) return;
    const bool usual = found.formula == Formula::kMse || 2 * kind->large > kind->judged;
    const double share = static_cast<double>(kind->silent) / static_cast<double>(kind->large);
    kind->judged = kind->large = kind->silent = 0;
    if (!usual) return;
    if (share < kSilenced) {
      if (kind->silenced) sink.Heal("silenced", view.trial.tensor(call.loss).name, view.rows.info.mode_step);
      kind->silenced = false;
      return;
    }
    kind->silenced = true;
    Finding finding = Make(view, call, "silenced");
    finding.what = fmt::format(
        "the ReLU at the output gives exactly 0 for {:.0f} % of the targets of {} that are well above 0",
        100 * share, call.kind);
    finding.why =
        "where a ReLU gives 0 it passes no gradient back: nothing can be learnt from these rows, and its "
        "units are dead or about to be";
    finding.remedy =
        "leave the ReLU behind the last layer out (of probabilities, take a sigmoid or softmax in its place; "
        "of "
        "numbers that are never negative, softplus)";
    finding.causes = {"a ReLU at the output whose units are dead"};
    finding.evidence.emplace_back("share_silenced", share);
    finding.threshold = fmt::format("{:g} % of {} targets above half of their size, from step {} on (Luff)",
                                    100 * kSilenced, limits_.targets, kSettle);
    sink.Report(std::move(finding));
  }

  // Reports targets of thousands that outputs near 1 have hardly begun to approach, or have overshot.
  void JudgeScale(const StepView& view, const LossCall& call, const Recognition& found, Kind* kind,
                  Sink& sink) const {
    if (!IsRegression(found.formula) || found.broadcast) return;
    const double targets = RootMeanSquare(call.target.values);
    const double outputs = RootMeanSquare(call.output.values);
    const std::int64_t step = view.rows.info.mode_step;
    const bool far = targets >= kThousand && kBehind * outputs <= targets;
    if (kind->first_step < 0) {
      kind->first_step = step;
      kind->began_behind = far;
    }
    kind->behind = far ? kind->behind + 1 : 0;
    const bool overshot = !(outputs < 10 * targets);
    const bool stuck = kind->behind >= limits_.calls && step - kind->first_step >= kSettle;
    if (!kind->began_behind || !(targets >= kThousand) || (!overshot && !stuck)) return;
    Finding finding = Make(view, call, "scale");
    finding.since_step = 0;
    finding.what = fmt::format("{} has targets of the order of {:.2g}", call.kind, targets);
    finding.why = overshot
                      ? fmt::format(
                            "outputs began near 0 and are {:.2g} now: errors of this size make updates "
                            "that overshoot, with a rate that is made for targets near 1",
                            outputs)
                      : fmt::format(
                            "outputs are {:.2g} after {} steps: a step of an optimizer is made for targets "
                            "near 1, and the way is over {:g} times as long as what they have gone",
                            outputs, step + 1, kBehind);
    finding.remedy =
        "standardise the targets with the mean and the deviation of the training data, and turn outputs back "
        "where they are used";
    finding.causes = {"targets in units that make them large", "a year, an id or a price as target"};
    finding.evidence.emplace_back("target_rms", targets);
    if (std::isfinite(outputs)) finding.evidence.emplace_back("output_rms", outputs);
    finding.threshold = fmt::format(
        "targets of {:g}, {:g} times the outputs at first, and still after {} steps, or outputs 10 times as "
        "large (Luff)",
        kThousand, kBehind, kSettle);
    sink.Report(std::move(finding));
    kind->began_behind = false;  // told once
  }

  static double RootMeanSquare(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return std::sqrt(sum / static_cast<double>(std::max<std::size_t>(values.size(), 1)));
  }

  // Reports targets beyond a bound that no module shows, but that the outputs do: many reach it, and none
  // goes beyond.
  void JudgeHeld(const StepView& view, const LossCall& call, Kind* kind, Sink& sink) const {
    for (std::size_t i = 0; i < kEnds.size(); ++i) {
      const End& end = kEnds[i];
      Held& held = kind->held[i];
      if (!held.inside) continue;
      std::int64_t near = 0;
      bool spread = false;
      for (const double x : call.output.values) {
        const double past = (x - end.at) * end.side;
        held.inside = held.inside && past <= 0;
        near += past >= -kNear ? 1 : 0;
        spread = spread || past <= -kSpread;
      }
      if (spread) held.near += near;  // else: a layer that starts at zero and has hardly moved
      held.outputs += static_cast<std::int64_t>(call.output.values.size());
      for (const double y : call.target.values) held.beyond += (y - end.at) * end.side > kBeyond ? 1 : 0;
      held.targets += static_cast<std::int64_t>(call.target.values.size());
      const double share =
          static_cast<double>(held.beyond) / static_cast<double>(std::max<std::int64_t>(held.targets, 1));
      if (!held.inside || held.outputs < 4 * limits_.targets || held.near < kPile || share < kHeldShare)
        continue;
      Finding finding = Make(view, call, "out_of_reach");
      finding.since_step = 0;
      finding.what = fmt::format("{:.0f} % of the targets of {} lie where the model's output does not go",
                                 100 * share, call.kind);
      finding.why = fmt::format("{} of {} outputs come to {:g} and none goes {}: something bounds them",
                                held.near, held.outputs, end.at, end.side < 0 ? "below" : "above");
      finding.remedy =
          "leave the last activation out (sigmoid, tanh, ReLU, clamp), or scale the targets into its range";
      finding.causes = {"an activation behind the output layer", "targets that are not scaled"};
      finding.evidence.emplace_back("share_beyond", share);
      finding.threshold =
          fmt::format("{:g} % of the targets, {} outputs (Luff)", 100 * kHeldShare, 4 * limits_.targets);
      sink.Report(std::move(finding));
      return;
    }
  }

  // An unbounded output that came this near this often would also have gone beyond.
  static constexpr double kNear = 0.02, kBeyond = 0.05, kSpread = 10 * kNear;
  static constexpr std::int64_t kPile = 32;
  static constexpr double kHeldShare = 0.2;
  // A step of 0.001 in 64 weights behind outputs of about 0.5 moves an output by 0.03: 30,000 steps to 1,000.
  static constexpr double kThousand = 1000, kBehind = 100;
  static constexpr std::int64_t kSettle = 64;
  static constexpr double kSilenced = 0.9;
  static constexpr std::size_t kMaxColumns = 32;
  static constexpr double kOthers = 10, kOthersShare = 0.1;  // by chance: 0.9 to the number of rows
  const Limits limits_;
  LossReader reader_;
  ModelModules modules_;  // read from the run, not saved
  LossInputMakers makers_;
  Anchor anchor_;  // the last TRAIN step
  std::map<std::string, Kind> kinds_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecMadeBy(kName, kParams, [](const Limits& limits, const Parameters&) -> MadeRule {
    return std::unique_ptr<Rule>(Together(std::make_unique<TargetRange>(limits), BoostedTargetRange()));
  });
  // 5: constant columns; 6: "scaled_twice"; 7: of boosting, clamps; 8: "cut_labels",
  // "several_labels", "silenced"; 9: "smoothed_to_a_half"
  spec.version = 9;
  spec.summary = "targets that the loss cannot take, or the model cannot reach";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::target_range
