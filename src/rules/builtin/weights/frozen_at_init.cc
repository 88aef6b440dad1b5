#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/initial_values.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/restored_state.h"
#include "rules/facts/set_backs.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// FrozenAtInit: docs/rules/frozen_at_init.md.
namespace luff::rules::frozen_at_init {
namespace {

using format::EventKind;
constexpr const char* kName = "FrozenAtInit";
constexpr const char* kWithoutEffect = "freeze_without_effect";
constexpr std::size_t kMaxLoads = 64;
constexpr std::int64_t kUnloaded = 16;  // updates after which nothing is loaded any more
constexpr std::size_t kLayers =
    3;  // frozen weights as drawn: fewer may be features that are random on purpose

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

// Reports weights that are frozen although nothing was loaded, and frozen weights that a file should have
// given and did not, so that they keep their initial random values.
class FrozenAtInit final : public KeptRule {
 public:
  explicit FrozenAtInit(const Limits& limits) : updates_(limits.updates) {}

  void OnStep(const StepView& view, Sink& sink) override {
    restored_.OnStep(view);
    for (const LoadFacts& load : LoadsOf(view.index)) {
      if (!load.gives_nothing()) Take(load);
      if (load.gives_nothing() && all_ > 0) TellItself(view, load, sink);
    }
    loaded_ = loaded_ || LoadsWeights(view.index);
    if (view.rows.info.mode != query::Mode::kTrain) return;
    last_.Take(view.rows.info);
    LookForSetBacks(view, sink);
    std::set<std::string> learning;
    for (const auto& [entry, tensor] : view.index.summaries(format::Role::kGradient))
      if (entry.summary.l2() > 0 && learning.size() < kMaxDrawn)
        learning.insert(ParameterOfGradient(tensor.name));
    if (!learning.empty()) learning_ = std::move(learning);
    if (!loaded_ && all_ < kUnloaded) LookForDrawn(view);
    const std::size_t updates = view.index.events(EventKind::kOptimizerStep).size();
    if (all_ < kUnloaded && (all_ += static_cast<std::int64_t>(updates)) >= kUnloaded) {
      if (!loaded_) JudgeUnloaded(view, sink);
      TellWithoutEffect(view.memo.Facts(view),
                        FindingAt(kName, kWithoutEffect, view, TensorAt{format::kNoId}), sink);
      drawn_.clear();
    }
    if (loads_.empty()) return;
    bool due = false;
    for (std::size_t left = updates; left > 0; --left) {
      ++total_;
      due = due || (total_ >= updates_ && ((total_ & (total_ - 1)) == 0 || total_ == updates_));
    }
    if (due) Judge(view, sink);
  }
  void OnEnd(const query::Trial& trial, Sink& sink) override {
    if (const auto found = restored_.OnEnd(trial)) TellRestored(trial, *found, sink);
    if (all_ >= kUnloaded && !told_without_effect_)
      TellWithoutEffect(ModelFacts::Of(trial),
                        FindingAt(kName, kWithoutEffect, trial, format::kNoId, 0, last_.Info()), sink);
  }

  void VisitFields(Fields& io) override {
    io("total", total_);
    io("loads", loads_, kMaxLoads);
    io("all", all_);
    io("loaded", loaded_);
    io("drawn", drawn_, kMaxDrawn);
    io("restored", restored_);
    io("last", last_);
    io("told_without_effect", told_without_effect_);
    io("learning", learning_, kMaxDrawn);
    io("set_backs", set_backs_);
    io("set_back_open", set_back_open_);
  }

 private:
  static constexpr std::size_t kMaxDrawn = 4096;

  // torch takes any attribute of a module or a parameter, and reads requires_grad of parameters only.
  void TellWithoutEffect(const ModelFacts& facts, Finding finding, Sink& sink) {
    std::string place;  // what was set
    std::vector<std::string> trained;
    for (const ModuleFacts& module : facts.modules()) {
      const auto flag = std::find_if(module.numbers.begin(), module.numbers.end(), [](const auto& one) {
        return one.second == 0 && LooksLikeRequiresGrad(one.first);
      });
      if (flag == module.numbers.end()) continue;
      std::vector<std::string> own;
      const bool all =
          std::all_of(facts.parameters().begin(), facts.parameters().end(), [&](const auto& entry) {
            const ParameterFacts& one = entry.second;
            if (one.model != module.model ||
                (!module.path.empty() && !one.path.starts_with(module.path + ".")))
              return true;
            own.push_back(entry.first);
            return one.requires_grad && !one.optimizer.empty();
          });
      // A flag of the module's own, which it heeds: it may compute without gradients.
      const bool learns = std::any_of(own.begin(), own.end(),
                                      [&](const std::string& name) { return learning_.contains(name); });
      if (!all || !learns || !place.empty()) continue;
      place =
          fmt::format("{}{}{}.{}", module.model, module.path.empty() ? "" : ".", module.path, flag->first);
      trained = std::move(own);
    }
    for (const auto& [name, one] : facts.parameters()) {
      if (one.misspelt.empty() || !one.requires_grad || one.optimizer.empty()) continue;
      if (place.empty()) place = fmt::format("{}.{}", name, one.misspelt);
      if (std::find(trained.begin(), trained.end(), name) == trained.end()) trained.push_back(name);
    }
    if (place.empty() || trained.empty()) return;
    told_without_effect_ = true;
    finding.severity = Severity::kWarn;
    finding.since_step = 0;
    finding.tensor = trained.front();
    finding.other_tensors.assign(trained.begin() + 1, trained.end());
    finding.what = fmt::format("{} = False freezes nothing: {} parameter{} still trained", place,
                               trained.size(), trained.size() == 1 ? " is" : "s are");
    finding.why =
        "torch takes any attribute and reads none but requires_grad of each parameter: these require "
        "gradients, and an "
        "optimizer holds them";
    finding.remedy =
        "freeze with module.requires_grad_(False), which sets requires_grad of each parameter, or with "
        "parameter.requires_grad = False in a loop over module.parameters()";
    finding.causes = {"requires_grad set on a module instead of its parameters", "requires_grad misspelt"};
    finding.evidence = {{"parameters", trained.size()}};
    finding.threshold = fmt::format("a fact, told after {} updates (Luff)", kUnloaded);
    sink.Report(std::move(finding));
  }

  // Weights that every pass over the data begins with anew.
  void LookForSetBacks(const StepView& view, Sink& sink) {
    set_backs_.OnTrainStep(view);
    if (set_back_open_ && set_backs_.over()) {
      set_back_open_ = false;
      sink.Heal("set_back", "", view.rows.info.mode_step);
    }
    const auto found = set_backs_.Judge(view);
    if (!found) return;
    set_back_open_ = true;
    Finding finding = FindingAt(kName, "set_back", view, TensorAt{format::kNoId});
    finding.since_step = 0;
    finding.what =
        fmt::format("each pass over the data begins with {}: what the pass before has learnt is lost",
                    found->drawn ? "weights that are drawn anew" : "the weights of the start");
    finding.why = fmt::format(
        "{} times, each {} updates behind the last, the optimizer found weights that {}: one pass over the "
        "data lies between",
        found->times, found->updates,
        found->drawn
            ? "are as wide as those it began with, and have nothing to do with them or with those of "
              "the time before"
            : "were, to the last bit, those of before its first update");
    finding.remedy = found->drawn
                         ? "initialise the weights once, before the loop over epochs (reset_parameters(), "
                           "model.apply(init), a function that resets the model)"
                         : "load the state once, before the loop over epochs; if it is to be the newest one, "
                           "save it again "
                           "behind each epoch (copy.deepcopy(model.state_dict()))";
    finding.causes = {found->drawn
                          ? "an initialisation inside of the loop over epochs"
                          : "load_state_dict inside of the loop over epochs, of a state that is never "
                            "saved again",
                      "a helper that sets the model up for each epoch"};
    finding.evidence = {{"times", found->times}, {"updates", found->updates}};
    finding.threshold =
        "a fact: three times, as many updates and one pass over the data between each two (Luff)";
    sink.Report(std::move(finding));
  }

  // A state that was kept for later, or is to fill another model, and is the model's own weights. Before the
  // first update nothing was kept yet.
  static void TellItself(const StepView& view, const LoadFacts& load, Sink& sink) {
    Finding finding = FindingAt(kName, "loads_itself", view, TensorAt{format::kNoId});
    finding.what = fmt::format("load_state_dict gave {} its own weights, and changed nothing", load.model);
    finding.why = fmt::format(
        "all {} tensors of the state that was loaded lie where the model's own lie: state_dict() returns the "
        "weights "
        "themselves, which the training has gone on changing, and no copy of them",
        load.matched);
    finding.remedy =
        "keep a copy: copy.deepcopy(model.state_dict()), or torch.save to a file; if this was to fill "
        "another "
        "model (a target network), that one must be a copy.deepcopy of the first";
    finding.causes = {"the best weights were kept without a copy, and are the newest ones",
                      "two names for one model"};
    finding.evidence = {{"tensors", load.matched}};
    finding.threshold = "a fact: all tensors share their memory (Luff)";
    sink.Report(std::move(finding));
  }

  // A state that was kept as the best one.
  static void TellRestored(const query::Trial& trial, const RestoredState::Found& found, Sink& sink) {
    Finding finding = FindingAt(kName, "restores_worst", trial, format::kNoId, 0, found.at.Info());
    finding.since_step = found.step;
    finding.series = found.curve;
    finding.what = fmt::format("the weights that the training ends with are the worst of {} evaluations",
                               found.evaluations);
    std::string measures;
    if (found.loss && found.best_loss)
      measures = fmt::format("a loss of {:.4g}, {:.4g} at best", *found.loss, *found.best_loss);
    if (found.right && found.best_right)
      measures += fmt::format("{}{:.1f} % right, {:.1f} % at best", measures.empty() ? "" : "; ",
                              100 * *found.right, 100 * *found.best_right);
    finding.why = fmt::format(
        "after the last update a state was brought back whose outputs are, to the last bit, those of the "
        "evaluation after step {}: {}",
        found.step, measures);
    finding.remedy =
        "turn the comparison round that keeps the best state: keep it where the loss is smaller than the "
        "best "
        "so "
        "far (which begins at infinity), or where the score is larger";
    finding.causes = {"a comparison of the wrong direction", "a best value that begins at the wrong end",
                      "the first state was kept, and never another"};
    finding.evidence = {{"evaluations", found.evaluations}, {"kept_at", found.step}};
    if (found.loss && found.best_loss) {
      finding.evidence.push_back({"loss", *found.loss});
      finding.evidence.push_back({"best_loss", *found.best_loss});
    }
    finding.threshold = fmt::format(
        "equal outputs, and the worst of {} evaluations or more by loss or by right answers, and no good one "
        "by the other (Luff)",
        RestoredState::kLeast);
    sink.Report(std::move(finding));
  }

  // Notes of each frozen weight whether its values are as drawn.
  void LookForDrawn(const StepView& view) {
    const ModelFacts& facts = view.memo.Facts(view);
    for (const auto& [entry, tensor] : view.index.summaries(format::Role::kWeight)) {
      if (drawn_.size() >= kMaxDrawn || drawn_.contains(tensor.name)) continue;
      const ParameterFacts* parameter = facts.Find(tensor.name);
      if (parameter == nullptr || parameter->requires_grad || parameter->shape.size() < 2) continue;
      drawn_[tensor.name] = IsAsDrawn(entry.summary, entry.dtype, parameter->shape);
    }
  }

  // A model of which most is frozen, and all that is frozen is as it was drawn, although no file was loaded.
  void JudgeUnloaded(const StepView& view, Sink& sink) const {
    const ModelFacts& facts = view.memo.Facts(view);
    struct Share {
      double all = 0, frozen = 0;
      std::size_t known = 0;
      std::vector<std::string> drawn;
    };
    std::map<std::string, Share> models;
    for (const auto& [name, parameter] : facts.parameters()) {
      Share& share = models[parameter.model];
      const auto elements = static_cast<double>(std::max<std::int64_t>(parameter.elements, 0));
      share.all += elements;
      if (parameter.requires_grad) continue;
      share.frozen += elements;
      const auto at = drawn_.find(name);
      if (at == drawn_.end() || parameter.elements < 256) continue;
      ++share.known;
      if (at->second && !IsMeant(facts, parameter)) share.drawn.push_back(name);
    }
    for (const auto& [model, share] : models) {
      if (share.drawn.size() < kLayers || share.drawn.size() < share.known || 2 * share.frozen < share.all ||
          !facts.IsPartlyOptimized(model))
        continue;
      Finding finding = FindingAt(kName, "never_loaded", view, TensorAt{format::kNoId});
      finding.severity = Severity::kWarn;
      finding.since_step = 0;
      finding.tensor = share.drawn.front();
      finding.other_tensors.assign(share.drawn.begin() + 1, share.drawn.end());
      finding.what = fmt::format("{:.0f} % of {} are frozen, and no weights were loaded into it",
                                 100 * share.frozen / share.all, model);
      finding.why =
          "the values of the frozen layers are spread as an initialisation draws them, to the bounds of its "
          "formula: the rest learns on random features";
      finding.remedy =
          "load the weights before they are frozen (load_state_dict, weights=...), or train these layers, "
          "too";
      finding.causes = {"a model made without its pre-trained weights", "layers frozen by mistake"};
      finding.evidence = {
          {"layers", share.drawn.size()}, {"frozen", share.frozen}, {"parameters", share.all}};
      finding.threshold =
          fmt::format("half of the parameters, {} layers, all as drawn; {} updates without a file (Luff)",
                      kLayers, kUnloaded);
      sink.Report(std::move(finding));
    }
  }

  // A frozen weight with trained parameters beside it (an adapter, a mask), or with a trained twin whose copy
  // it is (a target network), is meant to stay.
  static bool IsMeant(const ModelFacts& facts, const ParameterFacts& frozen) {
    const auto parent = [](const std::string& path) {
      const std::size_t dot = path.rfind('.');
      return dot == std::string::npos ? std::string() : path.substr(0, dot);
    };
    const auto behind = [](const std::string& path) {
      const std::size_t dot = path.find('.');
      return dot == std::string::npos ? path : path.substr(dot + 1);
    };
    const std::string module = parent(frozen.path);
    const std::string around = parent(module);
    return std::any_of(facts.parameters().begin(), facts.parameters().end(), [&](const auto& entry) {
      const ParameterFacts& other = entry.second;
      if (!other.requires_grad || other.model != frozen.model) return false;
      if (other.shape == frozen.shape && behind(other.path) == behind(frozen.path)) return true;
      const bool adapts =
          other.shape.size() > 1;  // a bias or a scale alone is tuned beside pre-trained weights
      return adapts && (parent(other.path) == module || (!around.empty() && parent(other.path) == around) ||
                        other.path.starts_with(module + "."));
    });
  }

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
  RestoredState restored_;
  std::int64_t total_ = 0;
  std::map<std::string, Load> loads_;  // by type of the model
  std::int64_t all_ = 0;               // updates since the start, until it is judged what was never loaded
  bool loaded_ = false;
  Anchor last_;
  SetBacks set_backs_;
  bool set_back_open_ = false;
  bool told_without_effect_ = false;
  std::set<std::string> learning_;     // parameters with a gradient in the newest TRAIN step that told of any
  std::map<std::string, bool> drawn_;  // frozen weights, and whether their values are as drawn
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<FrozenAtInit>(kName, kParams);
  // 2: cause "never_loaded"; 3: "loads_itself"; 4: "restores_worst"; 5: "freeze_without_effect";
  // 6: "set_back"
  spec.version = 6;
  spec.summary =
      "weights that a file was to give and did not: frozen ones, or all because it held themselves or the "
      "worst state; weights that each pass sets back; a freeze that freezes nothing";
  spec.needs = [](const Parameters&) -> std::vector<Need> {
    std::vector<Need> needs = SampleNeeds();
    needs.push_back({.collection = "first_weights",
                     .roles = {format::Role::kWeight},
                     .forms = Bit(format::Form::kSummary),
                     .save_interval = 1 << 20,
                     .first_steps = 2});
    return needs;
  };
  return spec;
}

}  // namespace luff::rules::frozen_at_init
