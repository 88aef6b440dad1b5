#pragma once
#include <string>
#include <vector>

#include "catalog/card.h"
#include "catalog/catalog.h"
#include "catalog/database.h"
#include "catalog/walk.h"

/// Cards in a SQLite file: one row a run, and one for each field of its card.
namespace luff::catalog {

class Index {
 public:
  /// Opens or makes the file. Errors: kCorruption also for a file of another version.
  [[nodiscard]] static Result<Index> Open(const std::string& path);

  /// Reads the runs of the question's folder that have changed, and forgets those that are gone.
  [[nodiscard]] Status Refresh(const Question& question, const Found& found, const Progress& progress);
  [[nodiscard]] Status Find(const Question& question, Answer* answer);
  /// Runs that could not be read, and why.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }

 private:
  explicit Index(Database database) : database_(std::move(database)) {}
  [[nodiscard]] Status Put(const Question& question, const std::string& run, std::uint64_t stamp);
  [[nodiscard]] Status PutFields(std::int64_t run, const Card& card);
  [[nodiscard]] Status Forget(std::int64_t run);
  [[nodiscard]] Result<std::vector<std::int64_t>> Ids(const std::string& sql,
                                                      const std::vector<Bound>& bound);
  /// Texts of fields of a run, several joined by blanks. `names`: what each field may stand for.
  [[nodiscard]] Result<std::vector<std::string>> ValuesOf(
      std::int64_t run, const std::vector<std::vector<std::int64_t>>& names);
  [[nodiscard]] Result<std::int64_t> IdOfName(const std::string& name);

  Database database_;
  std::vector<std::string> notes_;
};

}  // namespace luff::catalog
