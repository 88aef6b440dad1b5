#pragma once
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "catalog/database.h"

/// Questions as SQL. Texts of a question are bound, never pasted.
namespace luff::catalog {

struct Selection {
  std::string where;  // " AND ..." over the rows r of the table run, or ""
  std::vector<Bound> bound;
  std::string order;  // " ORDER BY ..."
};

/// Errors: kInvalidArgument for a field that no run has, with the nearest names, or for a verdict that does
/// not exist.
[[nodiscard]] Result<Selection> Select(Database* database, const Question& question);

}  // namespace luff::catalog
