#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "luff/query/trial.h"

namespace luff::rules {

/// What the run's "model" document says of one module.
struct ModuleFacts {
  std::string model;  // name of its model
  std::string path;   // "" for the model itself
  std::string type;
  std::string name;  // as tensors are named, "" if it has none
  std::optional<std::uint32_t> number;
  bool training = true;
  bool has_parameters = false;            // of its own, not of modules within
  bool trains = false;                    // one of them requires a gradient
  std::map<std::string, double> numbers;  // settings that are numbers; flags are 0 or 1
  [[nodiscard]] std::optional<double> Number(const std::string& key) const;
};

/// **Thread-compatible.** The modules of all models, in the order in which they were registered. The document
/// is read again in the first steps and at powers of two, and parsed when it has changed.
class ModelModules {
 public:
  /// To be told of each TRAIN step. Returns whether anything is new.
  bool OnStep(const query::Trial& trial, const query::StepInfo& info);
  [[nodiscard]] const std::vector<ModuleFacts>& modules() const noexcept { return modules_; }
  [[nodiscard]] const ModuleFacts* OfNumber(std::uint32_t number) const;
  /// By model and path.
  [[nodiscard]] const ModuleFacts* Find(const std::string& model, const std::string& path) const;

 private:
  void Parse(const std::string& text);
  bool looked_ = false;
  std::uint64_t seen_ = 0;
  std::vector<ModuleFacts> modules_;
};

/// 0 to 4, and powers of two.
[[nodiscard]] bool IsLookStep(std::int64_t step) noexcept;

}  // namespace luff::rules
