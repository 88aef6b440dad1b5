#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "luff/query/trial.h"

namespace luff::rules {

/// What the run's "model" document says of one parameter.
struct ParameterFacts {
  std::string model;
  std::string model_type;
  std::string path;            // below the model
  std::int64_t elements = -1;  // -1: not known
  std::vector<std::int64_t> shape;
  bool requires_grad = true;
  std::string optimizer;  // "" if no optimizer holds it
  std::int64_t group = -1;
};

struct OptimizerFacts {
  std::uint32_t number = 0;
  std::string name, type;
  std::int64_t parameters = 0;  // all groups
  std::int64_t foreign = -1;    // of them, how many belong to no model that was called; -1: not told
};

/// The run's "model" document, as far as rules need it. Everything in it is optional.
class ModelFacts {
 public:
  /// Malformed parts are left out. Rules ask StepMemo::Facts.
  [[nodiscard]] static ModelFacts ParseUntrusted(std::string_view document);
  /// Of the document as it is now.
  [[nodiscard]] static ModelFacts Of(const query::Trial& trial) {
    return ParseUntrusted(trial.Document("model"));
  }
  [[nodiscard]] bool empty() const noexcept { return parameters_.empty(); }
  [[nodiscard]] const ParameterFacts* Find(const std::string& name) const;
  [[nodiscard]] const std::map<std::string, ParameterFacts>& parameters() const noexcept {
    return parameters_;
  }
  /// Some parameter of the model is held by an optimizer.
  [[nodiscard]] bool IsPartlyOptimized(const std::string& model) const;
  /// Some model has a parameter that an optimizer holds.
  [[nodiscard]] bool AnyOptimized() const;
  /// Number of an optimizer, as events name it.
  [[nodiscard]] std::optional<std::uint32_t> OptimizerNumber(const std::string& name) const;
  [[nodiscard]] std::size_t optimizer_count() const noexcept { return optimizers_.size(); }
  [[nodiscard]] const std::vector<OptimizerFacts>& optimizers() const noexcept { return optimizer_facts_; }
  /// Types of the modules of a model by path, "" for the model itself.
  [[nodiscard]] const std::map<std::string, std::string>& ModuleTypes(const std::string& model) const;

 private:
  std::map<std::string, ParameterFacts> parameters_;
  std::map<std::string, std::uint32_t> optimizers_;
  std::vector<OptimizerFacts> optimizer_facts_;
  std::map<std::string, std::map<std::string, std::string>> module_types_;
};

/// What the event `reach` tells of a backward pass.
struct ReachFacts {
  std::set<std::string> without_gradient;  // at most 64 names
  std::int64_t without_gradient_count = 0;
  std::int64_t reached_count = 0;
  struct Leaf {
    std::vector<std::int64_t> shape;
    std::string optimizer;  // "" if none holds it
    bool input = false;     // a model was called with it
  };
  std::vector<Leaf> foreign;
  /// All names without gradients are known.
  [[nodiscard]] bool complete() const noexcept {
    return without_gradient_count == static_cast<std::int64_t>(without_gradient.size());
  }
};

/// What the event `load_state_dict` tells.
struct LoadFacts {
  std::string model;  // type
  std::int64_t matched = 0, missing_count = 0, unexpected_count = 0;
  std::vector<std::string> missing, unexpected;  // at most 64 names each
};

/// The event of that kind, or nothing: JSON of other kinds, or malformed.
[[nodiscard]] std::optional<ReachFacts> ParseReachUntrusted(std::string_view json);
[[nodiscard]] std::optional<LoadFacts> ParseLoadUntrusted(std::string_view json);

/// At this step a model got weights that it knows: it is not as it was initialised.
[[nodiscard]] bool LoadsWeights(const query::Trial::StepRows& rows);

/// "gradient/X" gives "X"; "" for other names.
[[nodiscard]] std::string ParameterOfGradient(const std::string& name);
/// A bias by its name, as the hooks decide it.
[[nodiscard]] bool IsBiasName(const std::string& name);

}  // namespace luff::rules
