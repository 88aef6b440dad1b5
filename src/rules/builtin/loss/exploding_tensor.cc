#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.h"
#include "rules/facts/loss_tracker.h"
#include "rules/facts/phases.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// ExplodingTensor: docs/rules/exploding_tensor.md.
namespace luff::rules::exploding_tensor {
namespace {

using format::Role;
constexpr const char* kName = "ExplodingTensor";

struct Limits {
  bool only_nan;
  double growth, jump, rise, unbounded, weights;
};
constexpr Param<Limits> kParams[] = {
    {nullptr, "collection_names", "None", "collections to inspect (original); none of both: all tensors"},
    {nullptr, "tensor_regex", "None", "expressions on tensor names to inspect (original)"},
    {&Limits::only_nan, "only_nan", "false", "infinity is fine (original)", {}, "False"},
    {&Limits::growth, "growth", "1e4",
     "loss over the largest of its first three values, three steps in a row (Luff)"},
    {&Limits::jump, "jump", "10",
     "loss over its highest level, median of 3 steps, with grown weights (Luff)"},
    {&Limits::rise, "rise", "2", "the same, median of 16 steps (Luff)"},
    {&Limits::unbounded, "unbounded", "30",
     "size of a negative loss over its first level, with grown weights (Luff)"},
    {&Limits::weights, "weights", "2", "norm of all weights over that at the best loss: grown (Luff)"},
};

// smdebug's rule: any inspected tensor holds NaN, or infinity unless only_nan.
class Original final : public KeptRule {
 public:
  Original(TensorSelector selector, bool only_nan) : selector_(std::move(selector)), only_nan_(only_nan) {}

  void OnStep(const StepView& view, Sink& sink) override {
    for (const auto& entry : view.rows.summaries) {
      if (!selector_.Selects(view.trial, entry.tensor)) continue;
      const std::uint64_t bad = entry.summary.nan_count + (only_nan_ ? 0 : entry.summary.inf_count);
      if (bad > 0) Tell(view, entry, entry.summary.nan_count, entry.summary.inf_count, sink);
    }
    for (const auto& entry : view.rows.scalars) {
      if (!selector_.Selects(view.trial, entry.tensor)) continue;
      const bool nan = std::isnan(entry.value);
      const bool inf = std::isinf(entry.value);
      if (nan || (inf && !only_nan_)) Tell(view, entry, nan ? 1 : 0, inf ? 1 : 0, sink);
    }
  }

 private:
  template <typename Entry>
  static void Tell(const StepView& view, const Entry& entry, std::uint64_t nans, std::uint64_t infs,
                   Sink& sink) {
    Finding finding = FindingAt(kName, nans > 0 ? "nan" : "inf", view, entry);
    finding.what = fmt::format("{} holds {}", finding.tensor, nans > 0 ? "NaN" : "infinity");
    finding.why = "a value that is no number spreads to everything that is computed from it";
    finding.remedy =
        "lower the learning rate, clip gradients, look for a division by zero or a logarithm of zero";
    finding.evidence = {{"nan_count", nans}, {"inf_count", infs}};
    finding.threshold = "any (original)";
    sink.Report(std::move(finding));
  }

  TensorSelector selector_;
  bool only_nan_;
};

constexpr std::size_t kShort = 3, kLong = 16, kLevelValues = 3, kBlock = 8;

double MedianOfLast(const std::vector<double>& values, std::size_t count) {
  std::vector<double> last(values.end() - static_cast<std::ptrdiff_t>(count), values.end());
  std::nth_element(last.begin(), last.begin() + static_cast<std::ptrdiff_t>(count / 2), last.end());
  return last[count / 2];
}

// Luff's rule: a loss that leaves its level by orders of magnitude, or together with the weights.
class Luff final : public KeptRule {
 public:
  explicit Luff(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    if (phases_.OnStep(view)) {
      for (const auto& [name, series] : series_) {
        if (!series.open.empty()) sink.Heal(series.open, name, info.mode_step);
      }
      series_.clear();
      pairs_.clear();
      top_gradient_ = 0;
    }
    double square = 0;
    double gradient = -1;
    bool seen = false;
    for (const auto& entry : view.rows.summaries) {
      const Role role = view.trial.tensor(entry.tensor).role;
      if (role == Role::kGradient && entry.worker == 0)
        gradient = std::max(gradient, 0.0) + entry.summary.sum_sq;
      if ((role != Role::kWeight && role != Role::kBias) || entry.worker != 0) continue;
      square += entry.summary.sum_sq;
      seen = true;
    }
    if (seen) norm_ = std::sqrt(square);
    const std::vector<LossValue>& losses = view.index.losses();
    for (const LossValue& loss : losses) {
      if (loss.worker == losses.front().worker) Judge(view, loss, sink);
    }
    if (gradient >= 0 && std::isfinite(gradient) && !losses.empty() && std::isfinite(losses.front().value))
      Forecast(view, losses.front(), std::sqrt(gradient), sink);
  }

  void VisitFields(Fields& io) override {
    io("losses", series_);
    io("norm", norm_);
    io("pairs", pairs_, 4 * kBlock);
    for (const auto& [gradient, loss] : pairs_)
      io.Check(std::isfinite(gradient) && std::isfinite(loss), "a list of numbers");
    io("top_gradient", top_gradient_);
    io("warned", warned_);
    io("phases", phases_);
  }

 private:
  struct Series {
    std::int64_t values = 0;
    double level = 0;       // largest magnitude of the first kLevelValues
    double top = 0;         // highest level (median of three) up to the best one
    double best = 0;        // lowest level so far
    double since_best = 0;  // highest level after the best one
    double best_norm = 0, first_norm = 0;
    std::int64_t above = 0, since = 0;
    std::string open;  // cause of the open finding
    std::vector<double> last;
    void VisitFields(Fields& io) {
      io("values", values);
      io("level", level);
      io("top", top);
      io("best", best);
      io("since_best", since_best);
      io("best_norm", best_norm);
      io("first_norm", first_norm);
      io("above", above);
      io("since", since);
      io("open", open);
      io("last", last, kLong);
      for (const double value : last) io.Check(std::isfinite(value), "a list of numbers");
    }
  };

  void Judge(const StepView& view, const LossValue& loss, Sink& sink) {
    const std::string& name = view.trial.tensor(loss.tensor).name;
    if (series_.size() >= LossTracker::kMaxLosses && !series_.contains(name)) return;
    Series& s = series_[name];
    if (!std::isfinite(loss.value)) return;  // NonFinite reports it
    if (s.values == 0) s.first_norm = norm_;
    ++s.values;
    s.last.push_back(loss.value);
    if (s.last.size() > kLong) s.last.erase(s.last.begin());
    const double size = std::abs(loss.value);
    if (s.values <= static_cast<std::int64_t>(kLevelValues)) s.level = std::max(s.level, size);
    const char* cause = CauseOf(s, loss.value);
    if (*cause != '\0') {
      if (s.above++ == 0) s.since = view.rows.info.mode_step;
      if (s.above >= static_cast<std::int64_t>(kShort) || std::string_view(cause) == "divergence")
        Tell(view, loss, s, cause, sink);
      return;
    }
    s.above = 0;
    if (!s.open.empty() && (size <= 2 * std::max(s.level, std::abs(s.top)))) {
      sink.Heal(s.open, name, view.rows.info.mode_step);
      s.open.clear();
    }
    if (s.last.size() < kShort || !s.open.empty()) return;
    const double middle = MedianOfLast(s.last, kShort);
    if (s.values == static_cast<std::int64_t>(kShort) || middle < s.best) {
      s.top = std::max(s.top, s.since_best);
      s.since_best = s.best = middle;
      s.best_norm = norm_;
    } else {
      s.since_best = std::max(s.since_best, middle);
    }
  }

  // Returns "" if all is well.
  [[nodiscard]] const char* CauseOf(const Series& s, double value) const {
    if (s.values <= static_cast<std::int64_t>(kLevelValues)) return "";
    const double size = std::abs(value);
    if (s.level > 0 && size > limits_.growth * s.level) return "growth";
    const bool grown = s.best_norm > 0 && norm_ > limits_.weights * s.best_norm;
    if (phases_.several()) return "";  // adversaries
    const double top = std::max(s.top, s.level);
    if (grown && s.last.size() >= kShort && s.best > 0) {
      if (MedianOfLast(s.last, kShort) > limits_.jump * top) return "divergence";
      if (s.last.size() >= kLong && MedianOfLast(s.last, kLong) > limits_.rise * top) return "divergence";
    }
    const bool outgrown = s.first_norm > 0 && norm_ > limits_.weights * s.first_norm;
    if (value < 0 && outgrown && s.last.size() >= kLong && s.level > 0 &&
        size > limits_.unbounded * s.level && Falls(s.last))
      return "unbounded";
    return "";
  }

  // Forecasts a divergence: gradients keep doubling while the loss does not fall. They also grow when a loss
  // leaves a plateau, but then it falls.
  void Forecast(const StepView& view, const LossValue& loss, double gradient, Sink& sink) {
    pairs_.emplace_back(gradient, loss.value);
    if (pairs_.size() > 4 * kBlock) pairs_.erase(pairs_.begin());
    if (pairs_.size() < 4 * kBlock || phases_.several()) return;
    const auto middle = [&](std::size_t block, bool losses) {
      std::vector<double> values;
      for (std::size_t i = 0; i < kBlock; ++i) {
        const auto& pair = pairs_[block * kBlock + i];
        values.push_back(losses ? pair.second : pair.first);
      }
      return MedianOfLast(values, kBlock);
    };
    // Of the single steps, each of which has been here once: where norms jump about, medians hide the
    // highest.
    for (std::size_t i = 0; i < kBlock; ++i) top_gradient_ = std::max(top_gradient_, pairs_[i].first);
    const double a = middle(1, false);
    const double b = middle(2, false);
    const double c = middle(3, false);
    // What grows at a rate grows within a block as well; a level that was only shifted up does not.
    const auto half = [&](std::size_t from) {
      std::vector<double> values;
      for (std::size_t i = 0; i < kBlock / 2; ++i) values.push_back(pairs_[from + i].first);
      return MedianOfLast(values, kBlock / 2);
    };
    const bool still = half(3 * kBlock + kBlock / 2) > half(3 * kBlock);
    // No step falls back to where it began.
    const bool steady = std::all_of(pairs_.begin() + 3 * kBlock, pairs_.end(),
                                    [&](const auto& pair) { return pair.first > a; });
    const bool grows = a > 0 && b > 2 * a && c > 2 * b && b > top_gradient_ && c > 4 * top_gradient_ &&
                       still && steady;  // what returns from next to nothing is no pace
    if (!grows || middle(3, true) < middle(1, true)) {
      if (warned_ && c < 2 * top_gradient_) {
        sink.Heal("gradient_growth", "", view.rows.info.mode_step);
        warned_ = false;
      }
      return;
    }
    warned_ = true;
    Finding finding = FindingAt(kName, "gradient_growth", view, loss);
    finding.tensor.clear();
    finding.forecast = true;
    finding.since_step = view.rows.info.mode_step - static_cast<std::int64_t>(3 * kBlock);
    const double left = std::log(std::max(limits_.growth * top_gradient_ / c, 1.0));
    finding.lead_steps = static_cast<std::int64_t>(kBlock * left / std::log(c / b));
    finding.what = fmt::format("gradients keep growing: {:.2g} times as large every {} steps", c / b, kBlock);
    finding.why = fmt::format(
        "their norm is {:.3g}, at most {:.3g} before, and the loss does not fall: at this "
        "pace it is {:g} times that in {} steps",
        c, top_gradient_, limits_.growth, finding.lead_steps);
    finding.causes = {"learning rate too high, or still rising", "exploding recurrence",
                      "gradients never cleared"};
    finding.remedy = "lower the learning rate, clip gradients";
    finding.evidence = {{"norm", c}, {"norm_before", b}, {"highest_before", top_gradient_}};
    finding.threshold = fmt::format("twice its median three times in a row, {} steps each (Luff)", kBlock);
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      finding.series.emplace_back(view.rows.info.mode_step - static_cast<std::int64_t>(pairs_.size() - 1 - i),
                                  pairs_[i].first);
    }
    sink.Report(std::move(finding));
  }

  // True if the second half of the last values averages more than 20 % further below zero than the first
  // half.
  static bool Falls(const std::vector<double>& last) {
    const std::size_t half = last.size() / 2;
    double first = 0;
    double second = 0;
    for (std::size_t i = 0; i < half; ++i) first += last[i];
    for (std::size_t i = half; i < 2 * half; ++i) second += last[i];
    return first < 0 && second < 1.2 * first;
  }

  void Tell(const StepView& view, const LossValue& loss, Series& s, const char* cause, Sink& sink) {
    if (s.open.empty()) s.open = cause;
    Finding finding = FindingAt(kName, s.open.c_str(), view, loss);
    finding.severity = Severity::kStop;
    finding.since_step = s.since;
    const double size = std::abs(loss.value);
    if (std::string_view(cause) == "unbounded") {
      // It has not overflowed yet: extrapolates its growth over the window.
      const double factor = MedianOfLast(s.last, 3) / s.last.front();
      const double room = std::log(3.4e38 / size);
      finding.severity = Severity::kWarn;
      finding.forecast = true;
      if (factor > 1.05)
        finding.lead_steps = static_cast<std::int64_t>(room / std::log(factor) * (kLong - 2));
      finding.what = fmt::format("the loss falls without bound: {:.3g} now, {:.1g} times its first size",
                                 loss.value, size / s.level);
      finding.why = fmt::format(
          "it falls faster and faster while the weights grow (norm {:.3g}, {:.3g} at the "
          "start): it overflows in about {} steps",
          norm_, s.first_norm, finding.lead_steps);
      finding.causes = {"loss without a lower bound (NLLLoss fed with logits)", "sign of the loss"};
    } else if (std::string_view(cause) == "divergence") {
      if (s.above < static_cast<std::int64_t>(kLong)) finding.severity = Severity::kWarn;  // it may recover
      finding.what = fmt::format(
          "the training diverges: the loss is at {:.3g}, its highest level before was {:.3g}",
          MedianOfLast(s.last, s.last.size() >= kLong && s.above >= static_cast<std::int64_t>(kShort)
                                   ? kLong
                                   : kShort),
          std::max(s.top, s.level));
      finding.why = fmt::format(
          "the weights have grown with it (norm {:.3g}, {:.3g} at the best loss): the model "
          "is worse than one that has learnt nothing",
          norm_, s.best_norm);
      finding.causes = {"learning rate too high", "one batch with wild values", "exploding recurrence"};
    } else {
      finding.what = fmt::format("the loss has grown to {:.3g}, {:.1g} times its first values", loss.value,
                                 size / s.level);
      finding.why =
          "it explodes: numbers of this size overflow soon, and the weights behind them are worthless";
      finding.causes = {"learning rate too high", "loss without a lower bound (NLLLoss fed with logits)",
                        "exploding recurrence"};
    }
    finding.remedy =
        "lower the learning rate (by ten), clip gradients, check that the loss has a lower bound and gets "
        "what it expects";
    finding.evidence = {{"loss", loss.value},           {"first_level", s.level},
                        {"highest_level", s.top},       {"best_level", s.best},
                        {"weights_norm", norm_},        {"norm_at_best", s.best_norm},
                        {"norm_at_start", s.first_norm}};
    finding.threshold = fmt::format(
        "{:g} times the first level; {:g} times (3 steps) or {:g} times (16 steps) the highest level with "
        "weights "
        "{:g} times as large; below zero {:g} times (Luff)",
        limits_.growth, limits_.jump, limits_.rise, limits_.weights, limits_.unbounded);
    for (std::size_t i = 0; i < s.last.size(); ++i) {
      finding.series.emplace_back(view.rows.info.mode_step - static_cast<std::int64_t>(s.last.size() - 1 - i),
                                  s.last[i]);
    }
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  std::map<std::string, Series> series_;
  double norm_ = 0;                               // of all weights, when last recorded
  std::vector<std::pair<double, double>> pairs_;  // norm of all gradients and loss, of the last steps
  double top_gradient_ = 0;                       // highest norm of a step before the last three blocks
  bool warned_ = false;
  Phases phases_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecMadeBy(kName, kParams, [](const Limits& limits, const Parameters& all) -> MadeRule {
    LUFF_ASSIGN_OR_RETURN(TensorSelector selector, TensorSelector::Make(all, true));
    if (IsOriginal(all)) return std::unique_ptr<Rule>(new Original(std::move(selector), limits.only_nan));
    return std::unique_ptr<Rule>(new Luff(limits));
  });
  spec.version = 3;  // 3: growth over the highest step of before
  spec.aliases = {"LossDivergence"};
  spec.summary =
      "a loss that leaves its level by orders, alone or together with the weights (original: NaN, infinity)";
  spec.needs = [](const Parameters& all) -> std::vector<Need> {
    if (!IsOriginal(all)) return {};  // summaries of weights and gradients and losses are always taken
    return SelectedNeeds(all, "exploding_tensor", Bit(format::Form::kSummary), true);
  };
  return spec;
}

}  // namespace luff::rules::exploding_tensor
