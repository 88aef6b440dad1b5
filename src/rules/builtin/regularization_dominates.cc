#include <cmath>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/builtin/builtin.h"
#include "rules/json_state.h"
#include "rules/loss_tracker.h"
#include "rules/select.h"
#include "rules/step_memo.h"

/// RegularizationDominates: docs/rules/regularization_dominates.md.
namespace luff::rules {
namespace {

using Json = nlohmann::json;
using format::Form;
using format::Role;
constexpr const char* kName = "RegularizationDominates";
constexpr const char* kPage = "docs/rules/regularization_dominates.md";
constexpr const char* kCause = "shrinkage";

struct Limits {
  double share = 0.6;
  std::int64_t rows = 4;
  double shrunk = 0.1;
  std::int64_t updates = 64;
};

// All weights of a worker as one vector W: an update that does nothing but shrink them moves it by exactly
// what its norm loses. s = (|W_p| - |W_s|) / |W_s - W_p| is 1 for pure shrinkage and about 0 for a gradient,
// which is nearly orthogonal to the weights.
class RegularizationDominates final : public Rule {
 public:
  explicit RegularizationDominates(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    for (const LossValue& loss : LossesOf(view.trial, view.rows)) {
      if (!std::isfinite(loss.value)) continue;
      if (loss_.empty()) {
        loss_ = view.trial.tensor(loss.tensor).name;
        first_loss_ = loss.value;
      }
      if (view.trial.tensor(loss.tensor).name == loss_) loss_now_ = loss.value;
    }
    for (const auto& entry : view.rows.scalars) {
      const std::string& name = view.trial.tensor(entry.tensor).name;
      if (name.ends_with(".weight_decay") && view.trial.tensor(entry.tensor).role == Role::kOptimizerSetting)
        decay_ = std::max(decay_at_ == info.mode_step ? decay_ : 0.0, entry.value),
        decay_at_ = info.mode_step;
      if (name.ends_with(".lr") && view.trial.tensor(entry.tensor).role == Role::kOptimizerSetting)
        rate_ = entry.value;
    }
    if (view.rows.forms.empty()) return;
    double moved_sq = 0;
    double before_sq = 0;
    double now_sq = 0;
    double largest = 0;
    std::size_t tensors = 0;
    std::size_t shrinking = 0;  // each by itself
    query::TensorId lead = format::kNoId;
    std::uint32_t worker = 0;
    for (const auto& entry : view.rows.forms) {
      if (entry.row.form != Bit(Form::kDifference) || view.trial.tensor(entry.tensor).role != Role::kWeight)
        continue;
      const Summary* now = view.memo.SummaryOf(view, entry.tensor, entry.worker);
      if (now == nullptr || now->finite_count() != now->count || !std::isfinite(entry.row.values[1]) ||
          !std::isfinite(entry.row.values[5]))
        continue;
      if (lead == format::kNoId) worker = entry.worker;
      if (entry.worker != worker) continue;
      moved_sq += entry.row.values[1];
      before_sq += entry.row.values[5];
      now_sq += now->sum_sq;
      const double lost = std::sqrt(entry.row.values[5]) - std::sqrt(now->sum_sq);
      tensors += entry.row.values[1] > 0 ? 1 : 0;
      shrinking += entry.row.values[1] > 0 && lost >= limits_.share * std::sqrt(entry.row.values[1]) ? 1 : 0;
      if (lead == format::kNoId || entry.row.values[1] > largest) {
        lead = entry.tensor;
        largest = entry.row.values[1];
      }
    }
    if (lead == format::kNoId || !(before_sq > 0) || !(moved_sq > 0)) return;
    const double share = (std::sqrt(before_sq) - std::sqrt(now_sq)) / std::sqrt(moved_sq);
    // A loss that has fallen by a fifth is being learnt, whatever the weights do.
    const bool learning = !loss_.empty() && first_loss_ > 0 && loss_now_ < 0.8 * first_loss_;
    // Without weight decay it can only be a penalty in the loss, and that shrinks more than one weight of
    // many.
    const bool many = decay_ > 0 || 2 * shrinking >= tensors;
    if (share < limits_.share || !many) {
      rows_ = 0;
      last_update_ = info.update;
      // Weights that have nothing left to lose are no longer shrunk, and have still lost it.
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
    Finding finding = FindingAt(kName, kPage, kCause, view.trial, lead, worker, info);
    if (open_.empty()) {
      open_ = finding.tensor;
      open_norm_ = since_norm_;
    }
    finding.tensor = open_;
    finding.severity = Severity::kStop;
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
                        {"updates", static_cast<double>(updates)},
                        {"weight_decay", decay_},
                        {"learning_rate", rate_}};
    finding.threshold = fmt::format(
        "{:g} of each update in {} captures in a row, and {:g} % of the norm gone at a pace of {} updates or "
        "fewer, without a fall of the loss by a fifth (Luff)",
        limits_.share, limits_.rows, 100 * limits_.shrunk, limits_.updates);
    sink.Report(std::move(finding));
  }

  [[nodiscard]] std::string SaveState() const override {
    return JsonText(
        Json{{"loss", {loss_, first_loss_, loss_now_}},
             {"settings", {decay_, decay_at_, rate_}},
             {"run", {rows_, since_norm_, since_update_, since_step_, last_update_, last_step_, least_}},
             {"open", {open_, open_norm_}}});
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    return LoadJson(text, [&](const Json& json) {
      const Json& loss = json.at("loss");
      loss_ = loss.at(0).get<std::string>();
      first_loss_ = loss.at(1);
      loss_now_ = loss.at(2);
      const Json& settings = json.at("settings");
      decay_ = settings.at(0);
      decay_at_ = settings.at(1);
      rate_ = settings.at(2);
      const Json& run = json.at("run");
      rows_ = run.at(0);
      since_norm_ = run.at(1);
      since_update_ = run.at(2);
      since_step_ = run.at(3);
      last_update_ = run.at(4);
      last_step_ = run.at(5);
      least_ = run.at(6);
      open_ = json.at("open").at(0).get<std::string>();
      open_norm_ = json.at("open").at(1);
    });
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
  double open_norm_ = 0;  // of the weights before they began to shrink, while it is open
};

}  // namespace

RuleSpec RegularizationDominatesSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.version = 2;
  spec.page = kPage;
  spec.summary = "weight decay or a penalty outweighs the gradient: updates only shrink the weights";
  spec.parameters = {
      {"share", "0.6", "0.6", "of an update's length that the norm of all weights loses (Luff)"},
      {"rows", "4", "4", "captures in a row (Luff)"},
      {"shrunk", "0.1", "0.1", "of the norm that has to be gone (Luff)"},
      {"updates", "64", "64", "slowest pace: so many updates for that share of the norm (Luff)"},
      {"interval", "8", "8", "TRAIN steps between two captures after the first eight (Luff)"},
  };
  spec.needs = [](const Parameters& parameters) -> std::vector<Need> {
    const Result<std::int64_t> interval = ParseInt(TextOf(parameters, "interval"));
    Need need;
    need.collection = "weight_changes";
    need.roles = {Role::kWeight};
    need.forms = Bit(Form::kDifference);
    need.save_interval = interval.ok() ? std::max<std::int64_t>(1, interval.value()) : 8;
    need.first_steps = 8;
    return {need};
  };
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    Limits limits;
    LUFF_ASSIGN_OR_RETURN(limits.share, ParseDouble(TextOf(parameters, "share")));
    LUFF_ASSIGN_OR_RETURN(limits.rows, ParseInt(TextOf(parameters, "rows")));
    LUFF_ASSIGN_OR_RETURN(limits.shrunk, ParseDouble(TextOf(parameters, "shrunk")));
    LUFF_ASSIGN_OR_RETURN(limits.updates, ParseInt(TextOf(parameters, "updates")));
    LUFF_ASSIGN_OR_RETURN(const std::int64_t interval, ParseInt(TextOf(parameters, "interval")));
    if (interval < 1 || limits.rows < 1 || limits.updates < 1)
      return InvalidArgument("'interval', 'rows' and 'updates' must be at least 1");
    return std::unique_ptr<Rule>(new RegularizationDominates(limits));
  };
  return spec;
}

}  // namespace luff::rules
