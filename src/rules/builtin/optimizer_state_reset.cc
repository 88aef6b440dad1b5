#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/builtin/builtin.h"
#include "rules/json_state.h"
#include "rules/model_facts.h"
#include "rules/select.h"

/// OptimizerStateReset: docs/rules/optimizer_state_reset.md.
namespace luff::rules {
namespace {

using Json = nlohmann::json;
using format::EventKind;
using format::Role;
constexpr const char* kName = "OptimizerStateReset";
constexpr const char* kPage = "docs/rules/optimizer_state_reset.md";
constexpr std::size_t kMaxSets = 64;

// An optimizer that has a state (momentum, moments) is replaced by a new one over the same parameters with
// the same settings, again and again. A parameter set is known by the gradients of its updates.
class OptimizerStateReset final : public Rule {
 public:
  explicit OptimizerStateReset(std::int64_t resets) : resets_(resets) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.mode != query::Mode::kTrain) return;
    std::int64_t stepped = -1;
    std::size_t steps = 0;
    for (const query::EventAt& event : view.rows.events) {
      if (static_cast<EventKind>(event.row.kind) != EventKind::kOptimizerStep ||
          event.worker != view.rows.events.front().worker)
        continue;
      stepped = event.row.subject;
      ++steps;
    }
    if (steps != 1) return;  // of several in one step it is not known whose the gradients are
    // Sums of hashes of names do not depend on the order, nor on ids.
    std::uint64_t key = 0;
    for (const auto& entry : view.rows.summaries) {
      const query::TensorInfo& tensor = view.trial.tensor(entry.tensor);
      if (tensor.role == Role::kGradient) key += Hash(tensor.name);
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

  [[nodiscard]] std::string SaveState() const override {
    Json json = Json::array();
    for (const auto& [key, s] : sets_) {
      json.push_back({key, s.optimizer, s.updates, s.resets, s.first_reset, s.turns, s.settings,
                      std::vector<std::int64_t>(s.earlier.begin(), s.earlier.end()), s.fewest, s.most});
    }
    return JsonText(json);
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    return LoadJson(text, [&](const Json& json) {
      for (const Json& one : json) {
        Set& set = sets_[one.at(0).get<std::uint64_t>()];
        set.optimizer = one.at(1);
        set.updates = one.at(2);
        set.resets = one.at(3);
        set.first_reset = one.at(4);
        set.turns = one.at(5);
        set.settings = one.at(6).get<std::map<std::string, double>>();
        for (const Json& number : one.at(7)) set.earlier.insert(number.get<std::int64_t>());
        set.fewest = one.at(8);
        set.most = one.at(9);
      }
    });
  }

 private:
  struct Set {
    std::int64_t optimizer = -1;
    std::int64_t updates = 0;  // of the optimizer that is at work
    std::int64_t resets = 0;   // in a row, by optimizers of the same settings
    std::int64_t first_reset = -1;
    std::int64_t fewest = 0, most = 0;  // updates of those that were replaced
    bool turns = false;
    std::map<std::string, double> settings;  // momentum, betas
    std::set<std::int64_t> earlier;
  };

  static std::uint64_t Hash(std::string_view text) noexcept {
    std::uint64_t hash = 1469598103934665603ULL;  // FNV-1a
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
    return hash ^ (hash >> 29);
  }

  // Of the update's own optimizer: the settings that make a state. Empty: it has none to lose.
  static std::map<std::string, double> StateOf(const StepView& view) {
    std::map<std::string, double> settings;
    std::string newest;
    for (const auto& entry : view.rows.scalars) {
      const query::TensorInfo& tensor = view.trial.tensor(entry.tensor);
      if (tensor.role != Role::kOptimizerSetting || entry.value == 0) continue;
      const std::size_t dot = tensor.name.find(".group");
      if (dot == std::string::npos) continue;
      const std::string setting = tensor.name.substr(dot + 1);
      if (setting.ends_with(".momentum") || setting.ends_with(".beta1") || setting.ends_with(".beta2"))
        settings[setting] = entry.value;
    }
    return settings;
  }

  static void Begin(const StepView& view, Set& set, std::int64_t optimizer) {
    set.optimizer = optimizer;
    set.updates = 1;
    set.settings = StateOf(view);
  }

  void Replaced(const StepView& view, Set& set, std::int64_t optimizer, Sink& sink) {
    const query::StepInfo& info = view.rows.info;
    const std::map<std::string, double> settings = StateOf(view);
    const bool same = !settings.empty() && settings == set.settings && !set.turns;
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
    if (set.earlier.size() < 1024) set.earlier.insert(set.optimizer);
    set.optimizer = optimizer;
    set.updates = 1;
    // Restarts that are meant come a few times; at equal distances of any length they are the loop's.
    if (set.resets < resets_ || set.most > 2 * set.fewest + 2) return;
    Finding finding = FindingAt(kName, kPage, "made_anew", view.trial, format::kNoId, 0, info);
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
    finding.evidence = {{"times", static_cast<double>(set.resets)},
                        {"updates_between", static_cast<double>(set.most)}};
    finding.threshold = fmt::format("{} times in a row with the same settings (Luff)", resets_);
    sink.Report(std::move(finding));
  }

  const std::int64_t resets_;
  std::map<std::uint64_t, Set> sets_;
};

}  // namespace

RuleSpec OptimizerStateResetSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.version = 1;
  spec.page = kPage;
  spec.summary = "an optimizer that is made anew again and again, and loses its state";
  spec.parameters = {
      {"resets", "3", "3", "times in a row that a new optimizer takes over the same parameters"}};
  spec.needs = [](const Parameters&) {
    Need need;
    need.collection = "gradients";
    need.roles = {Role::kGradient};
    need.forms = Bit(format::Form::kSummary);
    return std::vector<Need>{need};
  };
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    LUFF_ASSIGN_OR_RETURN(const std::int64_t resets, ParseInt(TextOf(parameters, "resets")));
    if (resets < 1) return InvalidArgument("'resets' must be at least 1");
    return std::unique_ptr<Rule>(new OptimizerStateReset(resets));
  };
  return spec;
}

}  // namespace luff::rules
