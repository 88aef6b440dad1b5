#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/format.h"
#include "rules/facts/loss_tracker.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// OptimizerSettings: docs/rules/optimizer_settings.md.
namespace luff::rules::optimizer_settings {
namespace {

constexpr const char* kName = "OptimizerSettings";
constexpr std::size_t kMaxGroups = 256;

struct Limits {
  std::int64_t updates;
  double momentum;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::updates, "updates", "16", "updates in a row with these settings (Luff)", AtLeast(1)},
    {&Limits::momentum, "momentum", "0.995",
     "constant momentum of SGD from which it is judged: it adds up the gradients of 200 updates (Luff)",
     Between(0, 1)},
};

// What one step tells of a group of parameters; below 0: nothing.
struct Now {
  double beta1 = -1, beta2 = -1, momentum = -1;
  query::TensorId tensor = format::kNoId;  // the setting that a finding names
};

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& letter : lower) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return lower;
}

// Kingma and Ba's condition for Adam to converge, theorem 4.1 (arXiv:1412.6980): beta1^2 < sqrt(beta2).
bool AreExchanged(double beta1, double beta2) noexcept {
  return beta2 > 0 && beta1 > beta2 && beta1 < 1 && beta1 * beta1 > std::sqrt(beta2);
}

class OptimizerSettings final : public KeptRule {
 public:
  explicit OptimizerSettings(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.mode != query::Mode::kTrain || view.rows.info.superseded) return;
    tracker_.OnStep(view);
    if (view.index.events(format::EventKind::kOptimizerStep).empty()) return;
    for (const auto& [name, now] : SettingsOf(view)) {
      if (groups_.size() >= kMaxGroups && !groups_.contains(name)) continue;
      Group& group = groups_[name];
      const std::string optimizer = Lower(name);
      // The second of Adamax decays a largest value, not a mean of squares.
      if (optimizer.find("adam") != std::string::npos && optimizer.find("adamax") == std::string::npos)
        Betas(view, now, &group, sink);
      if (optimizer.find("sgd") != std::string::npos) Momentum(view, now, &group, sink);
    }
  }

  void VisitFields(Fields& io) override {
    io("groups", groups_, kMaxGroups);
    io("losses", tracker_);
  }

 private:
  struct Group {
    std::int64_t exchanged = 0, since = -1;  // updates in a row, and the step of the first
    double momentum = -1;                    // of the first update; below 0: none yet
    bool moves = false;                      // it has changed since: a schedule
    std::int64_t worse = 0, worse_since = -1;
    std::int64_t calm = 0;  // updates in a row in which the loss did not rise
    bool told_betas = false, told_momentum = false;
    void VisitFields(Fields& io) {
      io("exchanged", exchanged);
      io("since", since);
      io("momentum", momentum);
      io("moves", moves);
      io("worse", worse);
      io("worse_since", worse_since);
      io("calm", calm);
      io("told_betas", told_betas);
      io("told_momentum", told_momentum);
    }
  };

  // The settings of the step, by "OPTIMIZER.groupN".
  static std::map<std::string, Now> SettingsOf(const StepView& view) {
    constexpr std::string_view kPrefix = "optimizer/";
    std::map<std::string, Now> found;
    for (const auto& [entry, tensor] : view.index.scalars(format::Role::kOptimizerSetting)) {
      const std::size_t dot = tensor.name.rfind('.');
      if (entry.worker != view.index.first_worker() || !std::isfinite(entry.value) ||
          !tensor.name.starts_with(kPrefix) || dot == std::string::npos || dot <= kPrefix.size())
        continue;
      const std::string_view what = std::string_view(tensor.name).substr(dot + 1);
      if (what != "beta1" && what != "beta2" && what != "momentum") continue;
      Now& now = found[tensor.name.substr(kPrefix.size(), dot - kPrefix.size())];
      if (what == "beta2") {
        now.beta2 = entry.value;
        continue;
      }
      (what == "beta1" ? now.beta1 : now.momentum) = entry.value;
      now.tensor = entry.tensor;
    }
    return found;
  }

  void Betas(const StepView& view, const Now& now, Group* group, Sink& sink) const {
    const std::int64_t step = view.rows.info.mode_step;
    if (!AreExchanged(now.beta1, now.beta2)) {
      if (group->told_betas) sink.Heal("betas", NameOf(view, now), step);
      group->told_betas = false;
      group->exchanged = 0;
      return;
    }
    if (group->exchanged++ == 0) group->since = step;
    if (group->told_betas || group->exchanged < limits_.updates) return;
    group->told_betas = true;
    Finding finding = FindingAt(kName, "betas", view, TensorAt{now.tensor, view.index.first_worker()});
    finding.since_step = group->since;
    finding.what = fmt::format(
        "Adam's betas are ({:g}, {:g}): the first is for the mean, the second for the "
        "squares",
        now.beta1, now.beta2);
    finding.why = fmt::format(
        "the mean of the gradients looks back over {:.3g} updates, that of their squares only over {:.3g}: "
        "steps go where gradients pointed long ago, at a size that follows the newest; Adam is known to "
        "converge only where beta1 squared is below the square root of beta2 (here {:.3g} and {:.3g})",
        1 / (1 - now.beta1), 1 / std::max(1 - now.beta2, 1e-12), now.beta1 * now.beta1, std::sqrt(now.beta2));
    finding.remedy = "exchange them: betas=(0.9, 0.999), the first below the second";
    finding.causes = {"betas in the wrong order"};
    finding.evidence = {{"beta1", now.beta1}, {"beta2", now.beta2}};
    finding.threshold = fmt::format("beta1^2 above sqrt(beta2) (Kingma and Ba 2014, theorem 4.1), {} updates",
                                    limits_.updates);
    sink.Report(std::move(finding));
  }

  void Momentum(const StepView& view, const Now& now, Group* group, Sink& sink) {
    if (now.momentum < 0) return;
    if (group->momentum < 0) group->momentum = now.momentum;
    group->moves = group->moves || now.momentum != group->momentum;
    const std::int64_t step = view.rows.info.mode_step;
    const bool rises = Rises();
    group->calm = rises ? 0 : group->calm + 1;
    // A ball that has swung once and rolls on downhill was not too heavy.
    const bool over = group->moves || (group->calm >= limits_.updates && BestSince(group->worse_since));
    if (over && group->told_momentum) sink.Heal("momentum", NameOf(view, now), step);
    group->told_momentum = group->told_momentum && !over;
    if (group->moves || !(now.momentum >= limits_.momentum) || !rises) {
      group->worse = 0;
      return;
    }
    if (group->worse++ == 0) group->worse_since = step;
    if (group->told_momentum || group->worse < limits_.updates) return;
    group->told_momentum = true;
    Finding finding = FindingAt(kName, "momentum", view, TensorAt{now.tensor, view.index.first_worker()});
    finding.since_step = group->worse_since;
    finding.what = fmt::format("SGD has a momentum of {:g}, and the loss rises again", now.momentum);
    const double sum = now.momentum < 1 ? 1 / (1 - now.momentum) : HUGE_VAL;
    finding.why = fmt::format(
        "each update adds up the gradients of the last {:.3g}, so that weights run past where the loss is "
        "least, "
        "and the rate is that many times what lr says",
        sum);
    finding.remedy = "set the momentum to 0.9 (0.99 at most, with a rate a tenth as high)";
    finding.causes = {"a momentum taken for Adam's second beta", "0.999 in the place of 0.9"};
    finding.evidence = {{"momentum", now.momentum}};
    finding.threshold =
        fmt::format("constant, at least {:g}, and a loss above its best level in {} updates in a row (Luff)",
                    limits_.momentum, limits_.updates);
    sink.Report(std::move(finding));
  }

  static std::string NameOf(const StepView& view, const Now& now) {
    return now.tensor == format::kNoId ? std::string() : view.trial.tensor(now.tensor).name;
  }

  // The loss is above its best level, beyond its noise. Of several losses nothing is said.
  [[nodiscard]] bool Rises() const {
    if (tracker_.series().size() != 1) return false;
    const LossSeries& series = tracker_.series().front().second;
    return series.has_levels() &&
           series.recent() > series.best() + std::max(6 * series.noise(), 0.2 * std::abs(series.best()));
  }

  // The least level of the loss came after `step`.
  [[nodiscard]] bool BestSince(std::int64_t step) const {
    return tracker_.series().size() == 1 && tracker_.series().front().second.best_step() > step;
  }

  const Limits limits_;
  LossTracker tracker_;
  std::map<std::string, Group> groups_;  // by optimizer and group
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<OptimizerSettings>(kName, kParams);
  spec.summary = "settings of an optimizer that cannot be meant: exchanged betas, a momentum next to 1";
  return spec;
}

}  // namespace luff::rules::optimizer_settings
