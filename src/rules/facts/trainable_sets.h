#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "luff/rules/rule.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// What models of Keras were compiled to train and what is trainable now (event `trainable_set`,
/// docs/spec/evidence.md). **Thread-compatible.** Bounded memory.
class TrainableSets {
 public:
  enum class Fault : std::uint8_t {
    kNothing,   // all parameters are frozen, and steps of the training pass without an update
    kUnfrozen,  // parameters became trainable, and updates go on without them
    kFrozen,    // parameters were frozen, and updates go on with them
  };
  struct Told {
    Fault fault = Fault::kNothing;
    std::string model;
    std::set<std::string> names;  // of the parameters, at most kMaxNames
    std::int64_t count = 0;       // of the parameters
    std::int64_t steps = 0;       // that show it
    std::int64_t since = -1;      // TRAIN step
  };
  static constexpr std::int64_t kSteps = 16;

  /// Call at each TRAIN step. Returns what the step has made certain; each is told once. `trained`: names of
  /// parameters that had a gradient in an update so far.
  [[nodiscard]] std::optional<Told> OnStep(const StepView& view, const std::set<std::string>& trained);
  struct Over {
    Fault fault;
    std::string model;
  };
  /// The faults that were told and are over as of this step: the model was compiled again, or one of which
  /// nothing was trained has an update.
  [[nodiscard]] const std::vector<Over>& over() const noexcept { return over_; }
  void VisitFields(Fields& io);

 private:
  static constexpr std::size_t kMaxModels = 64;
  static constexpr std::size_t kMaxNames = 64;

  struct Model {
    std::int64_t trainable = 0, frozen = 0;
    std::set<std::string> added, removed;
    std::int64_t since = -1;
    std::int64_t idle = 0;   // captured steps of the model without an update of any optimizer
    std::int64_t left = 0;   // updates of its parameters with a gradient of others than `added`
    std::int64_t kept = 0;   // updates with a gradient of one of `removed`
    std::int64_t told = -1;  // the fault that was reported
    bool updated = false;    // an update came in one of its steps
    bool has_added = false;  // one of `added` got a gradient, also before: another model trains it
    void VisitFields(Fields& io);
  };
  void Take(const nlohmann::json& event, std::int64_t step, const std::set<std::string>& trained);

  std::map<std::string, Model> models_;
  std::vector<Over> over_;
};

}  // namespace luff::rules
