#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "luff/query/trial.h"

namespace luff::rules {

/// What the run's "model" document says of one parameter.
struct ParameterFacts {
  std::string model;
  bool requires_grad = true;
  std::string optimizer;  // "" if no optimizer holds it
  std::int64_t group = -1;
};

/// The run's "model" document, as far as rules need it. Everything in it is optional.
class ModelFacts {
 public:
  /// Parses the document as it is now. Malformed parts are left out.
  [[nodiscard]] static ModelFacts Of(const query::Trial& trial);
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

 private:
  std::map<std::string, ParameterFacts> parameters_;
  std::map<std::string, std::uint32_t> optimizers_;
};

/// "gradient/X" gives "X"; "" for other names.
[[nodiscard]] std::string ParameterOfGradient(const std::string& name);
/// A bias by its name, as the hooks decide it.
[[nodiscard]] bool IsBiasName(const std::string& name);

}  // namespace luff::rules
