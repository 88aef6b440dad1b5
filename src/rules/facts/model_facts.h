#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "luff/query/trial.h"
#include "rules/kit/step_index.h"

namespace luff::rules {

/// One parameter in the run's document "model".
struct ParameterFacts {
  std::string model;
  std::string model_type;
  std::string path;            // within the model
  std::int64_t elements = -1;  // -1: unknown
  std::vector<std::int64_t> shape;
  bool requires_grad = true;
  bool updated =
      false;  // no optimizer holds it, and it was written in place many times: it was trained before
  std::string optimizer;  // "" if no optimizer holds it
  std::int64_t group = -1;
  std::string misspelt;  // an attribute that was set to False and looks like requires_grad; "": none
};

/// Names that look like requires_grad and mean nothing to torch; and itself, as an attribute of a module.
[[nodiscard]] bool LooksLikeRequiresGrad(std::string_view name) noexcept;

struct OptimizerFacts {
  std::uint32_t number = 0;
  std::string name, type;
  std::int64_t parameters = 0;             // all groups
  std::int64_t foreign = -1;               // how many of them belong to no called model; -1: unknown
  std::int64_t shared = 0;                 // how many of them another optimizer holds, too
  double eps = 0, lr = 0;                  // the smallest eps and the largest rate of its groups; 0: unknown
  bool scheduled = false;                  // a scheduler of the framework was made for it
  std::string device;                      // of its parameters: "cpu"; "" if unknown
  bool one_by_one = false;                 // it updates each parameter by itself: neither fused nor foreach
  std::map<std::string, double> defaults;  // of its constructor, those that are numbers
  std::vector<std::map<std::string, double>> groups;  // settings of each group that are numbers
};

/// Coarse kind of a module, by its type.
enum class ModuleKind : std::uint8_t { kOther, kLinear, kConvolution, kNorm, kDropout };
[[nodiscard]] ModuleKind KindOfModule(std::string_view type) noexcept;

/// One module in the run's document "model".
struct ModuleFacts {
  std::string model;  // name of its model
  std::string path;   // "" for the model itself
  std::string type;
  ModuleKind kind = ModuleKind::kOther;
  std::string name;  // as in names of tensors; "" if it has none
  std::optional<std::uint32_t> number;
  bool training = true;
  bool builtin = false;                   // a class of the framework
  bool mentioned = false;                 // methods of its parents may name it, beside their constructors
  bool has_parameters = false;            // of its own, not of its submodules
  bool trains = false;                    // one of them requires a gradient
  std::map<std::string, double> numbers;  // settings that are numbers; flags are 0 or 1
  [[nodiscard]] std::optional<double> Number(const std::string& key) const;
};

/// A learning rate scheduler that has stepped.
struct SchedulerFacts {
  std::string type;  // "OneCycleLR"
  std::int64_t length =
      0;             // steps that it is planned for (total_steps, T_max, total_iters); 0: it does not say
  std::string mode;  // "min" or "max" of one that is given a metric
  std::optional<double> gamma, eta_min;
  std::vector<std::int64_t> milestones;
  std::optional<std::int64_t> optimizer;  // number of the one whose rates it sets; -1: one without any update
  bool moved = false;                     // the rates of that one are not what they were
};

/// The part of the run's document "model" that rules need. Everything in the document is optional.
class ModelFacts {
 public:
  /// Skips malformed parts. Rules call StepMemo::Facts instead, which caches the result.
  [[nodiscard]] static ModelFacts ParseUntrusted(std::string_view document);
  /// Parses the document as it is now.
  [[nodiscard]] static ModelFacts Of(const query::Trial& trial) {
    return ParseUntrusted(trial.Document("model"));
  }
  /// The run has no document "model".
  [[nodiscard]] bool missing() const noexcept { return missing_; }
  [[nodiscard]] bool empty() const noexcept { return parameters_.empty(); }
  /// The models, and the losses, are Keras'.
  [[nodiscard]] bool keras() const noexcept { return keras_; }
  [[nodiscard]] const ParameterFacts* Find(const std::string& name) const;
  [[nodiscard]] const std::map<std::string, ParameterFacts>& parameters() const noexcept {
    return parameters_;
  }
  /// Some parameter of the model is held by an optimizer.
  [[nodiscard]] bool IsPartlyOptimized(const std::string& model) const;
  /// Some model has a parameter that an optimizer holds.
  [[nodiscard]] bool AnyOptimized() const;
  /// Number of an optimizer, as used in events.
  [[nodiscard]] std::optional<std::uint32_t> OptimizerNumber(const std::string& name) const;
  [[nodiscard]] std::size_t optimizer_count() const noexcept { return optimizers_.size(); }
  [[nodiscard]] const std::vector<OptimizerFacts>& optimizers() const noexcept { return optimizer_facts_; }
  /// The modules of all models, in the order in which they were registered.
  [[nodiscard]] const std::vector<ModuleFacts>& modules() const noexcept { return modules_; }
  [[nodiscard]] bool HasModule(ModuleKind kind) const noexcept;
  [[nodiscard]] bool has_scheduler() const noexcept { return !schedulers_.empty(); }
  [[nodiscard]] const std::vector<SchedulerFacts>& schedulers() const noexcept { return schedulers_; }
  /// Types of the modules of a model by path, "" for the model itself.
  [[nodiscard]] const std::map<std::string, std::string>& ModuleTypes(const std::string& model) const;

 private:
  bool missing_ = true;
  bool keras_ = false;
  std::vector<SchedulerFacts> schedulers_;
  std::map<std::string, ParameterFacts> parameters_;
  std::map<std::string, std::uint32_t> optimizers_;
  std::vector<OptimizerFacts> optimizer_facts_;
  std::vector<ModuleFacts> modules_;
  std::map<std::string, std::map<std::string, std::string>> module_types_;
};

/// Content of the event `reach`, about the backward passes of a step.
struct ReachFacts {
  std::set<std::string> without_gradient;  // at most 256 names
  std::int64_t without_gradient_count = 0;
  std::int64_t reached_count = 0;
  struct Leaf {
    std::vector<std::int64_t> shape;
    std::string optimizer;  // "" if none holds it
    bool input = false;     // a model was called with it
  };
  std::vector<Leaf> foreign;
  std::set<std::vector<std::int64_t>> made;  // shapes of parameters of no model that were gone after the step
  /// All names without gradients are known.
  [[nodiscard]] bool complete() const noexcept {
    return without_gradient_count == static_cast<std::int64_t>(without_gradient.size());
  }
};

/// Content of the event `load_state_dict`.
struct LoadFacts {
  std::string model;  // type
  std::int64_t matched = 0, missing_count = 0, unexpected_count = 0;
  std::int64_t own = 0;  // tensors of the state that are those of the model itself
  /// It changed nothing: all that it gave are the model's own tensors.
  [[nodiscard]] bool gives_nothing() const noexcept { return matched > 0 && own >= matched; }
  std::vector<std::string> missing, unexpected;  // at most 256 names each
};

/// The events of these kinds in a step. Malformed parts are skipped.
[[nodiscard]] std::vector<ReachFacts> ReachesOf(const StepIndex& index);
[[nodiscard]] std::vector<LoadFacts> LoadsOf(const StepIndex& index);

/// Whether a model loaded matching weights of another one at this step, and so is no longer as it was
/// initialised, or its weights were set anew before another optimizer began.
[[nodiscard]] bool LoadsWeights(const StepIndex& index);

/// "gradient/X" gives "X"; "" for other names.
[[nodiscard]] std::string ParameterOfGradient(const std::string& name);
/// Whether the name is that of a bias. The hooks decide by the same test.
[[nodiscard]] bool IsBiasName(const std::string& name);

}  // namespace luff::rules
