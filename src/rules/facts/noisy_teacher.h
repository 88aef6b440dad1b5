#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "luff/rules/rule.h"
#include "rules/facts/phases.h"
#include "rules/kit/fields.h"

namespace luff::rules {

class ModelFacts;

/// **Thread-compatible.** Finds a teacher whose dropout or batch normalisation is in training mode.
///
/// For each update it is asked without gradients about a batch that another model is trained on, always in
/// training mode, and once (more often, the mean over its noise is meant). No optimizer that steps meanwhile
/// holds it, and its first weight does not move: an average of the trained model may have its dropout on
/// purpose.
class NoisyTeacher {
 public:
  static constexpr std::int64_t kUpdates = 32;  // in a row

  struct Found {
    std::string teacher;  // name of the model
    std::int64_t since = 0, updates = 0;
  };

  /// Returns a teacher, once for each model and phase.
  [[nodiscard]] std::optional<Found> OnStep(const StepView& view);
  void VisitFields(Fields& io);

 private:
  static constexpr std::size_t kMaxModels = 64, kMaxCalls = 64;
  static constexpr std::int64_t kSightings = 2;  // of its weight, some updates apart

  struct Teacher {
    std::int64_t updates = 0, since = -1;  // in a row, and the TRAIN step of the first
    bool left_out = false, told = false;
    std::int64_t weights = 0;  // that are watched, and their sums
    double sum = 0, squares = 0;
    std::int64_t sightings = 0, seen_at = 0;  // `updates` at the first
    void VisitFields(Fields& io);
  };
  struct Asked {
    std::uint32_t model = 0;
    std::uint64_t batch = 0;
    void VisitFields(Fields& io);
  };

  void TakeCalls(const StepView& view);
  void CloseUpdate(std::int64_t step);
  void TakeWeights(const StepView& view);
  [[nodiscard]] static bool IsHeld(const ModelFacts& facts, const std::string& model);

  Phases phases_;
  std::map<std::uint32_t, Teacher> teachers_;  // by the number of the model
  std::set<std::uint64_t> trained_;            // hashes of this update's batches
  std::vector<Asked> asked_;                   // in training mode, without gradients, since the last update
};

}  // namespace luff::rules
