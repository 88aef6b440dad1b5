#include <algorithm>
#include <cmath>
#include <map>
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
constexpr const char* kCoupled = "coupled_decay";
constexpr std::size_t kMaxParts = 16;

struct Limits {
  double share;
  std::int64_t rows;
  double shrunk;
  std::int64_t updates, interval;
  double ratio, lost;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::share, "share", "0.6", "of an update's length that the norm of all weights loses (Luff)"},
    {&Limits::rows, "rows", "4", "captures in a row (Luff)", AtLeast(1)},
    {&Limits::shrunk, "shrunk", "0.1", "of the norm that has to be gone (Luff)"},
    {&Limits::updates, "updates", "64", "slowest pace: so many updates for that share of the norm (Luff)",
     AtLeast(1)},
    {&Limits::interval, "interval", "8", "TRAIN steps between two captures after the first eight (Luff)",
     AtLeast(1)},
    {&Limits::ratio, "ratio", "3", "coupled_decay: norm of decay x weights over that of the gradient (Luff)",
     AtLeast(1)},
    {&Limits::lost, "lost", "0.3", "coupled_decay: of the weights' norm that has to be gone (Luff)"},
};

// Optimizers that add decay x weight to the gradient and then divide by its usual size: however small the
// decay, what dominates the sum is what they follow.
bool IsCoupled(std::string_view optimizer) {
  for (const char* name : {"Adam", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad"}) {
    if (optimizer == name) return true;
  }
  return false;
}

// Takes all weights of a worker as one vector W. An update that only shrinks them moves W by exactly what its
// norm loses: s = (|W_p| - |W_s|) / |W_s - W_p| is 1 for pure shrinkage and about 0 for a gradient, which is
// nearly orthogonal to the weights.
class RegularizationDominates final : public KeptRule {
 public:
  explicit RegularizationDominates(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    summed_ = summed_ || !view.index.json_events("summands").empty();
    for (const LossValue& loss : view.index.losses()) {
      if (!std::isfinite(loss.value)) continue;
      if (loss_.empty()) {
        loss_ = view.trial.tensor(loss.tensor).name;
        first_loss_ = loss.value;
      }
      if (view.trial.tensor(loss.tensor).name != loss_) continue;
      loss_now_ = loss.value;
      recent_.push_back(loss.value);
      if (recent_.size() > kRecent) recent_.erase(recent_.begin());
    }
    for (const auto& [entry, tensor] : view.index.scalars(Role::kOther)) {
      if (!std::isfinite(entry.value) || tensor.name.find("_part_") == std::string::npos) continue;
      if (parts_.size() < kMaxParts || parts_.contains(tensor.name))
        parts_.try_emplace(tensor.name, Part{entry.value, 0}).first->second.now = entry.value;
    }
    for (const auto& [entry, tensor] : view.index.scalars(Role::kOptimizerSetting)) {
      if (tensor.name.ends_with(".weight_decay")) {
        const std::string_view name = std::string_view(tensor.name).substr(tensor.name.find('/') + 1);
        coupled_ = IsCoupled(name.substr(0, name.find('.')));
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
    // Rows of tables that are not looked up get decay alone, whatever the loss asks for: tables are judged
    // where there is nothing else.
    const auto is_table = [&](const WeightChange& change) {
      return view.trial.tensor(change.tensor).module_type.find("Embedding") != std::string::npos;
    };
    const auto& changes = view.index.weight_changes();
    const bool only_tables = std::all_of(changes.begin(), changes.end(), is_table);
    for (const WeightChange& change : changes) {
      if (!only_tables && is_table(change)) continue;
      const Summary* now = view.memo.SummaryOf(view, change.tensor, change.worker);
      if (now == nullptr || now->finite_count() != now->count || !std::isfinite(change.sum_sq) ||
          !std::isfinite(change.previous_sum_sq))
        continue;
      // Scales of normalisations start at one: large, and no direction that anything is learnt in.
      if (view.trial.tensor(change.tensor).module_type.find("Norm") != std::string::npos) continue;
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
    const bool learning = Learning();
    JudgeCoupled(view, {lead, worker}, std::sqrt(before_sq), std::sqrt(now_sq), learning, sink);
    // Without weight decay, only a penalty in the loss can be the cause: not where the loss is a cross
    // entropy or another of a known formula and nothing else. A penalty shrinks many weights, not one.
    const bool pure = !summed_ && FormulaOfKind(std::string_view(loss_).substr(0, loss_.find("_output_"))) !=
                                      Formula::kUnknown;
    const bool many = decay_ > 0 || (!pure && 2 * shrinking >= tensors);
    if (share < limits_.share || !many) {
      rows_ = 0;
      last_update_ = info.update;
      // Weights that cannot shrink further have still lost their norm.
      const bool back = std::sqrt(now_sq) > (1 - limits_.shrunk) * open_norm_;
      // A loss may also fall because what the model adds to its input dies out with the weights.
      const bool left = std::sqrt(now_sq) > kDied * open_norm_;
      if (open_.empty() || !(back || (left && learning && LevelFell()))) return;
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
    io("parts", parts_, kMaxParts);
    io("summed", summed_);
    io("recent", recent_, kRecent);
    io("coupled", coupled_);
    io("coupled_rows", coupled_rows_);
    io("coupled_norm", coupled_norm_);
    io("coupled_least", coupled_least_);
    io("coupled_since", coupled_since_);
    io("coupled_open", coupled_open_);
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
  struct Part {  // of a loss that is a sum: a call of a known formula
    double first = 0, now = 0;
    void VisitFields(Fields& io) {
      io("first", first);
      io("now", now);
    }
  };

  // If the loss has fallen by a fifth, the model learns, whatever the weights do. A sum falls when its
  // penalty does, so where parts of known formulas are seen, one of them must have fallen.
  [[nodiscard]] bool Learning() const {
    const auto fell = [](double first, double now) { return first > 0 && now < 0.8 * first; };
    if (parts_.empty()) return !loss_.empty() && fell(first_loss_, loss_now_);
    return std::any_of(parts_.begin(), parts_.end(),
                       [&](const auto& part) { return fell(part.second.first, part.second.now); });
  }

  // The same of the mean of the newest losses: one batch that is easier than the first says nothing.
  [[nodiscard]] bool LevelFell() const {
    if (!parts_.empty()) return true;
    double sum = 0;
    for (const double value : recent_) sum += value;
    return recent_.size() == kRecent && sum < 0.8 * first_loss_ * static_cast<double>(kRecent);
  }

  // Coupled decay adds d w to the gradient g. Where |d w| is far above |g| at each capture and the weights
  // shrink, the optimizer minimises the penalty alone; it does so by steps of its own size, which need not
  // point at zero.
  void JudgeCoupled(const StepView& view, TensorAt lead, double before, double now, bool learning,
                    Sink& sink) {
    double gradient_sq = 0;
    for (const auto& [entry, tensor] : view.index.summaries(Role::kGradient)) {
      if (entry.worker == lead.worker) gradient_sq += entry.summary.sum_sq;
    }
    const std::int64_t step = view.rows.info.mode_step;
    const double ratio = gradient_sq > 0 ? decay_ * now / std::sqrt(gradient_sq) : 0;
    if (!coupled_ || !(ratio >= limits_.ratio) || learning) {
      coupled_rows_ = 0;
      if (learning && !coupled_open_.empty()) {
        sink.Heal(kCoupled, coupled_open_, step);
        coupled_open_.clear();
      }
      return;
    }
    if (coupled_rows_++ == 0) {
      coupled_norm_ = before;
      coupled_least_ = ratio;
      coupled_since_ = step;
    }
    coupled_least_ = std::min(coupled_least_, ratio);
    const double kept = now / coupled_norm_;
    if (coupled_rows_ < limits_.rows || 1 - kept < limits_.lost || !open_.empty()) return;
    Finding finding = FindingAt(kName, kCoupled, view, lead);
    if (coupled_open_.empty()) coupled_open_ = finding.tensor;
    finding.tensor = coupled_open_;
    finding.since_step = coupled_since_;
    finding.what = fmt::format(
        "weight decay outweighs the loss: {:g} times the weights is {:.0f} times the gradient and more, and "
        "{:.0f} % of "
        "the weights' norm is gone",
        decay_, coupled_least_, 100 * (1 - kept));
    finding.why =
        "this optimizer adds the decay to the gradient and divides by the size of the sum, so that it "
        "follows the "
        "larger of the two; the loss does not fall";
    finding.remedy =
        "lower weight_decay (1e-5 to 1e-2 are usual), or use AdamW, whose decay is apart from the gradient";
    finding.causes = {"a weight_decay meant for AdamW", "weight decay far too large"};
    finding.evidence = {{"ratio", coupled_least_}, {"norm_kept", kept}, {"weight_decay", decay_}};
    finding.threshold = fmt::format(
        "decay x weights at least {:g} times the gradient in {} captures in a row, and {:g} % of the norm "
        "gone, without a "
        "fall of the loss by a fifth (Luff)",
        limits_.ratio, limits_.rows, 100 * limits_.lost);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  static constexpr std::size_t kRecent = 8;
  static constexpr double kDied = 0.1;  // of the weights' norm
  std::map<std::string, Part> parts_;
  std::vector<double> recent_;  // losses
  bool summed_ = false;         // the root of a backward pass sums up other terms beside its losses
  bool coupled_ = false;
  std::int64_t coupled_rows_ = 0, coupled_since_ = 0;
  double coupled_norm_ = 0, coupled_least_ = 0;
  std::string coupled_open_;
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
  spec.version = 5;  // 4: without tables; 5: terms beside a known loss
  spec.summary = "weight decay or a penalty outweighs the gradient: updates only shrink the weights";
  spec.needs = [](const Parameters& all) {
    return std::vector{
        WeightChangeNeed(IntervalOf(all), 8),
        Need{.collection = "gradients", .roles = {Role::kGradient}, .forms = Bit(Form::kSummary)}};
  };
  return spec;
}

}  // namespace luff::rules::regularization_dominates
