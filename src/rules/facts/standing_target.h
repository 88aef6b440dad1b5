#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "luff/rules/rule.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/sample.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Finds a target network that is not brought up to date.
///
/// It has the shapes of a model that is trained by a loss of errors, no optimizer holds it, and it is asked
/// without gradients once for each update (an opponent is asked at each step of a game): about a batch, as
/// many rows as the loss has or some times as many, and never about those that the update trains on (as a
/// teacher, a reference or a predictor of random features would be). Its weights are as an initialisation
/// drew them, and do not move. If it began as a copy of the trained model, the next copy may be due much
/// later.
class StandingTarget {
 public:
  static constexpr std::int64_t kUpdates = 200;     // if it began with weights of its own
  static constexpr std::int64_t kOfACopy = 20'000;  // usual periods are up to 10,000

  struct Found {
    Anchor at;
    std::int64_t updates = 0;
    bool copy = false;            // it began with the trained model's weights
    std::string target, trained;  // names of the models
  };

  void OnStep(const StepView& view);
  /// Call at the end of the run.
  [[nodiscard]] std::optional<Found> OnEnd(const query::Trial& trial) const;

  void VisitFields(Fields& io);

 private:
  static constexpr std::size_t kMaxModels = 64, kMaxWeights = 4096, kMaxCalls = 64;

  struct Calls {                                       // of a model, by its number
    std::int64_t updates = 0, first = 0, batches = 0;  // `batches`: calls whose number of rows fits
    std::int64_t often = 0;                            // updates for which it was asked more than once
    bool left_out = false;  // it was called with gradients, about what is trained on, or about other rows
    void VisitFields(Fields& io);
  };
  struct Weight {
    double sum = 0, squares = 0;
    std::int64_t since = 0;  // updates before they were read first
    bool drawn = false, moved = false;
    void VisitFields(Fields& io);
  };

  void TakeCalls(const StepView& view);
  void TakeWeights(const StepView& view);
  void CloseUpdate();
  [[nodiscard]] bool BeganApart(const ModelFacts& facts, const std::string& one,
                                const std::string& other) const;

  Anchor last_;
  std::map<std::uint32_t, Calls> calls_;
  std::map<std::string, Weight> weights_;
  std::set<std::uint64_t> trained_;                             // hashes of this update's batches
  std::vector<std::pair<std::uint32_t, std::uint64_t>> asked_;  // without gradients, since the last update
  std::int64_t updates_ = 0, rows_ = -1;                        // rows of the newest loss of errors
};

}  // namespace luff::rules
