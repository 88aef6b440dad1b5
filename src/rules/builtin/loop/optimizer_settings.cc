#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/facts/json_event.h"
#include "rules/facts/loss_tracker.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
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
  double beta1 = -1, beta2 = -1, momentum = -1, lr = -1;
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

constexpr double kUsualRate = 0.1;

bool IsUsualMomentum(double value) noexcept {
  for (const double usual : {0.8, 0.85, 0.9, 0.95, 0.98, 0.99})
    if (std::abs(value - usual) < 1e-9) return true;
  return false;
}

// The setting of torch's optimizers that a name stands for, without case, '_' and '-'; "" for other names.
std::string_view MeantBy(std::string_view name) {
  std::string plain;
  for (const char letter : Lower(name))
    if (letter != '_' && letter != '-' && letter != ' ') plain.push_back(letter);
  if (name == "lr" || name == "weight_decay" || name == "momentum" || name == "eps") return {};
  if (plain == "lr" || plain == "learningrate" || plain == "learnrate" || plain == "lrate") return "lr";
  if (plain == "wd" || plain == "weightdecay" || plain == "weigthdecay" || plain == "wieghtdecay" ||
      plain == "weightdecy")
    return "weight_decay";
  if (plain == "epsilon") return "eps";
  return plain == "momentum" ? "momentum" : "";
}

class OptimizerSettings final : public KeptRule {
 public:
  explicit OptimizerSettings(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.mode != query::Mode::kTrain || view.rows.info.superseded) return;
    tracker_.OnStep(view);
    for (const auto& event : view.index.json_events("rounding")) Decays(view, *event, sink);
    if (view.index.events(format::EventKind::kOptimizerStep).empty()) return;
    for (const auto& [name, now] : SettingsOf(view)) {
      if (groups_.size() >= kMaxGroups && !groups_.contains(name)) continue;
      Group& group = groups_[name];
      const std::string optimizer = Lower(name);
      // The second of Adamax decays a largest value, not a mean of squares.
      if (optimizer.find("adam") != std::string::npos && optimizer.find("adamax") == std::string::npos)
        Betas(view, now, &group, sink);
      if (optimizer.find("sgd") != std::string::npos) {
        Momentum(view, now, &group, sink);
        Exchanged(view, now, &group, sink);
      }
    }
    if (updates_ < limits_.updates && ++updates_ == limits_.updates) Unread(view, sink);
  }

  void VisitFields(Fields& io) override {
    io("groups", groups_, kMaxGroups);
    io("losses", tracker_);
    io("updates", updates_);
    io("decays", decays_, kMaxGroups);
  }

 private:
  struct Group {
    std::int64_t exchanged = 0, since = -1;  // updates in a row, and the step of the first
    double momentum = -1;                    // of the first update; below 0: none yet
    bool moves = false;                      // it has changed since: a schedule
    std::int64_t worse = 0, worse_since = -1;
    std::int64_t calm = 0;     // updates in a row in which the loss did not rise
    std::int64_t swapped = 0;  // updates in a row whose rate and momentum look exchanged
    bool told_betas = false, told_momentum = false, told_swapped = false;
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
      io("swapped", swapped);
      io("told_swapped", told_swapped);
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
      if (what != "beta1" && what != "beta2" && what != "momentum" && what != "lr") continue;
      Now& now = found[tensor.name.substr(kPrefix.size(), dot - kPrefix.size())];
      if (what == "lr") {
        now.lr = entry.value;
        continue;
      }
      if (what == "beta2") {
        now.beta2 = entry.value;
        continue;
      }
      (what == "beta1" ? now.beta1 : now.momentum) = entry.value;
      now.tensor = entry.tensor;
    }
    return found;
  }

  // What an optimizer does to weights without a gradient, at one look after another: it takes the same number
  // off all of them, or makes them grow. By its rate, since that may follow a schedule.
  struct Decay {
    double shift = 0, growth = 0;
    bool told = false;
    void VisitFields(Fields& io) {
      io("shift", shift);
      io("growth", growth);
      io("told", told);
    }
  };

  void Decays(const StepView& view, const nlohmann::json& event, Sink& sink) {
    const double number = NumberIn(event, "optimizer"), lr = NumberIn(event, "lr");
    if (!(number >= 0) || number >= static_cast<double>(kMaxGroups)) return;
    Decay& last = decays_[static_cast<std::int64_t>(number)];
    const double rate = lr > 0 ? lr : 1;
    double shift = 0, growth = 0;
    std::string name;
    for (const nlohmann::json& parameter : ListIn(event, "parameters")) {
      if (!parameter.is_object()) continue;
      const auto named = parameter.find("name");
      const double by = NumberIn(parameter, "shift"), grown = NumberIn(parameter, "growth");
      if (!(std::abs(by) > 0) && !(grown > 0)) continue;
      shift = std::abs(by) > 0 ? by / rate : 0, growth = grown > 0 ? grown / rate : 0;
      if (named != parameter.end() && named->is_string()) name = named->get<std::string>();
      break;
    }
    const bool shifts = shift != 0 && IsNear(shift, last.shift);
    const bool grows = shift == 0 && growth > 0 && IsNear(growth, last.growth);
    last.shift = shift, last.growth = growth;
    if (last.told || (!shifts && !grows)) return;
    last.told = true;
    Finding finding =
        FindingAt(kName, shifts ? "constant_decay" : "growing_decay", view, TensorAt{format::kNoId});
    finding.tensor = name;
    finding.since_step = 0;
    const std::string of = name.empty() ? std::string("weights") : "weights of " + name;
    if (shifts) {
      finding.what =
          fmt::format("{} whose gradient is zero all move by {:g} in each update", of, shift * rate);
      finding.why =
          "without a gradient there is only the decay, which is to be a share of the weight: this one is the "
          "same number for weights above and below zero, however large they are, so that all of them drift "
          "to "
          "one side";
      finding.remedy =
          "let the decay multiply the weight: p.mul_(1 - lr * weight_decay), or grad.add(p, "
          "alpha=weight_decay) "
          "in the place of add(weight_decay)";
      finding.causes = {"a decay without the weight: add_(weight_decay, alpha=-lr)"};
      finding.evidence = {{"move", shift * rate}, {"learning_rate", lr}};
    } else {
      finding.what =
          fmt::format("{} whose gradient is zero grow by a share of {:g} in each update", of, growth * rate);
      finding.why =
          "without a gradient there is only the decay, which is to make weights smaller: this one drives "
          "them "
          "away from zero, ever faster";
      finding.remedy =
          "turn the sign of the decay round: p.mul_(1 - lr * weight_decay), grad + weight_decay * p; of a "
          "negative weight_decay, or a negative rate, the sign";
      finding.causes = {"a plus in the place of a minus in an optimizer of one's own",
                        "a negative weight_decay or learning rate"};
      finding.evidence = {{"growth", growth * rate}, {"learning_rate", lr}};
    }
    finding.threshold =
        "a fact of the weights without a gradient, to rounding, by the same part of the rate in two looks "
        "(Luff)";
    sink.Report(std::move(finding));
  }

  static bool IsNear(double now, double before) { return std::abs(now - before) <= 0.02 * std::abs(now); }

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

  // SGD(parameters, 0.9, 0.01): the second argument is the rate, the third the momentum.
  void Exchanged(const StepView& view, const Now& now, Group* group, Sink& sink) const {
    const bool looks = IsUsualMomentum(now.lr) && now.momentum > 0 && now.momentum <= kUsualRate;
    if (!looks) {
      if (group->told_swapped) sink.Heal("exchanged", NameOf(view, now), view.rows.info.mode_step);
      group->told_swapped = false;
      group->swapped = 0;
      return;
    }
    if (group->told_swapped || ++group->swapped < limits_.updates) return;
    group->told_swapped = true;
    Finding finding = FindingAt(kName, "exchanged", view, TensorAt{now.tensor, view.index.first_worker()});
    finding.since_step = 0;
    finding.what =
        fmt::format("SGD has a learning rate of {:g} and a momentum of {:g}", now.lr, now.momentum);
    finding.why =
        "each is a usual value of the other: the second argument of SGD is the rate, the third the momentum";
    finding.remedy = fmt::format("exchange them: lr={:g}, momentum={:g}", now.momentum, now.lr);
    finding.causes = {"positional arguments in the wrong order"};
    finding.evidence = {{"learning_rate", now.lr}, {"momentum", now.momentum}};
    finding.threshold = fmt::format(
        "a rate of 0.8, 0.85, 0.9, 0.95, 0.98 or 0.99 and a momentum of {:g} at most, {} updates (Luff)",
        kUsualRate, limits_.updates);
    sink.Report(std::move(finding));
  }

  // A group that was given a setting under a name that its optimizer does not read, and has the default
  // instead.
  static void Unread(const StepView& view, Sink& sink) {
    for (const OptimizerFacts& optimizer : view.memo.Facts(view).optimizers()) {
      for (std::size_t number = 0; number < optimizer.groups.size(); ++number) {
        const std::map<std::string, double>& group = optimizer.groups[number];
        for (const auto& [key, value] : group) {
          const std::string_view meant = MeantBy(key);
          const auto setting = group.find(std::string(meant));
          const auto preset = optimizer.defaults.find(std::string(meant));
          if (meant.empty() || optimizer.defaults.contains(key) || setting == group.end() ||
              preset == optimizer.defaults.end())
            continue;
          // A schedule keeps what the rate was at first; a program that works rates out from its own key sets
          // them.
          const auto initial = group.find("initial_lr");
          const bool scheduled = meant == "lr" && initial != group.end();
          const double now = scheduled ? initial->second : setting->second;
          if (now != preset->second || now == value) continue;
          const std::string name = fmt::format("optimizer/{}.group{}.{}", optimizer.name, number, meant);
          if (!scheduled && Moves(view, name, now)) continue;
          Finding finding = FindingAt(kName, "unread", view, TensorAt{format::kNoId});
          finding.tensor = name;
          finding.since_step = 0;
          finding.what = fmt::format("{} does not read '{}' of group {}: its {} is {:g} and not {:g}",
                                     optimizer.type, key, number, meant, now, value);
          finding.why = fmt::format(
              "torch takes any name in a group of parameters and reads its own only; '{}' is none of them, "
              "and the group "
              "has what the optimizer was made with",
              key);
          finding.remedy = fmt::format("write '{}': {:g} in the group", meant, value);
          finding.causes = {"a setting under the name that another framework gives it", "a misspelt name"};
          finding.evidence = {{"given", value}, {"used", now}};
          finding.threshold = "a fact (Luff)";
          sink.Report(std::move(finding));
          return;
        }
      }
    }
  }

  // The setting is another one in this step than `described`: the description is older than the program's own
  // schedule.
  static bool Moves(const StepView& view, const std::string& setting, double described) {
    for (const auto& [entry, tensor] : view.index.scalars(format::Role::kOptimizerSetting))
      if (tensor.name == setting && entry.value != described) return true;
    return false;
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
  std::int64_t updates_ = 0;              // until settings that are not read are looked for
  std::map<std::string, Group> groups_;   // by optimizer and group
  std::map<std::int64_t, Decay> decays_;  // by optimizer
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<OptimizerSettings>(kName, kParams);
  spec.version = 3;  // 2: "exchanged", "unread"; 3: "constant_decay", "growing_decay"
  spec.summary =
      "settings of an optimizer that cannot be meant, or that it does not read: exchanged betas, a momentum "
      "next to 1, a decay that is no share of the weight";
  return spec;
}

}  // namespace luff::rules::optimizer_settings
