#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/json_event.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/facts/trainable_sets.h"
#include "rules/facts/untrained_criteria.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// ParamNotOptimized: docs/rules/param_not_optimized.md.
namespace luff::rules::param_not_optimized {
namespace {

using format::EventKind;
using format::Role;
constexpr const char* kName = "ParamNotOptimized";
constexpr const char* kMade = "made_in_forward";
constexpr std::size_t kMaxLoads = 64;
constexpr std::size_t kMaxInputs = 256;
constexpr std::size_t kMaxOptimizers = 64;

using Shape = std::vector<std::int64_t>;

struct Limits {
  std::int64_t updates;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::updates, "updates", "4", "updates by any optimizer before it is judged", AtLeast(1)},
};

// Reports a parameter that requires a gradient, gets one and belongs to no optimizer, while an optimizer
// steps.
class ParamNotOptimized final : public KeptRule {
 public:
  explicit ParamNotOptimized(const Limits& limits) : updates_(limits.updates) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    for (const LoadFacts& load : LoadsOf(view.index)) {
      if (loads_.size() < kMaxLoads)
        loads_.push_back({load.model, load.matched, {load.missing.begin(), load.missing.end()}});
    }
    if (info.mode != query::Mode::kTrain) return;
    const std::size_t updates = view.index.events(EventKind::kOptimizerStep).size();
    total_ += static_cast<std::int64_t>(updates);
    Follow(view);
    for (const auto& [entry, tensor] : view.index.summaries(Role::kSample)) Remember(view, entry.tensor);
    for (const auto& [entry, tensor] : view.index.summaries(Role::kGradient)) {
      if (updates == 0) break;
      if (entry.tensor >= used_.size()) used_.resize(entry.tensor + 1, false);
      if (used_[entry.tensor]) continue;
      used_[entry.tensor] = true;
      names_.insert(ParameterOfGradient(tensor.name));
    }
    criteria_.OnStep(view);
    for (const ReachFacts& reach : ReachesOf(view.index)) Judge(view, reach, sink);
    const auto compiled = compiled_.OnStep(view, names_);
    for (const auto& over : compiled_.over()) Heal(CauseOf(over.fault), view, sink, over.model);
    if (compiled) TellCompiled(view, *compiled, sink);
  }

  void VisitFields(Fields& io) override {
    io("total", total_);
    io("handed", handed_, kMaxOptimizers);
    io("counts", counts_, kMaxOptimizers);
    io("names", names_);
    io("suspects", suspects_);
    io("leaves", leaves_);
    io("made", made_);
    io("inputs", inputs_, kMaxInputs);
    io("loads", loads_, kMaxLoads);
    io("open", open_);
    io("compiled", compiled_);
    io("criteria", criteria_);
  }

 private:
  static const char* CauseOf(TrainableSets::Fault fault) noexcept {
    switch (fault) {
      case TrainableSets::Fault::kUnfrozen: return "unfrozen_late";
      case TrainableSets::Fault::kFrozen: return "frozen_late";
      default: return "nothing_trainable";
    }
  }

  // Reports what Keras compiled to be trained where that is nothing, or no longer what is trainable.
  void TellCompiled(const StepView& view, const TrainableSets::Told& told, Sink& sink) {
    const char* cause = CauseOf(told.fault);
    Finding finding = FindingAt(kName, cause, view, TensorAt{format::kNoId});
    finding.tensor = told.names.empty() ? told.model : *told.names.begin();
    open_.try_emplace(Open(cause, told.model), finding.tensor);
    for (const std::string& name : told.names) {
      if (name != finding.tensor) finding.other_tensors.push_back(name);
    }
    finding.since_step = std::max<std::int64_t>(told.since, 0);
    const std::string parameters = fmt::format("{} parameter{}", told.count, told.count == 1 ? "" : "s");
    if (told.fault == TrainableSets::Fault::kNothing) {
      finding.severity = Severity::kStop;
      finding.what =
          fmt::format("nothing of {} is trained: all of its {} are frozen", told.model, parameters);
      finding.why = fmt::format(
          "trainable was False for all layers when the first batch came (Keras compiles the step then, and "
          "not in "
          "compile()); {} steps of the training passed without an update",
          told.steps);
      finding.remedy =
          "set trainable = True for the layers that shall learn before the first fit or train_on_batch, and "
          "call "
          "compile() after each change of it; a discriminator is frozen for the generator's turn only, and "
          "unfrozen "
          "before its own first batch";
      finding.causes = {"trainable = False for the whole model, and not for its base only",
                        "a model that was frozen after compile() and before its first batch"};
    } else if (told.fault == TrainableSets::Fault::kUnfrozen) {
      finding.what = fmt::format("{} of {} became trainable and {} not trained", parameters, told.model,
                                 told.count == 1 ? "is" : "are");
      finding.why = fmt::format(
          "trainable was set after the step of fit had been compiled, which trains what was trainable then: "
          "in {} "
          "updates since, none of them got a gradient",
          told.steps);
      finding.remedy = "call compile() again after trainable was changed, then fit";
      finding.causes = {"layers that are unfrozen for fine-tuning without compile()"};
    } else {
      finding.what = fmt::format("{} of {} {} frozen and still trained", parameters, told.model,
                                 told.count == 1 ? "is" : "are");
      finding.why = fmt::format(
          "trainable was set to False after the step of fit had been compiled, which trains what was "
          "trainable "
          "then: {} updates since used gradients of theirs",
          told.steps);
      finding.remedy = "call compile() again after trainable was changed, then fit";
      finding.causes = {"layers that are frozen between two calls of fit without compile()"};
    }
    finding.evidence = {{"parameters", told.count}, {"steps", told.steps}};
    finding.threshold = fmt::format("a fact of {} steps (Luff)", TrainableSets::kSteps);
    sink.Report(std::move(finding));
  }

  struct Load {
    std::string model;  // type
    std::int64_t matched = 0;
    std::set<std::string> missing;
    void VisitFields(Fields& io) {
      io("model", model);
      io("matched", matched);
      io("missing", missing);
    }
  };

  // Remembers the shapes that models are called with: a leaf of such a shape is an input that needs a
  // gradient.
  void Remember(const StepView& view, query::TensorId id) {
    if (view.trial.tensor(id).name.find("_input_") == std::string::npos || inputs_.size() >= kMaxInputs)
      return;
    const auto shape = view.trial.Shape(id, view.rows.info.global_step, query::Mode::kGlobal);
    if (!shape.ok()) return;
    inputs_.insert(shape->global_shape.empty() ? shape->shape : shape->global_shape);
  }

  [[nodiscard]] bool WasLoaded(const ModelFacts& facts, const ParameterFacts& parameter) const {
    for (const Load& load : loads_) {
      if (load.matched == 0) continue;
      for (const auto& [path, type] : facts.ModuleTypes(parameter.model)) {
        if (type != load.model) continue;
        if (!path.empty() && !parameter.path.starts_with(path + ".")) continue;
        if (!load.missing.contains(parameter.path.substr(path.empty() ? 0 : path.size() + 1))) return true;
      }
    }
    return false;
  }

  // Counts the updates of each optimizer, and remembers those that train nothing of a called model and get
  // gradients.
  void Follow(const StepView& view) {
    for (const query::EventAt& event : view.index.events(EventKind::kOptimizerStep)) {
      if (event.worker != view.index.first_worker()) continue;
      if (counts_.size() < kMaxOptimizers || counts_.contains(event.row.subject))
        ++counts_[event.row.subject];
    }
    for (const auto& event : view.index.json_events("gradients_handed"))
      if (const double number = NumberIn(*event, "optimizer"); number >= 0 && handed_.size() < kMaxOptimizers)
        handed_.insert(static_cast<std::uint32_t>(std::min<double>(number, format::kNoId)));
  }

  // Whether it holds nothing of a model that is called: parameters of another network, or of this one before
  // it was copied. Not one whose gradients are computed elsewhere and handed to it, or whose parameters the
  // backward pass reaches without a model (inputs, tensors).
  [[nodiscard]] bool TrainsNothing(const OptimizerFacts& optimizer, const ReachFacts& reach) const {
    if (!IsForeign(optimizer) || handed_.contains(optimizer.number)) return false;
    std::int64_t reached = 0;
    for (const ReachFacts::Leaf& leaf : reach.foreign) reached += leaf.optimizer == optimizer.name ? 1 : 0;
    return 2 * reached <= optimizer.parameters;
  }

  static bool IsForeign(const OptimizerFacts& optimizer) {
    return optimizer.parameters > 0 && optimizer.foreign >= optimizer.parameters;
  }

  [[nodiscard]] bool IsYoung(const OptimizerFacts& optimizer) const {
    const auto count = counts_.find(optimizer.number);
    return count == counts_.end() || count->second < updates_;
  }

  static bool Steps(const StepView& view, const OptimizerFacts& optimizer) {
    const auto& steps = view.index.events(EventKind::kOptimizerStep);
    return std::any_of(steps.begin(), steps.end(), [&](const query::EventAt& event) {
      return event.worker == view.index.first_worker() && event.row.subject == optimizer.number;
    });
  }

  void Judge(const StepView& view, const ReachFacts& reach, Sink& sink) {
    if (total_ == 0) return;
    const ModelFacts& facts = view.memo.Facts(view);
    const bool any_optimized = facts.AnyOptimized();
    bool all_foreign = !facts.optimizers().empty();
    bool elsewhere = false;  // an optimizer trains what belongs to no called model
    bool young = false;      // of one it is not known yet
    bool idle = false;       // one that is no longer young makes its updates, and trains nothing
    for (const OptimizerFacts& optimizer : facts.optimizers()) {
      const bool nothing = TrainsNothing(optimizer, reach);
      all_foreign = all_foreign && nothing;
      elsewhere = elsewhere || (IsForeign(optimizer) && !nothing);
      young = young || (nothing && IsYoung(optimizer));
      idle = idle || (nothing && !IsYoung(optimizer) && Steps(view, optimizer));
    }
    std::set<std::string> stale;  // optimizers of parameters that belong to no called model
    for (const OptimizerFacts& optimizer : facts.optimizers()) {
      if (IsForeign(optimizer)) stale.insert(optimizer.name);
    }
    const std::set<std::string> zeros = UntrainedLosses(view, facts);
    std::set<std::string> losses = criteria_.Models(facts);
    losses.insert(zeros.begin(), zeros.end());
    std::set<std::string> suspects;
    std::int64_t trainable = 0;
    std::int64_t optimized = 0;
    for (const auto& [name, parameter] : facts.parameters()) {
      if (!parameter.requires_grad) continue;
      if (stale.contains(parameter.optimizer)) continue;  // of a model that is no longer called
      ++trainable;
      if (!parameter.optimizer.empty()) {
        ++optimized;
        continue;
      }
      if (reach.without_gradient.contains(name) || names_.contains(name)) continue;
      // A model without any parameter in an optimizer may be a teacher, a critic or a metric, as long as
      // another model is trained, or a copy that computes gradients for what an optimizer holds.
      const bool others = (any_optimized && !all_foreign) || (elsewhere && !idle);
      // A loss whose parameters are all zero, or that gets labels, is none of these.
      if (others && !facts.IsPartlyOptimized(parameter.model) && !losses.contains(parameter.model)) continue;
      if (WasLoaded(facts, parameter)) continue;
      suspects.insert(name);
    }
    // Drops all suspects if the list of names is cut off, or if the description of the model is older than
    // this pass: then it promises more parameters with gradients than were reached.
    if (!reach.complete() || trainable - reach.without_gradient_count > reach.reached_count) suspects.clear();
    std::set<Shape> leaves;
    for (const ReachFacts::Leaf& leaf : reach.foreign) {
      if (leaf.optimizer.empty() && !leaf.input && !inputs_.contains(leaf.shape)) leaves.insert(leaf.shape);
    }
    // Requires two events: a part whose optimizer is made later, or that gets a gradient only once, is no
    // mistake.
    std::set<std::string> both;
    std::set_intersection(suspects.begin(), suspects.end(), suspects_.begin(), suspects_.end(),
                          std::inserter(both, both.begin()));
    std::set<Shape> leaves_both;
    std::set_intersection(leaves.begin(), leaves.end(), leaves_.begin(), leaves_.end(),
                          std::inserter(leaves_both, leaves_both.begin()));
    suspects_ = std::move(suspects);
    leaves_ = std::move(leaves);
    std::set<Shape> own;  // copies of these are made for inner steps (meta-learning)
    if (!reach.made.empty())
      for (const auto& [name, parameter] : facts.parameters()) own.insert(parameter.shape);
    std::set<Shape> made;  // a weight and its bias: a layer
    for (const Shape& shape : reach.made)
      if (shape.size() > 1 && !inputs_.contains(shape) && !own.contains(shape) &&
          reach.made.contains({shape.front()}))
        made.insert(shape);
    std::set<Shape> made_both;
    std::set_intersection(made.begin(), made.end(), made_.begin(), made_.end(),
                          std::inserter(made_both, made_both.begin()));
    made_ = std::move(made);
    if (total_ < updates_) return;
    if (!made_both.empty()) {
      TellMade(view, made_both, sink);
    } else {
      Heal(kMade, view, sink);
    }
    const bool all = optimized == 0 || all_foreign;
    if (young && !idle && all) {
      // Gradients may yet be handed to it, as after inner steps by other optimizers.
    } else if (!both.empty()) {
      const bool of_loss = std::ranges::all_of(both, [&](const std::string& name) {
        const ParameterFacts* parameter = facts.Find(name);
        return parameter != nullptr && losses.contains(parameter->model);
      });
      const bool drawn = std::ranges::any_of(both, [&](const std::string& name) {
        const ParameterFacts* parameter = facts.Find(name);
        return parameter != nullptr && !zeros.contains(parameter->model);
      });
      Tell(view, both, all, all_foreign || HoldsForeign(facts), of_loss, drawn, sink);
    } else {
      Heal("not_in_optimizer", view, sink);
    }
    if (!leaves_both.empty() && !IsACopy(facts, leaves_both)) {
      TellLeaves(view, leaves_both, sink);
    } else {
      Heal("unregistered", view, sink);
    }
  }

  // Whether these are the shapes of all parameters of a model that is trained: an older copy of it, which is
  // never called and to which a penalty keeps the weights near.
  static bool IsACopy(const ModelFacts& facts, const std::set<Shape>& leaves) {
    std::map<std::string, std::set<Shape>> shapes;
    for (const auto& [name, parameter] : facts.parameters())
      if (parameter.requires_grad && !parameter.optimizer.empty())
        shapes[parameter.model].insert(parameter.shape);
    return std::any_of(shapes.begin(), shapes.end(),
                       [&](const auto& model) { return model.second.size() > 1 && model.second == leaves; });
  }

  // Models that give a loss and of which no optimizer holds anything, while all that they could learn is
  // zero. What measures a distance, or teaches, is drawn at random or loaded, and never nothing but zeros.
  static std::set<std::string> UntrainedLosses(const StepView& view, const ModelFacts& facts) {
    std::map<std::string, std::int64_t> elements;  // of models whose parameters are all zero
    std::set<std::string> others, zeros;
    for (const Role role : {Role::kWeight, Role::kBias})
      for (const auto& [entry, tensor] : view.index.summaries(role))
        if (entry.summary.count > 0 && entry.summary.zero_count == entry.summary.count)
          zeros.insert(tensor.name);
    if (zeros.empty()) return {};
    for (const auto& [name, parameter] : facts.parameters()) {
      if (parameter.requires_grad && parameter.optimizer.empty() && zeros.contains(name)) {
        elements[parameter.model] += std::max<std::int64_t>(parameter.elements, 1);
      } else {
        others.insert(parameter.model);
      }
    }
    std::set<std::string> found;
    for (const auto& [model, count] : elements) {
      const auto output = view.trial.TensorNamed(model + "_output_0");
      if (count > 1 && !others.contains(model) && output && view.trial.tensor(*output).role == Role::kLoss)
        found.insert(model);
    }
    return found;
  }

  static bool HoldsForeign(const ModelFacts& facts) {
    return std::any_of(facts.optimizers().begin(), facts.optimizers().end(),
                       [](const OptimizerFacts& optimizer) { return optimizer.foreign > 0; });
  }

  // The key of an open finding; `model`: of Keras, which may have several with the same fault.
  static std::string Open(const std::string& cause, const std::string& model) {
    return model.empty() ? cause : cause + "\n" + model;
  }

  void Heal(const std::string& cause, const StepView& view, Sink& sink, const std::string& model = {}) {
    const auto it = open_.find(Open(cause, model));
    if (it == open_.end()) return;
    sink.Heal(cause, it->second, view.rows.info.mode_step);
    open_.erase(it);
  }

  void Tell(const StepView& view, const std::set<std::string>& names, bool all, bool copy, bool of_loss,
            bool drawn, Sink& sink) {
    Finding finding = FindingAt(kName, "not_in_optimizer", view, TensorAt{format::kNoId});
    finding.tensor = open_.try_emplace("not_in_optimizer", *names.begin()).first->second;
    for (const std::string& name : names) {
      if (name != finding.tensor) finding.other_tensors.push_back(name);
    }
    finding.severity = all ? Severity::kStop : Severity::kWarn;
    finding.since_step = 0;
    finding.what = all ? fmt::format(
                             "no optimizer holds the model that is trained: {} parameters get gradients and "
                             "stay as they are",
                             names.size())
                       : fmt::format("{} parameter{} belong{} to no optimizer, and get{} gradients",
                                     names.size(), names.size() == 1 ? "" : "s", names.size() == 1 ? "s" : "",
                                     names.size() == 1 ? "s" : "");
    finding.why =
        copy ? "the optimizer holds parameters that belong to no model that is called: those of another "
               "network, or of this one before it was copied, moved or changed"
             : "they require gradients and the loss reaches them, but no update will change them";
    finding.remedy =
        "make the optimizer from model.parameters() after the model has its final form; what is not meant to "
        "be "
        "trained is frozen by requires_grad_(False)";
    finding.causes = {"the optimizer was made before the model was copied, moved or changed",
                      copy ? "the optimizer was given the parameters of another network"
                           : "the optimizer was given a part of the parameters",
                      "a part that should be frozen is not"};
    if (!copy) std::swap(finding.causes[0], finding.causes[1]);
    if (of_loss) {
      finding.why = fmt::format(
          "they are the parameters of a loss or of its head, and {}: the loss reaches them and asks for a "
          "change, but no update will change them",
          drawn ? "stay as they were drawn" : "all zero");
      finding.remedy =
          "give the optimizer the loss's parameters, too: [*model.parameters(), *criterion.parameters()]; "
          "what is not meant to be trained is frozen by requires_grad_(False)";
      finding.causes = {"the optimizer was given model.parameters(), and not those of the criterion"};
    }
    finding.evidence = {{"parameters", names.size()}, {"updates", total_}};
    finding.threshold = fmt::format("a fact, judged after {} updates (Luff)", updates_);
    sink.Report(std::move(finding));
  }

  static std::string Listed(const std::set<Shape>& shapes) {
    std::string listed;
    for (const Shape& shape : shapes) {
      if (listed.size() > 200) break;
      listed += fmt::format("{}({})", listed.empty() ? "" : ", ", fmt::join(shape, ", "));
    }
    return listed;
  }

  void TellMade(const StepView& view, const std::set<Shape>& shapes, Sink& sink) {
    open_.try_emplace(kMade, "");
    Finding finding = FindingAt(kName, kMade, view, TensorAt{format::kNoId});
    finding.since_step = 0;
    finding.what = fmt::format(
        "layers with weights of shape {} are made anew in each step, and never trained", Listed(shapes));
    finding.why =
        "the loss reaches their parameters, which belong to no model and no optimizer and are gone when the "
        "step ends: "
        "each step draws others at random";
    finding.remedy =
        "make the layers in __init__, as attributes of the module, and only call them in forward";
    finding.causes = {"nn.Linear or another layer is made inside forward()"};
    finding.evidence = {{"shapes", shapes.size()}};
    finding.threshold = fmt::format(
        "a fact: a weight and its bias, in two looks in a row; judged after {} updates (Luff)", updates_);
    sink.Report(std::move(finding));
  }

  void TellLeaves(const StepView& view, const std::set<Shape>& leaves, Sink& sink) {
    open_.try_emplace("unregistered", "");
    Finding finding = FindingAt(kName, "unregistered", view, TensorAt{format::kNoId});
    finding.since_step = 0;
    finding.what = fmt::format("tensors of shape {} get gradients and belong to no module and no optimizer",
                               Listed(leaves));
    finding.why =
        "model.parameters() does not know them, so they are never updated, nor moved, nor saved with the "
        "model";
    finding.remedy =
        "keep parameters as attributes, in nn.ParameterList or in nn.ModuleList, not in a plain list";
    finding.causes = {"parameters or modules in a plain Python list or dict",
                      "a tensor with requires_grad that is no nn.Parameter"};
    finding.evidence = {{"shapes", leaves.size()}};
    finding.threshold = fmt::format("a fact, judged after {} updates (Luff)", updates_);
    sink.Report(std::move(finding));
  }

  const std::int64_t updates_;
  std::int64_t total_ = 0;                        // updates by any optimizer
  std::set<std::uint32_t> handed_;                // numbers of optimizers that get gradients from elsewhere
  std::map<std::uint32_t, std::int64_t> counts_;  // their updates
  std::vector<bool> used_;                        // by id of the gradient: an update has used it
  std::set<std::string> names_, suspects_;
  std::set<Shape> leaves_, inputs_, made_;
  std::vector<Load> loads_;
  std::map<std::string, std::string> open_;  // `Open` -> tensor
  TrainableSets compiled_;
  UntrainedCriteria criteria_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<ParamNotOptimized>(kName, kParams);
  spec.aliases = {"UnregisteredParameter", "OptimizerDetached"};
  // 2: "made_in_forward"; what Keras compiled; 3: gradients that are handed over; 4: parameters of losses;
  // 5: of those that are not zero; older copies
  spec.version = 5;
  spec.summary =
      "parameters that get gradients and belong to no optimizer, or that a compiled step leaves out";
  spec.needs = [](const Parameters&) { return std::vector<Need>{SampleNeeds().front()}; };
  return spec;
}

}  // namespace luff::rules::param_not_optimized
