#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "catalog/bucket_look.h"
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
  /// The same for the runs of a bucket. `bucket` is its error: what was told before it stays read.
  [[nodiscard]] Status RefreshFrom(const std::string& url, CardSource* source, const Progress& progress,
                                   Status* bucket);
  [[nodiscard]] Status Find(const Question& question, Answer* answer);
  /// Runs that could not be read, and why.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }

 private:
  explicit Index(Database database) : database_(std::move(database)) {}
  struct Known {
    std::int64_t id, stamp;
    bool seen = false;
  };
  using KnownRuns = std::unordered_map<std::string, Known>;
  [[nodiscard]] Result<KnownRuns> KnownBelow(const std::string& folder);
  /// Reads a run and keeps its card.
  [[nodiscard]] Status Read(const Question& question, const std::string& run, std::uint64_t stamp);
  [[nodiscard]] Status Put(const std::string& run, std::int64_t stamp, const Card& card);
  [[nodiscard]] Status PutUntrusted(const std::string& url, const BucketRun& run);
  [[nodiscard]] Status PutFields(std::int64_t run, const Card& card);
  [[nodiscard]] Status Forget(std::int64_t run);
  [[nodiscard]] Status ForgetPath(const std::string& run);
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
