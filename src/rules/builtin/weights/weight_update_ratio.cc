#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/first_replacement.h"
#include "rules/facts/first_updates.h"
#include "rules/facts/loss_tracker.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/raised_rate.h"
#include "rules/facts/slow_progress.h"
#include "rules/facts/step_memo.h"
#include "rules/facts/straight_fall.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// WeightUpdateRatio: docs/rules/weight_update_ratio.md.
namespace luff::rules::weight_update_ratio {
namespace {

using format::Form;
using format::Role;
constexpr const char* kName = "WeightUpdateRatio";

struct Limits : FirstUpdates::Limits, SlowProgress::Limits {
  std::string num_steps;
  double large_threshold, small_threshold, epsilon;
  std::int64_t interval;
  double large;
  std::int64_t rows;
  double small;
  std::int64_t updates;
  double overwritten;
  std::int64_t settle;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::num_steps, "num_steps", "None", "steps between the two values; None: every step (original)"},
    {&Limits::large_threshold, "large_threshold", "10.0", "mean |change| over mean |weight| (original)"},
    {&Limits::small_threshold, "small_threshold", "1e-8", "mean |change| over mean |weight| (original)",
     Bound{}, "0.00000001"},
    {&Limits::epsilon, "epsilon", "1e-9", "added to the denominator (original)", {}, "0.000000001"},
    {&Limits::interval, "interval", "8", "TRAIN steps between two captures (Luff)", AtLeast(1), "1"},
    {&Limits::large, "large", "1.0",
     "norm of the change over one interval beside the norm of the weights (Luff)"},
    {&Limits::rows, "rows", "3", "intervals in a row (Luff)"},
    {&Limits::small, "small", "1e-6",
     "norm of the change per update beside the norm of the weights, of every weight (Luff)"},
    {&Limits::updates, "updates", "48",
     "updates for which all are small; at least 2 % of all so far, for schedules that end at zero (Luff)"},
    {&Limits::overwritten, "overwritten", "10",
     "norm of the change of all weights over one interval beside their norm (Luff)"},
    {&Limits::settle, "settle", "32",
     "updates after such a change until the loss has to be below its level again (Luff)"},
    {&Limits::thrown, "thrown", "1",
     "norm of the change of all weights beside their norm, in the first updates (Luff)"},
    {&Limits::loss_factor, "loss_factor", "5",
     "two losses in a row beside the first two, after such a change (Luff)"},
    {&Limits::leap, "leap", "3", "two losses in a row beside the first, in the first updates (Luff)"},
    {&Limits::jolt, "jolt", "0.25",
     "norm of the change of all weights by one update beside their norm, before such losses (Luff)"},
    {&Limits::progress, "progress", "1e-5",
     "share of the loss that an update can at best take away, in the first updates (Luff)"},
    {&Limits::first, "first", "6", "first updates that are measured (Luff)", AtLeast(1)},
    {&Limits::passes, "passes", "3", "passes over the data, the one that has begun too (Luff)", AtLeast(2)},
    {&Limits::gained, "gained", "0.01",
     "share of the loss that all updates of them can at best take away (Luff)"},
    {&Limits::damped, "damped", "0.2", "root mean square of all gradients beside Adam's eps (Luff)"},
};

// smdebug's rule: mean |W_s - W_p| / (mean |W_s| + epsilon).
class Original final : public KeptRule {
 public:
  explicit Original(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.mode != query::Mode::kTrain) return;
    for (const WeightChange& change : view.index.weight_changes()) {
      const Summary* summary = view.memo.SummaryOf(view, change.tensor, change.worker);
      if (summary == nullptr || summary->count == 0) continue;
      const double count = static_cast<double>(summary->count);
      const double ratio = change.l1 / count / (summary->abs_sum / count + limits_.epsilon);
      const bool large = ratio > limits_.large_threshold;
      if (!large && !(ratio < limits_.small_threshold)) continue;
      Finding finding = FindingAt(kName, large ? "large" : "small", view, change);
      finding.what = fmt::format("the update of {} is {:.3g} times its size", finding.tensor, ratio);
      finding.why = large ? "the weights are overwritten rather than adjusted" : "the weights hardly move";
      finding.remedy = large ? "lower the learning rate"
                             : "raise the learning rate, or check that the tensor gets a gradient";
      finding.evidence = {{"ratio", ratio}};
      finding.threshold = fmt::format("above {:g} or below {:g} (original)", limits_.large_threshold,
                                      limits_.small_threshold);
      sink.Report(std::move(finding));
    }
  }

 private:
  const Limits limits_;
};

// Luff's rule. r = |W_s - W_p| / |W_p| (norms) over one capture interval, u updates. Too large: r > `large`
// in `rows` intervals in a row, while the loss does not improve or has become worse than its best. Too small:
// r / u of every weight with gradients is below `small` for at least `updates` updates and 2 % of all so far.
// Overwritten: sqrt(sum |W_s - W_p|^2 / sum |W_p|^2) over all weights > `overwritten` in one interval, and
// `settle` updates later the loss is not below its level at the beginning of that interval.
//
// Thrown, leaps and hopeless: see FirstUpdates. Creeping, damped and faint: see SlowProgress.
class Luff final : public KeptRule {
 public:
  explicit Luff(const Limits& limits) : limits_(limits), first_(limits), slow_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    slow_.SeeStep(view);
    straight_.OnStep(view);
    last_.Take(info);
    if (info.mode != query::Mode::kTrain) return;
    tracker_.OnStep(view);
    FollowLoss(view.index.losses());
    for (const LossValue& loss : view.index.losses()) replaced_.TakeLoss(info.update, loss.value);
    first_.OnStep(view);
    for (const auto& [entry, tensor] : view.index.summaries(Role::kGradient)) {
      if (entry.summary.abs_sum > 0) with_gradient_[ParameterOfGradient(tensor.name)] = info.update;
    }
    for (const auto& [entry, tensor] : view.index.scalars(Role::kOptimizerSetting))
      if (tensor.name.ends_with(".lr")) rate_ = std::max(rate_.value_or(0), entry.value);
    rates_.OnStep(view);
    for (const query::EventAt& event : view.index.events(format::EventKind::kOptimizerStep))
      if (stepped_.size() < kMaxOptimizers) stepped_.insert(event.row.subject);
    WeightMove move;
    WeightMove lasting;  // of weights that did not begin at zero
    double heaviest = 0;
    for (const WeightChange& change : view.index.weight_changes())
      heaviest = std::max(heaviest, change.previous_sum_sq);
    bool any = false;
    bool all_small = true;
    bool all_rest = true;  // the same, with weights that began at zero measured by the size of all
    double from_zero = 0;  // largest move per update of a weight that began at zero
    double trained_sq = 0;
    double largest = 0;
    std::string lead;
    std::vector<std::string> others;
    for (const WeightChange& change : view.index.weight_changes()) {
      const auto gradient = with_gradient_.find(change.name);
      Weight& weight = weights_[fmt::format("{}\n{}", change.worker, change.name)];
      const std::int64_t updates = info.update - weight.last_update;
      if (!IsStepped(view, change.name)) {
        weight.last_update = info.update;
        continue;
      }
      move.Add(change);
      const bool measured = weight.last_update >= 0 && updates > 0;
      const std::int64_t before = weight.last_update;
      weight.last_update = info.update;
      weight.from_zero = weight.from_zero || change.previous_sum_sq == 0 ||
                         (!measured && change.previous_sum_sq < kNothing * heaviest);
      if (!weight.from_zero) {
        lasting.Add(change);
        replaced_.Add(change);
      }
      // Does not judge weights without a gradient in this interval: they rest, on purpose or by mistake
      // (NoGradient).
      if (!measured || gradient == with_gradient_.end() || gradient->second < before) continue;
      const double previous = std::sqrt(change.previous_sum_sq);
      const double moved = std::sqrt(change.sum_sq);
      if (!(previous > 0) || !std::isfinite(previous) || !std::isfinite(moved)) continue;
      const double ratio = moved / previous;
      weight.large_rows = ratio > limits_.large ? weight.large_rows + 1 : 0;
      if (weight.large_rows == 1) weight.since = info.mode_step;
      if (weight.large_rows >= limits_.rows) Large(view, change, weight, ratio, sink);
      any = true;
      const double per_update = ratio / static_cast<double>(updates);
      const bool small = per_update < Limit();
      all_small = all_small && small;
      all_rest = all_rest && (small || weight.from_zero);
      trained_sq += change.previous_sum_sq;
      if (weight.from_zero) from_zero = std::max(from_zero, moved / static_cast<double>(updates));
      if (per_update > largest) largest = per_update;
      if (lead.empty()) {
        lead = change.name;
      } else {
        others.push_back(change.name);
      }
    }
    if (!view.index.weight_changes().empty()) stepped_.clear();
    // Whatever moves a weight that began at zero is large beside it; beside the others it may be nothing.
    const bool rests = all_rest && from_zero < Limit() * std::sqrt(trained_sq);
    if (any) Small(view, all_small, rests, largest, lead, std::move(others), sink);
    Overwritten(view, lasting.before_sq > 0 ? lasting : move, !(lasting.before_sq > 0), sink);
    Replaced(view, sink);
    const double loss = tracker_.series().size() == 1 && !recent_.empty() ? recent_.back() : std::nan("");
    if (first_.Judge(view, move, lasting, loss, &open_small_, sink)) {
      small_since_step_ = 0;
      rates_.Said();
    }
    if (!recent_.empty()) {
      if (const std::string tensor = first_.Recovered(Level()); !tensor.empty())
        sink.Heal("leaps", tensor, info.mode_step);
    }
    if (!first_.said_small() && slow_.OnStep(view, loss, sink)) slow_told_ = true;
  }

  void OnEnd(const query::Trial& trial, Sink& sink) override {
    if (trial.outcome().state != "completed" || !open_small_.empty() || first_.said_small() || slow_told_)
      return;
    const std::optional<StraightFall::Fall> fall = straight_.OnEnd(tracker_);
    if (!fall) return;
    Finding finding = FindingAt(kName, "straight", trial, format::kNoId, 0, last_.Info());
    finding.since_step = 0;
    finding.what = fmt::format(
        "the training ended while the loss fell nearly as fast as at its start, with {:.0f} % left",
        100 * fall->to / fall->from);
    finding.why = fmt::format(
        "in {} updates and {:.0f} passes over the data it came from {:.4g} to {:.4g} along a straight line: "
        "by "
        "{:.3g} from the first quarter to the second, and by {:.3g} from the third to the last; a loss that "
        "nears what can be reached falls ever more slowly",
        fall->updates, fall->passes, fall->from, fall->to, fall->first, fall->last);
    finding.remedy = "raise the learning rate (by ten, say): the updates are too small; or train longer";
    finding.causes = {"a learning rate that is too low",
                      "inputs or targets whose scale asks for larger weights", "too few updates"};
    finding.evidence = {
        {"from", fall->from}, {"to", fall->to}, {"updates", fall->updates}, {"passes", fall->passes}};
    finding.threshold = fmt::format(
        "at the end, after {} updates and {:g} passes: quarters of the training within a third of the same "
        "fall, the last at least 75 % of the first, and more than 40 % left (Luff)",
        StraightFall::kUpdates, StraightFall::kPasses);
    sink.Report(std::move(finding));
  }

  void VisitFields(Fields& io) override {
    io("straight", straight_);
    io("replaced", replaced_);
    io("high_told", high_told_);
    io("slow_told", slow_told_);
    io("last", last_);
    io("losses", tracker_);
    io("weights", weights_);
    io("gradients", with_gradient_);
    io("small_since_step", small_since_step_);
    io("rate", rate_);
    io("small_since_update", small_since_update_);
    io("open_small", open_small_);
    io("recent", recent_, kLevel);
    io("level", level_);
    io("level_step", level_step_);
    io("leap", leap_);
    io("window", window_);
    io("start", first_);
    io("stepped", stepped_, kMaxOptimizers);
    io("slow", slow_);
    io("rates", rates_);
  }

 private:
  static constexpr std::size_t kMaxOptimizers = 1024;

  // False for a weight that no optimizer holds which has stepped since the last look, while another one has:
  // its model rests, frozen on purpose, where only a disturbance of its inputs or another model is trained.
  [[nodiscard]] bool IsStepped(const StepView& view, const std::string& name) const {
    const ModelFacts& facts = view.memo.Facts(view);
    const ParameterFacts* parameter = facts.Find(name);
    if (parameter == nullptr || stepped_.empty() || facts.optimizers().empty()) return true;
    const std::optional<std::uint32_t> number = facts.OptimizerNumber(parameter->optimizer);
    if (!parameter->optimizer.empty() && !number) return true;
    return number && stepped_.contains(*number);
  }

  /// Relative size of an update below which a weight rests.
  [[nodiscard]] double Limit() const { return first_.said_small() ? FirstUpdates::kStill : limits_.small; }

  static constexpr double kNothing = 1e-6;  // squared norm of a weight that began beside the heaviest one

  struct Weight {
    bool from_zero = false;  // or at next to nothing
    std::int64_t last_update = -1;
    std::int64_t large_rows = 0;
    std::int64_t since = -1;
    void VisitFields(Fields& io) {
      io("from_zero", from_zero);
      io("last_update", last_update);
      io("large_rows", large_rows);
      io("since", since);
    }
  };

  // A move far beyond the weights' size, and the level of the loss before it.
  struct Leap {
    std::int64_t update = -1, step = 0, since = 0;  // update < 0: no move is being watched
    double level = 0, ratio = 0;
    std::uint32_t worker = 0;
    std::string tensor;
    double largest = 0;
    bool from_zero = false;  // of weights that all began at zero
    void VisitFields(Fields& io) {
      io("update", update);
      io("step", step);
      io("since", since);
      io("level", level);
      io("ratio", ratio);
      io("worker", worker);
      io("tensor", tensor);
      io("largest", largest);
      io("from_zero", from_zero);
    }
  };

  // Norm of all weights, and level of the loss, when the current window of updates began.
  struct Window {
    std::int64_t update = -1, step = 0;
    double norm = 0, level = 0;
    void VisitFields(Fields& io) {
      io("update", update);
      io("step", step);
      io("norm", norm);
      io("level", level);
    }
  };
  static constexpr std::int64_t kWindow = 6;  // updates

  // Keeps the last kLevel losses, whose mean is the level. Runs with several losses have no level.
  void FollowLoss(const std::vector<LossValue>& losses) {
    for (const LossValue& loss : losses) {
      if (tracker_.series().size() != 1 || !std::isfinite(loss.value)) continue;
      recent_.push_back(loss.value);
      if (recent_.size() > kLevel) recent_.pop_front();
      if (std::isnan(level_)) level_ = loss.value;
      break;
    }
  }
  [[nodiscard]] double Level() const {
    double sum = 0;
    for (const double value : recent_) sum += value;
    return sum / static_cast<double>(recent_.size());
  }

  // A loss has become worse than its best, beyond its noise.
  [[nodiscard]] bool Worse() const {
    for (const auto& [name, series] : tracker_.series()) {
      if (series.has_levels() &&
          series.recent() > series.best() + std::max(6 * series.noise(), 0.2 * std::abs(series.best())))
        return true;
    }
    return false;
  }

  // The last losses are two values in turn: each update undoes the one before, as that of a rate that does
  // not decay does where the gradient of an absolute error only changes its sign. Captures an even number of
  // updates apart see no change.
  [[nodiscard]] bool Swings() const {
    if (recent_.size() < kLevel || rate_ == 0.0 || recent_[0] == recent_[1]) return false;
    for (std::size_t i = 2; i < recent_.size(); ++i) {
      if (recent_[i] != recent_[i - 2]) return false;
    }
    return true;
  }

  // Of each loss less than kLeft of its start is left: updates are small because nothing is left to learn.
  [[nodiscard]] bool NothingIsLeft() const {
    const auto& losses = tracker_.series();
    return !losses.empty() && std::all_of(losses.begin(), losses.end(), [](const auto& loss) {
      const LossSeries& series = loss.second;
      return series.has_levels() && series.recent() >= 0 &&
             series.recent() < FirstUpdates::kLeft * series.start();
    });
  }

  // Weights that began at zero outgrow what they were at any rate, as under a warm-up: nothing is lost unless
  // the loss has become worse.
  void Overwritten(const StepView& view, const WeightMove& move, bool from_zero, Sink& sink) {
    const query::StepInfo& info = view.rows.info;
    if (tracker_.series().size() != 1 || recent_.empty()) {
      leap_.update = -1;
      return;
    }
    if (leap_.update >= 0 && info.update - leap_.update >= limits_.settle) {
      const double now = Level();
      if (now >= leap_.level && (!leap_.from_zero || Worse())) {
        Finding finding;
        finding.page = PageOf(kName);
        finding.cause = "overwritten";
        finding.severity = Severity::kStop;
        finding.tensor = leap_.tensor;
        finding.worker = leap_.worker;
        finding.step = finding.last_step = info.mode_step;
        finding.global_step = info.global_step;
        finding.update = info.update;
        finding.since_step = leap_.since;
        finding.what = fmt::format(
            "the weights moved by {:.2g} times their own size between steps {} and {} ({} by {:.2g})",
            leap_.ratio, leap_.since, leap_.step, leap_.tensor, std::sqrt(leap_.largest));
        finding.why = fmt::format(
            "what they were is lost, and {} updates later the loss is {:.4g}, not below the {:.4g} of before",
            info.update - leap_.update, now, leap_.level);
        finding.remedy = "lower the learning rate (by ten to a hundred), warm it up, or clip gradients";
        finding.causes = {"learning rate far too high", "gradients of a bad batch or a bad initialisation"};
        finding.evidence = {{"ratio", leap_.ratio},
                            {"largest_ratio", std::sqrt(leap_.largest)},
                            {"loss_before", leap_.level},
                            {"loss", now}};
        high_told_ = true;
        finding.threshold = fmt::format(
            "all weights together above {:g} in one interval, and no better loss {} "
            "updates later (Luff)",
            limits_.overwritten, limits_.settle);
        sink.Report(std::move(finding));
      }
      leap_.update = -1;
    }
    if (!move.any) return;
    const double ratio = std::sqrt(move.moved_sq / move.before_sq);
    if (leap_.update < 0 && std::isfinite(ratio) && ratio > limits_.overwritten) {
      leap_ = {info.update, info.mode_step, level_step_,  level_,   ratio,
               move.worker, move.tensor,    move.largest, from_zero};
    }
    Outgrown(info, move, from_zero);
    level_ = Level();
    level_step_ = info.mode_step;
  }

  // Captures close together hide a move spread over many updates; the growth of the norm shows it.
  void Outgrown(const query::StepInfo& info, const WeightMove& move, bool from_zero) {
    const double norm = std::sqrt(move.before_sq);
    if (window_.update >= 0 && info.update - window_.update < kWindow) return;
    const double growth = window_.norm > 0 ? norm / window_.norm - 1 : 0;
    if (window_.update >= 0 && leap_.update < 0 && std::isfinite(growth) && growth > limits_.overwritten) {
      leap_ = {info.update, info.mode_step, window_.step,    window_.level, growth,
               move.worker, move.tensor,    growth * growth, from_zero};
    }
    window_ = {info.update, info.mode_step, norm, level_};
  }

  // Nothing of the initialisation is left after the first updates, and losses are not half of what they were.
  // For trainings of which the losses tell too little: of several ones, or of one that stands still.
  void Replaced(const StepView& view, Sink& sink) {
    const std::optional<FirstReplacement::Found> found =
        replaced_.OnStep(view.rows.info, limits_.overwritten, limits_.settle);
    if (!found || high_told_ || first_.said() || replaced_.Learns()) return;
    Finding finding = FindingAt(kName, "replaced", view, TensorAt{found->tensor, found->worker});
    finding.since_step = 0;
    finding.what =
        fmt::format("the first updates replace the weights by numbers {:.2g} times as large", found->ratio);
    finding.why = fmt::format(
        "one of the first {} moved the weights of {} layers by {:.2g} times their own size, and each by "
        "{:.2g} "
        "(root mean square): nothing of the initialisation is left, and what such layers give saturates "
        "whatever "
        "follows",
        FirstReplacement::kFirst, found->layers, found->ratio, found->moved);
    finding.remedy =
        "lower the learning rate (by a hundred to a thousand): Adam and its relatives move each weight by "
        "about the rate at once";
    finding.causes = {"learning rate far too high", "a rate that was meant for another optimizer"};
    finding.evidence = {{"ratio", found->ratio}, {"moved", found->moved}};
    finding.threshold = fmt::format(
        "all weights of two layers or more above {:g} of their size, and {:g} in root mean square, in one of "
        "the "
        "first {} updates, and losses not half as large {} updates later (Luff)",
        limits_.overwritten, FirstReplacement::kUnit, FirstReplacement::kFirst, limits_.settle);
    sink.Report(std::move(finding));
  }

  void Large(const StepView& view, const WeightChange& change, const Weight& weight, double ratio,
             Sink& sink) {
    if ((tracker_.AnyImproved(0.02) || weight.from_zero) && !Worse()) return;
    if (!tracker_.EnoughEvidence(24)) return;
    high_told_ = true;
    Finding finding = FindingAt(kName, "large", view, change);
    finding.severity = tracker_.AnyImproved(0.02) ? Severity::kWarn : Severity::kStop;
    finding.since_step = weight.since;
    finding.what = fmt::format("every few updates change the weights of {} by {:.2g} times their own size",
                               finding.tensor, ratio);
    finding.why = "updates overwrite what was learnt instead of adjusting it, and the loss gets no better";
    finding.remedy = "lower the learning rate (by ten), cap the warm-up, or clip gradients";
    finding.causes = {"learning rate too high", "learning rate schedule without a cap",
                      "gradients that are not cleared"};
    finding.evidence = {{"ratio", ratio}, {"intervals", weight.large_rows}};
    finding.threshold = fmt::format("above {:g} in {} intervals in a row, and no better loss (Luff)",
                                    limits_.large, limits_.rows);
    sink.Report(std::move(finding));
  }

  void Small(const StepView& view, bool all_small, bool rests, double largest, const std::string& lead,
             std::vector<std::string> others, Sink& sink) {
    const query::StepInfo& info = view.rows.info;
    if (!all_small) {
      small_since_update_ = -1;
      rate_.reset();
      if (rests || (first_.said_small() && !rates_.Mended(tracker_))) return;
      if (!open_small_.empty()) sink.Heal("small", open_small_, info.mode_step);
      open_small_.clear();
      return;
    }
    if (small_since_update_ < 0) {
      small_since_update_ = info.update;
      small_since_step_ = info.mode_step;
    }
    const std::int64_t patience = std::max(limits_.updates, info.update / 50);
    if (info.update - small_since_update_ < patience || NothingIsLeft()) return;
    if (largest <= 0 && Swings()) return;
    if (open_small_.empty()) open_small_ = lead;
    Finding finding;
    finding.page = PageOf(kName);
    finding.cause = "small";
    finding.tensor = open_small_;
    for (std::string& name : others) {
      if (name != open_small_) finding.other_tensors.push_back(std::move(name));
    }
    finding.step = finding.last_step = info.mode_step;
    finding.global_step = info.global_step;
    finding.update = info.update;
    finding.since_step = small_since_step_;
    const std::int64_t for_updates = info.update - small_since_update_;
    if (largest > 0) {
      finding.what = fmt::format("no weight moves by more than {:.1g} of its size in an update", largest);
      finding.why = fmt::format(
          "at this speed a weight needs {:.0g} updates to double, and it has been so for {} updates: nothing "
          "more is learnt",
          1 / largest, for_updates);
    } else {
      finding.what = fmt::format("no weight has moved at all in {} updates", for_updates);
      finding.why =
          "the optimizer steps and gradients are there, but every update is lost in rounding, multiplied by "
          "zero or undone: nothing more is learnt";
    }
    const bool zero = largest <= 0 && rate_ == 0.0;
    if (zero) {
      finding.what += ": the learning rate is 0";
      finding.why = "the optimizer steps and gradients are there, and each update is multiplied by 0";
    }
    finding.remedy =
        "raise the learning rate; check that the scheduler is stepped once per epoch if it counts epochs";
    if (largest <= 0 && !zero)
      finding.remedy += "; look for code that sets the weights back after each update";
    finding.causes = {"learning rate far too low", "schedule that has run out",
                      "scheduler stepped per batch instead of per epoch"};
    if (zero)
      finding.causes = {
          "a warm-up that begins at 0 and never rises: a division of whole numbers, or a count that "
          "stands still",
          "schedule that has run out"};
    finding.evidence = {{"largest_relative_update", largest}, {"updates", info.update - small_since_update_}};
    finding.threshold =
        fmt::format("every weight below {:g} per update for {} updates (Luff)", limits_.small, patience);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  LossTracker tracker_;
  std::map<std::string, Weight> weights_;              // by worker and name
  std::set<std::uint32_t> stepped_;                    // optimizers, since the last look at changes
  std::map<std::string, std::int64_t> with_gradient_;  // name -> update of its last nonzero gradient
  std::int64_t small_since_step_ = -1, small_since_update_ = -1;
  std::optional<double> rate_;  // largest learning rate since weights last moved
  std::string open_small_;
  static constexpr std::size_t kLevel = 8;
  std::deque<double> recent_;    // losses
  double level_ = std::nan("");  // loss level at the last capture; before one, the first loss
  std::int64_t level_step_ = 0;  // TRAIN step of that capture
  Leap leap_;
  Window window_;
  FirstUpdates first_;
  SlowProgress slow_;
  StraightFall straight_;
  FirstReplacement replaced_;
  RaisedRate rates_;
  bool high_told_ = false;  // that a rate is too high
  bool slow_told_ = false;
  Anchor last_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<Luff, Original>(kName, kParams);
  // 11: rows that the training collects, RAdam's warm-up; 12: less of both; 13: a rate of 0; 14:
  // "straight"; 15: "leaps"; 16: "replaced", a rate of 0.01 beside eps; 17: weights that swing; 18: heals
  // once something is gained; 19: weights of optimizers that do not step
  spec.version = 20;  // 20: evaluations of models that are trained
  spec.aliases = {"UpdateTooLarge", "UpdateTooSmall"};
  spec.summary = "updates that are far too large or far too small beside the weights";
  spec.needs = [](const Parameters& parameters) -> std::vector<Need> {
    if (IsOriginal(parameters)) return {WeightChangeNeed(IntervalOf(parameters, "num_steps"), 0)};
    return {WeightChangeNeed(IntervalOf(parameters), 8)};
  };
  spec.make = [make = spec.make](const Parameters& all) -> Result<std::unique_ptr<Rule>> {
    if (HasParameter(all, "num_steps")) {
      LUFF_ASSIGN_OR_RETURN(const std::int64_t steps, ParseInt(TextOf(all, "num_steps")));
      if (steps < 1) return InvalidArgument("'num_steps' must be at least 1");
    }
    return make(all);
  };
  return spec;
}

}  // namespace luff::rules::weight_update_ratio
