#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "luff/rules/rule.h"
#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Targets of next tokens are the ids of their row, one place further on. Looks for
/// the row whose ids they are.
class ExchangedTokens {
 public:
  static constexpr std::int64_t kBatches = 3;  // in a row

  struct Found {
    query::TensorId loss = 0;
    std::size_t rows = 0, other = 0, own = 0;  // of them, those that follow another row, and their own
  };
  /// Adds a TRAIN step. Returns its newest batch once more than half of the rows of kBatches in a row follow
  /// other rows, and a quarter at most their own.
  [[nodiscard]] std::optional<Found> Add(const StepView& view);
  void VisitFields(Fields& io) { io("batches", batches_); }

 private:
  std::int64_t batches_ = 0;
};

/// Says in a finding what was found.
void TellExchangedTokens(const ExchangedTokens::Found& found, Finding* finding);

}  // namespace luff::rules
