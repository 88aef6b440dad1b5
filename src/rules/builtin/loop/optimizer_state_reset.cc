#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/training_call.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// OptimizerStateReset: docs/rules/optimizer_state_reset.md.
namespace luff::rules::optimizer_state_reset {
namespace {

using format::EventKind;
using format::Role;
constexpr const char* kName = "OptimizerStateReset";
constexpr std::size_t kMaxSets = 64;
constexpr std::size_t kMaxEarlier = 1024;  // optimizers of one set

// Optimizers that keep a sum of squared gradients whatever their settings are (torch.optim).
constexpr std::string_view kAlwaysWithState[] = {"Adagrad", "RMSprop", "Adadelta", "Rprop", "Adafactor"};

struct Limits {
  std::int64_t resets;
};
constexpr Param<Limits> kParams[] = {{&Limits::resets, "resets", "3",
                                      "times in a row that a new optimizer takes over the same parameters",
                                      AtLeast(1)}};

// An optimizer with a state (momentum, moments) is replaced by a new one over the same parameters with the
// same settings, again and again. The names of the gradients of an update identify its parameters.
class OptimizerStateReset final : public KeptRule {
 public:
  explicit OptimizerStateReset(const Limits& limits) : resets_(limits.resets) {}

  void OnStep(const StepView& view, Sink& sink) override {
    loaded_ = loaded_ || LoadsWeights(view.index);
    if (view.rows.info.mode != query::Mode::kTrain) return;
    for (const TrainingCall& call : TrainingCallsOf(view.index, "state_dropped"))
      TellCall(view, call, false, sink);
    for (const TrainingCall& call : TrainingCallsOf(view.index, "state_anew"))
      TellCall(view, call, true, sink);
    std::int64_t stepped = -1;
    std::size_t steps = 0;
    for (const query::EventAt& event : view.index.events(EventKind::kOptimizerStep)) {
      if (event.worker != view.index.first_worker()) continue;
      stepped = event.row.subject;
      ++steps;
    }
    if (steps != 1) return;  // with several, it is unknown whose gradients these are
    // Sums of name hashes depend neither on the order nor on ids.
    std::uint64_t key = 0;
    for (const auto& [entry, tensor] : view.index.summaries(Role::kGradient)) {
      key += Hash(tensor.name);
    }
    if (key == 0) return;
    key &= (1ULL << 52) - 1;
    const auto it = sets_.find(key);
    if (it == sets_.end()) {
      if (sets_.size() < kMaxSets) Begin(view, sets_[key], stepped);
      return;
    }
    Set& set = it->second;
    if (set.optimizer == stepped) {
      ++set.updates;
      return;
    }
    if (set.earlier.contains(stepped)) {  // they take turns
      set.turns = true;
      return;
    }
    Replaced(view, set, stepped, sink);
  }

  void VisitFields(Fields& io) override {
    io("sets", sets_, kMaxSets);
    io("loaded", loaded_);
  }

 private:
  struct Set {
    std::int64_t optimizer = -1;
    std::int64_t updates = 0;  // of the current optimizer
    std::int64_t resets = 0;   // in a row, by optimizers with the same settings
    std::int64_t first_reset = -1;
    std::int64_t fewest = 0, most = 0;  // updates of the optimizers that were replaced
    bool turns = false;
    std::map<std::string, double> settings;  // momentum, betas
    std::set<std::int64_t> earlier;
    void VisitFields(Fields& io) {
      io("optimizer", optimizer);
      io("updates", updates);
      io("resets", resets);
      io("first_reset", first_reset);
      io("fewest", fewest);
      io("most", most);
      io("turns", turns);
      io("settings", settings);
      io("earlier", earlier, kMaxEarlier);
    }
  };

  static std::uint64_t Hash(std::string_view text) noexcept {
    std::uint64_t hash = 1469598103934665603ULL;  // FNV-1a
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
    return hash ^ (hash >> 29);
  }

  // Settings of this step that give an optimizer a state. Empty if there is no state to lose.
  static std::map<std::string, double> StateOf(const StepView& view) {
    std::map<std::string, double> settings;
    std::string newest;
    for (const auto& [entry, tensor] : view.index.scalars(Role::kOptimizerSetting)) {
      if (entry.value == 0) continue;
      const std::size_t dot = tensor.name.find(".group");
      if (dot == std::string::npos) continue;
      const std::string setting = tensor.name.substr(dot + 1);
      for (const std::string_view type : kAlwaysWithState) {
        if (setting.ends_with(".lr") && tensor.name.starts_with(fmt::format("optimizer/{}", type)))
          settings["state"] = 1;
      }
      if (setting.ends_with(".momentum") || setting.ends_with(".beta1") || setting.ends_with(".beta2"))
        settings[setting] = entry.value;
    }
    return settings;
  }

  // A function that trains begins each call with the state of the start, though its parameters go on.
  static void TellCall(const StepView& view, const TrainingCall& call, bool inside, Sink& sink) {
    const char* cause = inside ? "made_anew" : "state_dropped";
    if (call.over) return sink.Heal(cause, call.function, view.rows.info.mode_step);
    Finding finding = FindingAt(kName, cause, view, TensorAt{format::kNoId});
    finding.tensor = call.function;
    finding.since_step = 0;
    finding.what = inside ? fmt::format("{} makes the optimizer's state anew in each call", call.function)
                          : fmt::format("the optimizer's state that {} returns is dropped", call.function);
    finding.why = fmt::format(
        "{}; each update is a first one, without momentum and moments: Adam then moves every weight by about "
        "the "
        "rate, whatever its gradient is",
        inside ? fmt::format(
                     "the state that comes back has counted one update, after {} calls as after the first",
                     call.calls)
               : fmt::format("all of its {} calls were given the same state, while the parameters go on",
                             call.calls));
    finding.remedy =
        inside ? "call init() of the optimizer once, before the loop, and pass the state from call to call"
               : "give each call the state that the last one returned: params, state, ... = step(params, "
                 "state, ...)";
    finding.causes = {inside ? "init() of the optimizer inside of the function that trains"
                             : "the returned state has another name than the argument, or is not used"};
    finding.evidence = {{"calls", call.calls}};
    finding.threshold = fmt::format("a fact of {} calls (Luff)", call.calls);
    sink.Report(std::move(finding));
  }

  void Begin(const StepView& view, Set& set, std::int64_t optimizer) {
    loaded_ = false;
    set.optimizer = optimizer;
    set.updates = 1;
    set.settings = StateOf(view);
  }

  void Replaced(const StepView& view, Set& set, std::int64_t optimizer, Sink& sink) {
    const query::StepInfo& info = view.rows.info;
    const std::map<std::string, double> settings = StateOf(view);
    // Weights were loaded since the last one: another fold begins, or a stage of its own.
    const bool other = std::exchange(loaded_, false);
    const bool same = !settings.empty() && settings == set.settings && !set.turns && !other;
    if (!same) {
      set.resets = 0;
      set.settings = settings;
    } else {
      if (set.resets++ == 0) {
        set.first_reset = info.mode_step;
        set.fewest = set.most = set.updates;
      }
      set.fewest = std::min(set.fewest, set.updates);
      set.most = std::max(set.most, set.updates);
    }
    if (set.earlier.size() < kMaxEarlier) set.earlier.insert(set.optimizer);
    set.optimizer = optimizer;
    set.updates = 1;
    // Intended restarts come only a few times, and those of stages (rounds of pruning) at distances of their
    // own. Restarts at equal distances, of any length, come from the loop.
    if (set.resets < resets_ || set.most > set.fewest + set.fewest / 4 + 2) return;
    Finding finding = FindingAt(kName, "made_anew", view, TensorAt{format::kNoId});
    finding.since_step = set.first_reset;
    finding.what =
        fmt::format("the optimizer was made anew {} times over the same parameters, after every {} update{}",
                    set.resets, set.most, set.most == 1 ? "" : "s");
    finding.why =
        "each new optimizer begins without momentum and moments, so what the last one had learnt of the "
        "gradients is lost";
    finding.remedy =
        "make the optimizer once, before the loop; to change the learning rate set "
        "optimizer.param_groups[i]['lr'] or use a scheduler";
    finding.causes = {"the optimizer is made inside the loop over epochs or batches",
                      "it is made anew to change the learning rate"};
    finding.evidence = {{"times", set.resets}, {"updates_between", set.most}};
    finding.threshold = fmt::format("{} times in a row with the same settings (Luff)", resets_);
    sink.Report(std::move(finding));
  }

  const std::int64_t resets_;
  std::map<std::uint64_t, Set> sets_;
  bool loaded_ = false;  // weights, since an optimizer began
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<OptimizerStateReset>(kName, kParams);
  spec.version = 4;  // 2: of a function that trains; 3: weights that are loaded between; 4: stages
  spec.summary = "an optimizer that is made anew again and again, and loses its state";
  spec.needs = [](const Parameters&) -> std::vector<Need> {
    return {{.collection = "gradients", .roles = {Role::kGradient}, .forms = Bit(format::Form::kSummary)}};
  };
  return spec;
}

}  // namespace luff::rules::optimizer_state_reset
