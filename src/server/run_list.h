#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/directory_id.h"
#include "catalog/catalog.h"
#include "luff/base/mutex.h"
#include "luff/base/result.h"
#include "server/message.h"
#include "server/patience.h"
#include "server/secrets.h"

/// The runs below the directories that are served, and their ids.
namespace luff::server {

struct ListedRun {
  std::string id;    // 32 hexadecimal digits: the run's own, or a hash of its path where that is not unique
  std::string path;  // absolute
  std::string name;  // the path below the directory that is served
  std::string card;  // JSON
  std::string brief = {};  // JSON members: what the list shows of the card
  std::size_t below = 0;   // how many names of the path lie below the directory that is served
};
/// The directory of a run now, reached without links below the directory that is served. Errors: kNotFound,
/// also where a link or another run has taken its place.
[[nodiscard]] Result<DirectoryId> PlaceOf(const ListedRun& run);
/// Whether what is at the run's path now says that it is that run.
[[nodiscard]] bool IsStill(const ListedRun& run);

/// A run that is not listed, by its absolute path. Errors: those of catalog::ReadCard.
[[nodiscard]] Result<ListedRun> DescribeRun(const std::string& path);

/// **Thread-safe.** Paths never come from requests: only ids do.
class RunList {
 public:
  /// `roots`: absolute directories, of runs or runs themselves, which may still be empty. `index`: file of
  /// the catalogue's index, "" for none.
  RunList(std::vector<std::string> roots, std::string index)
      : roots_(std::move(roots)),
        index_(std::move(index)) {}

  /// Makes the card of a run that is open; false if it is not.
  using OpenCard = std::function<bool(const ListedRun& run, catalog::Card* card)>;
  /// Where cards of runs that are open come from; set before the list is used.
  void CardsFrom(OpenCard open) { open_ = std::move(open); }

  /// Looks for runs again. Returns true if the list or a card has changed.
  [[nodiscard]] Result<bool> Refresh() LUFF_EXCLUDES(mutex_);
  [[nodiscard]] std::vector<ListedRun> All() const LUFF_EXCLUDES(mutex_);
  [[nodiscard]] std::optional<ListedRun> Find(std::string_view id) const LUFF_EXCLUDES(mutex_);
  /// The answer of GET runs: those that the visitor may see.
  [[nodiscard]] Response List(const Request& request, const Visitor& visitor) LUFF_EXCLUDES(mutex_);
  /// The answer of GET fields: names that questions may have, of the runs that the visitor may see.
  [[nodiscard]] Response Fields(const Visitor& visitor) const LUFF_EXCLUDES(mutex_);

 private:
  [[nodiscard]] Response Page(const std::vector<catalog::Answer>& answers, std::size_t first,
                              std::size_t last, const Request& request, const Visitor& visitor) const
      LUFF_EXCLUDES(mutex_);
  /// How many of the runs below `root` that are listed the visitor may see; null for one who may see all.
  [[nodiscard]] std::size_t CountOf(const std::string& root, const Visitor* visitor) const
      LUFF_EXCLUDES(mutex_);
  /// Whether the list has the run with this card: it may have changed, or another may have taken its place.
  [[nodiscard]] bool Holds(const std::string& path, const std::string& card) const LUFF_EXCLUDES(mutex_);

  /// How many names of a run's path lie below the directory that is served.
  [[nodiscard]] std::size_t NamesBelow(const std::string& path) const;
  /// Asks the catalogue, which reads again what has changed and is due.
  [[nodiscard]] Result<catalog::Answer> Ask(catalog::Question question);

  const std::vector<std::string> roots_;
  const std::string index_;
  OpenCard open_;
  Patience patience_;
  mutable Mutex mutex_;
  std::map<std::string, ListedRun> by_path_ LUFF_GUARDED_BY(mutex_);
  std::map<std::string, std::string, std::less<>> path_of_ LUFF_GUARDED_BY(mutex_);  // by id
};

}  // namespace luff::server
