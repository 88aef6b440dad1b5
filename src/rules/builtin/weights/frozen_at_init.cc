#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// FrozenAtInit: docs/rules/frozen_at_init.md.
namespace luff::rules::frozen_at_init {
namespace {

using format::EventKind;
constexpr const char* kName = "FrozenAtInit";
constexpr std::size_t kMaxLoads = 64;

struct Limits {
  std::int64_t updates;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::updates, "updates", "3", "updates by any optimizer after the file was loaded", AtLeast(1)},
};

// True if the names mean the same weight, as "encoder.0.weight" and "module.encoder.0.weight" do in either
// order.
bool SamePlace(const std::string& a, const std::string& b) {
  const std::string& longer = a.size() >= b.size() ? a : b;
  const std::string& shorter = a.size() >= b.size() ? b : a;
  return shorter.find('.') != std::string::npos && longer.size() > shorter.size() &&
         longer.ends_with("." + shorter);
}

// Reports frozen weights that a file should have given and did not, so that they keep their initial random
// values.
class FrozenAtInit final : public KeptRule {
 public:
  explicit FrozenAtInit(const Limits& limits) : updates_(limits.updates) {}

  void OnStep(const StepView& view, Sink& sink) override {
    for (const LoadFacts& load : LoadsOf(view.index)) Take(load);
    if (view.rows.info.mode != query::Mode::kTrain || loads_.empty()) return;
    bool due = false;
    for (std::size_t left = view.index.events(EventKind::kOptimizerStep).size(); left > 0; --left) {
      ++total_;
      due = due || (total_ >= updates_ && ((total_ & (total_ - 1)) == 0 || total_ == updates_));
    }
    if (due) Judge(view, sink);
  }

  void VisitFields(Fields& io) override {
    io("total", total_);
    io("loads", loads_, kMaxLoads);
  }

 private:
  struct Load {
    std::int64_t matched = 0;
    std::set<std::string> missing;
    std::vector<std::string> unexpected;
    std::string open;  // tensor of the open finding
    void VisitFields(Fields& io) {
      io("matched", matched);
      io("missing", missing);
      io("unexpected", unexpected);
      io("open", open);
    }
  };

  // A second file for the same type of model, or the same one with other names, may give what was missing.
  void Take(const LoadFacts& facts) {
    const auto it = loads_.find(facts.model);
    if (it == loads_.end()) {
      if (facts.missing.empty() || loads_.size() >= kMaxLoads) return;
      loads_[facts.model] = {
          facts.matched, {facts.missing.begin(), facts.missing.end()}, facts.unexpected, ""};
      return;
    }
    Load& load = it->second;
    std::set<std::string> both;
    for (const std::string& name : facts.missing) {
      if (load.missing.contains(name)) both.insert(name);
    }
    // The list of missing names is cut off: names that are not on it may still be missing.
    if (facts.missing_count > static_cast<std::int64_t>(facts.missing.size()) && facts.matched == 0)
      both = load.missing;
    load.missing = std::move(both);
    load.matched += facts.matched;
    load.unexpected = facts.unexpected;
  }

  void Judge(const StepView& view, Sink& sink) {
    const ModelFacts& facts = view.memo.Facts(view);
    std::map<std::string, std::vector<std::string>> still;  // by type of the model that was loaded
    std::map<std::string, std::size_t> frozen;
    for (const auto& [name, parameter] : facts.parameters()) {
      if (parameter.requires_grad || parameter.elements < 2) continue;
      for (const auto& [type, load] : loads_) {
        for (const auto& [path, module_type] : facts.ModuleTypes(parameter.model)) {
          if (module_type != type || (!path.empty() && !parameter.path.starts_with(path + "."))) continue;
          ++frozen[type];
          if (load.missing.contains(parameter.path.substr(path.empty() ? 0 : path.size() + 1)))
            still[type].push_back(name);
          break;
        }
      }
    }
    for (auto& [type, load] : loads_) {
      const std::vector<std::string>& names = still[type];
      // A file that lacks a few frozen weights may be intended (fixed random features). One that gives none
      // of them, or holds them under other names, is not.
      const bool renamed =
          std::any_of(load.unexpected.begin(), load.unexpected.end(), [&](const std::string& other) {
            return std::any_of(load.missing.begin(), load.missing.end(),
                               [&](const std::string& name) { return SamePlace(name, other); });
          });
      if (names.empty() || !(load.matched == 0 || renamed || names.size() == frozen[type])) {
        if (!load.open.empty()) sink.Heal("not_loaded", load.open, view.rows.info.mode_step);
        load.open.clear();
        continue;
      }
      if (load.open.empty()) load.open = names.front();
      Tell(view, type, load, names, renamed, sink);
    }
  }

  void Tell(const StepView& view, const std::string& type, const Load& load,
            const std::vector<std::string>& names, bool renamed, Sink& sink) const {
    Finding finding = FindingAt(kName, "not_loaded", view, TensorAt{format::kNoId});
    finding.severity = Severity::kStop;
    finding.since_step = 0;
    finding.tensor = load.open;
    for (const std::string& name : names) {
      if (name != load.open) finding.other_tensors.push_back(name);
    }
    finding.what = fmt::format(
        "{} frozen parameter{} of {} were not in the file that was loaded, and stay as they were "
        "drawn at random",
        names.size(), names.size() == 1 ? "" : "s", type);
    finding.why =
        renamed && !load.unexpected.empty()
            ? fmt::format("the file names them otherwise, e.g. {}; with strict=False this goes unnoticed",
                          load.unexpected.front())
            : "load_state_dict left them out, and with strict=False this goes unnoticed";
    finding.remedy =
        "load with strict=True, or look at missing_keys of what load_state_dict returns; strip the prefix of "
        "the file's "
        "names (\"module.\", \"model.\")";
    finding.causes = {"a prefix in the file's names", "another model's file",
                      "load_state_dict(strict=False)"};
    finding.evidence = {{"parameters", names.size()}, {"loaded", load.matched}};
    finding.threshold = fmt::format("a fact, judged after {} updates (Luff)", updates_);
    sink.Report(std::move(finding));
  }

  const std::int64_t updates_;
  std::int64_t total_ = 0;
  std::map<std::string, Load> loads_;  // by type of the model
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<FrozenAtInit>(kName, kParams);
  spec.summary = "frozen weights that a file was to give and did not";
  return spec;
}

}  // namespace luff::rules::frozen_at_init
