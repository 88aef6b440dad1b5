#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rules/facts/token_stats.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// Embedding tables that are asked for one id and no other, while the model gets ids that nothing looks up
/// and that such a table has a row for each of. Bounded.
class OneId {
 public:
  static constexpr std::size_t kMostColumns = 64, kMostTables = 64;
  static constexpr double kSlack = 2;  // rows that a table may have beyond the ids: unknown, padding

  struct Found {
    std::string table;   // module
    std::string column;  // of ids, in words
    double id = 0, rows = 0, largest = 0;
  };

  /// Adds the tables of a TRAIN step.
  void Add(const StepView& view, const std::vector<Tables::Batch>& batches);
  /// The first such table, once it was asked `ids_per_row` times for each of its rows.
  [[nodiscard]] std::optional<Found> Find(double ids_per_row) const;
  void VisitFields(Fields& io);

 private:
  struct Table {
    double id = 0, rows = 0, asked = 0;
    bool one = true;     // the same id each time
    bool given = false;  // the model got this id as a constant argument, or column of one
    void VisitFields(Fields& io) {
      io("id", id);
      io("rows", rows);
      io("asked", asked);
      io("one", one);
      io("given", given);
    }
  };
  struct Column {
    double largest = -1;
    bool read = false, varies = false, negative = false;
    void VisitFields(Fields& io) {
      io("largest", largest);
      io("read", read);
      io("varies", varies);
      io("negative", negative);
    }
  };
  std::map<std::string, Table> tables_;
  std::map<std::string, Column> columns_;
};

}  // namespace luff::rules
