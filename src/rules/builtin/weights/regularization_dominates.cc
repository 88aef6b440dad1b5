#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/loss_tracker.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// RegularizationDominates: docs/rules/regularization_dominates.md.
namespace luff::rules::regularization_dominates {
namespace {

using format::Form;
using format::Role;
constexpr const char* kName = "RegularizationDominates";
constexpr const char* kCause = "shrinkage";

struct Limits {
  double share;
  std::int64_t rows;
  double shrunk;
  std::int64_t updates, interval;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::share, "share", "0.6", "of an update's length that the norm of all weights loses (Luff)"},
    {&Limits::rows, "rows", "4", "captures in a row (Luff)", AtLeast(1)},
    {&Limits::shrunk, "shrunk", "0.1", "of the norm that has to be gone (Luff)"},
    {&Limits::updates, "updates", "64", "slowest pace: so many updates for that share of the norm (Luff)",
     AtLeast(1)},
    {&Limits::interval, "interval", "8", "TRAIN steps between two captures after the first eight (Luff)",
     AtLeast(1)},
};

// Takes all weights of a worker as one vector W. An update that only shrinks them moves W by exactly what its
// norm loses: s = (|W_p| - |W_s|) / |W_s - W_p| is 1 for pure shrinkage and about 0 for a gradient, which is
// nearly orthogonal to the weights.
class RegularizationDominates final : public KeptRule {
 public:
  explicit RegularizationDominates(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    for (const LossValue& loss : view.index.losses()) {
      if (!std::isfinite(loss.value)) continue;
      if (loss_.empty()) {
        loss_ = view.trial.tensor(loss.tensor).name;
        first_loss_ = loss.value;
      }
      if (view.trial.tensor(loss.tensor).name == loss_) loss_now_ = loss.value;
    }
    for (const auto& [entry, tensor] : view.index.scalars(Role::kOptimizerSetting)) {
      if (tensor.name.ends_with(".weight_decay")) {
        decay_ = std::max(decay_at_ == info.mode_step ? decay_ : 0.0, entry.value);
        decay_at_ = info.mode_step;
      }
      if (tensor.name.ends_with(".lr")) rate_ = entry.value;
    }
    double moved_sq = 0;
    double before_sq = 0;
    double now_sq = 0;
    double largest = 0;
    std::size_t tensors = 0;
    std::size_t shrinking = 0;  // weights that shrink, each judged by itself
    query::TensorId lead = format::kNoId;
    std::uint32_t worker = 0;
    for (const WeightChange& change : view.index.weight_changes()) {
      const Summary* now = view.memo.SummaryOf(view, change.tensor, change.worker);
      if (now == nullptr || now->finite_count() != now->count || !std::isfinite(change.sum_sq) ||
          !std::isfinite(change.previous_sum_sq))
        continue;
      if (lead == format::kNoId) worker = change.worker;
      if (change.worker != worker) continue;
      moved_sq += change.sum_sq;
      before_sq += change.previous_sum_sq;
      now_sq += now->sum_sq;
      const double lost = std::sqrt(change.previous_sum_sq) - std::sqrt(now->sum_sq);
      tensors += change.sum_sq > 0 ? 1 : 0;
      shrinking += change.sum_sq > 0 && lost >= limits_.share * std::sqrt(change.sum_sq) ? 1 : 0;
      if (lead == format::kNoId || change.sum_sq > largest) {
        lead = change.tensor;
        largest = change.sum_sq;
      }
    }
    if (lead == format::kNoId || !(before_sq > 0) || !(moved_sq > 0)) return;
    const double share = (std::sqrt(before_sq) - std::sqrt(now_sq)) / std::sqrt(moved_sq);
    // If the loss has fallen by a fifth, the model learns, whatever the weights do.
    const bool learning = !loss_.empty() && first_loss_ > 0 && loss_now_ < 0.8 * first_loss_;
    // Without weight decay, only a penalty in the loss can be the cause: not where the loss is a cross
    // entropy or another of a known formula and nothing else. A penalty shrinks many weights, not one.
    const bool pure =
        FormulaOfKind(std::string_view(loss_).substr(0, loss_.find("_output_"))) != Formula::kUnknown;
    const bool many = decay_ > 0 || (!pure && 2 * shrinking >= tensors);
    if (share < limits_.share || !many) {
      rows_ = 0;
      last_update_ = info.update;
      // Weights that cannot shrink further have still lost their norm.
      const bool back = std::sqrt(now_sq) > (1 - limits_.shrunk) * open_norm_;
      if (open_.empty() || !(back || learning)) return;
      sink.Heal(kCause, open_, info.mode_step);
      open_.clear();
      return;
    }
    if (rows_ == 0) {
      since_norm_ = std::sqrt(before_sq);
      since_update_ = last_update_ < 0 ? info.update - 1 : last_update_;
      since_step_ = last_step_;
      least_ = share;
    }
    last_update_ = info.update;
    last_step_ = info.mode_step;
    ++rows_;
    least_ = std::min(least_, share);
    const double kept = std::sqrt(now_sq) / since_norm_;
    const std::int64_t updates = info.update - since_update_;
    const bool fast =
        1 - kept >= limits_.shrunk && updates > 0 &&
        (1 - kept) * static_cast<double>(limits_.updates) >= limits_.shrunk * static_cast<double>(updates);
    if (rows_ < limits_.rows || !fast || learning) return;
    Finding finding = FindingAt(kName, kCause, view, TensorAt{lead, worker});
    if (open_.empty()) {
      open_ = finding.tensor;
      open_norm_ = since_norm_;
    }
    finding.tensor = open_;
    finding.severity =
        decay_ > 0 ? Severity::kStop : Severity::kWarn;  // the data, too, may ask for small weights
    finding.since_step = since_step_;
    finding.what =
        fmt::format("updates do nothing but shrink the weights: {:.0f} % of their norm is gone in {} updates",
                    100 * (1 - kept), updates);
    finding.why =
        fmt::format("{:.0f} % and more of each update points at zero; what the loss asks for is lost in it{}",
                    100 * least_,
                    decay_ > 0 ? fmt::format(" (weight decay {:g}, learning rate {:g})", decay_, rate_) : "");
    finding.remedy =
        decay_ > 0
            ? "lower the weight decay (1e-4 to 1e-2 with SGD, 0.01 to 0.1 with AdamW are usual), or the "
              "learning rate"
            : "lower the factor of the penalty that the loss contains";
    finding.causes = decay_ > 0 ? std::vector<std::string>{"weight decay far too large",
                                                           "learning rate far too large for the weight decay"}
                                : std::vector<std::string>{"a penalty on the weights that is far too strong"};
    finding.evidence = {{"share_of_shrinkage", least_},
                        {"norm_kept", kept},
                        {"updates", updates},
                        {"weight_decay", decay_},
                        {"learning_rate", rate_}};
    finding.threshold = fmt::format(
        "{:g} of each update in {} captures in a row, and {:g} % of the norm gone at a pace of {} updates or "
        "fewer, without a fall of the loss by a fifth (Luff)",
        limits_.share, limits_.rows, 100 * limits_.shrunk, limits_.updates);
    sink.Report(std::move(finding));
  }

  void VisitFields(Fields& io) override {
    io("loss", loss_);
    io("first_loss", first_loss_);
    io("loss_now", loss_now_);
    io("decay", decay_);
    io("decay_at", decay_at_);
    io("rate", rate_);
    io("rows", rows_);
    io("since_norm", since_norm_);
    io("since_update", since_update_);
    io("since_step", since_step_);
    io("last_update", last_update_);
    io("last_step", last_step_);
    io("least", least_);
    io("open", open_);
    io("open_norm", open_norm_);
  }

 private:
  const Limits limits_;
  std::string loss_;
  double first_loss_ = 0, loss_now_ = 0;
  double decay_ = 0, rate_ = 0;
  std::int64_t decay_at_ = -1;
  std::int64_t rows_ = 0, since_update_ = 0, since_step_ = 0, last_update_ = -1, last_step_ = 0;
  double since_norm_ = 0, least_ = 1;
  std::string open_;
  double open_norm_ = 0;  // norm before the weights began to shrink, while a finding is open
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<RegularizationDominates>(kName, kParams);
  spec.version = 2;
  spec.summary = "weight decay or a penalty outweighs the gradient: updates only shrink the weights";
  spec.needs = [](const Parameters& all) { return std::vector{WeightChangeNeed(IntervalOf(all), 8)}; };
  return spec;
}

}  // namespace luff::rules::regularization_dominates
