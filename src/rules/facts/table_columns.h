#pragma once
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rules/facts/token_stats.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// Which column of a model's ids each embedding table is asked for: of an input (rows, columns), or of one id
/// for each row. Bounded.
class TableColumns {
 public:
  static constexpr std::size_t kMostColumns = 256, kMostTables = 64;
  static constexpr double kSlack = 2;  // rows that a table may have beyond the ids: unknown, padding

  /// A table that is asked for a column which another table is asked for, too, while the column that it has a
  /// row for each id of is read by none.
  struct Wrong {
    std::string table, other;  // module that is asked for the same column
    std::string column, meant;
    double rows = 0, largest = 0;  // of the table; id of the column that it reads
  };

  /// Adds the tables of a TRAIN step, of all sizes.
  void Add(const StepView& view, const std::vector<Tables::Batch>& batches);
  /// The first such table, after `rows_per_row` rows of ids for each of its own.
  [[nodiscard]] std::optional<Wrong> Find(double rows_per_row) const;
  void VisitFields(Fields& io);

 private:
  struct Column {
    double largest = -1, rows = 0;
    bool read = false, varies = false;
    void VisitFields(Fields& io) {
      io("largest", largest);
      io("rows", rows);
      io("read", read);
      io("varies", varies);
    }
  };
  struct Table {
    std::string column;  // "": not the same one each time, or none
    double rows = 0;     // of the table
    void VisitFields(Fields& io) {
      io("column", column);
      io("rows", rows);
    }
  };
  std::map<std::string, Column> columns_;
  std::map<std::string, Table> tables_;
  bool unfit_ = false;  // a table gets sequences, or something that is no column
};

}  // namespace luff::rules
