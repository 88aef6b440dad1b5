#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "catalog/query.h"
#include "luff/base/result.h"

/// Lists the runs of a directory. Their cards are kept in an index, a SQLite file: a run is read again only
/// when it has changed. The index is a cache: nothing is lost with it, and a damaged one is made anew.
namespace luff::catalog {

struct Card;

struct Question {
  std::string folder;  // absolute; runs up to kMaxFolderDepth directories below it
  std::optional<Condition> where;
  std::vector<std::string> tags;  // all of them
  std::string text;               // words, each of which occurs somewhere in what the card says
  std::string sort = "begun";     // a field
  bool ascending = false;
  std::size_t limit = 20;
  /// Asked of a run that has changed since, and was running when it was read last: true if what is known of
  /// it will do. Empty: all that has changed is read.
  std::function<bool(const std::string& path)> leave;
  /// Makes the card of a run that the caller has open, which is cheaper; false if it has not. Empty: never.
  std::function<bool(const std::string& path, Card* card)> open = {};
  std::vector<std::string> fields = {};  // whose values are told of each run
};

/// One run, as a table shows it.
struct Entry {
  std::string path;
  std::string name;     // relative to the folder
  std::size_t age = 0;  // 1: the newest run of the folder, 2: the one before, ...
  std::int64_t begun_unix_ns = 0;
  double took_s = 0;
  std::uint64_t steps = 0;
  std::optional<double> loss, best_loss;
  std::string verdict, why, headline;  // headline: rule and step of the gravest finding
  std::uint64_t findings = 0;
  std::string card;                 // JSON
  std::vector<std::string> fields;  // as asked for: their texts; "" for a run without it
};

struct Answer {
  std::vector<Entry> entries;
  std::size_t matching = 0, all = 0;  // runs
  std::vector<std::string> notes;     // what was not looked at, and why
};

/// Is called with the number of runs that were read and of those that must be.
using Progress = std::function<void(std::size_t done, std::size_t all)>;

/// `index`: file of the index; "" for none. Where it cannot be used (no home, read-only, in use for long) the
/// runs are read without it. Errors: kNotFound for a folder that does not exist; kInvalidArgument for a field
/// that no run has, with the nearest names.
[[nodiscard]] Result<Answer> Ask(const std::string& index, const Question& question,
                                 const Progress& progress = {});

/// $LUFF_HOME, or ~/.luff; "" if neither variable is set.
[[nodiscard]] std::string Home();

/// The run that a person means: a path, a name below Home()/runs, the beginning of one name, or `@1` for the
/// newest,
/// `@2` for the one before it; `DIR/@1` for those of another directory. Errors: kNotFound with the nearest
/// names.
[[nodiscard]] Result<std::string> FindRun(const std::string& meant);

}  // namespace luff::catalog
