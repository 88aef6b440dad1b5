#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "luff/rules/rule.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// Embedding tables of Keras that are asked for numbers between the ids: Keras casts them to integers.
/// **Thread-compatible.**
class CutIds {
 public:
  struct Cut {
    const query::Trial::SummaryEntry* entry = nullptr;
    double share = 0;          // of the numbers of this batch that are no whole ones
    std::int64_t numbers = 0;  // different ones in this batch, up to kMaxNumbers
    std::int64_t ids = 0;      // what they become, likewise
    double first = 0;          // one of these ids
  };
  /// Call at each TRAIN step. Returns a table at the third captured batch in a row that shows it; each table
  /// once.
  [[nodiscard]] std::optional<Cut> OnStep(const StepView& view);
  void VisitFields(Fields& io);

 private:
  static constexpr std::size_t kMaxTables = 64;
  static constexpr std::size_t kMaxNumbers = 4096;
  static constexpr double kShare = 0.2;
  static constexpr std::int64_t kBatches = 3;
  std::map<std::string, std::int64_t> batches_;  // in a row, by name of the table's input
};

}  // namespace luff::rules
