#pragma once
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "luff/base/mutex.h"
#include "luff/query/trial.h"
#include "server/heat_map.h"
#include "server/run_list.h"

/// Runs that are open. Each is used by one thread at a time, since a trial fills caches.
namespace luff::server {

/// A run while it is in use.
class OpenRun {
 public:
  explicit OpenRun(std::unique_ptr<query::Trial> trial) : trial_(std::move(trial)) {}
  [[nodiscard]] query::Trial& trial() noexcept { return *trial_; }
  /// The heat map of a statistic, made if there is none yet; at most kMaxMaps are kept.
  [[nodiscard]] HeatMap& Heat(const NamedStatistic& statistic, query::Mode mode);

 private:
  static constexpr std::size_t kMaxMaps = 2;
  std::unique_ptr<query::Trial> trial_;
  struct Kept {
    Statistic statistic;
    query::Mode mode;
    std::unique_ptr<HeatMap> map;
  };
  std::list<Kept> maps_;  // used last first
};

/// **Thread-safe.**
class OpenRuns {
 public:
  /// A trial of a large run has about a thousand memory maps, and a process may have 65,530.
  explicit OpenRuns(std::size_t limit = 24) : limit_(limit) {}

  /// Calls `use` with a run, refreshed, while no other thread uses it. Opens it if need be; the
  /// one unused for longest is then closed. Errors: those of opening and of `use`.
  [[nodiscard]] Status Use(const ListedRun& listed, const std::function<Status(OpenRun&)>& use)
      LUFF_EXCLUDES(mutex_);
  /// Closes what is open of a run that is gone.
  void Forget(const ListedRun& listed) LUFF_EXCLUDES(mutex_);
  [[nodiscard]] std::size_t size() LUFF_EXCLUDES(mutex_);

 private:
  struct Entry {
    Mutex mutex;
    std::unique_ptr<OpenRun> run LUFF_GUARDED_BY(mutex);
    std::int64_t refreshed_ns LUFF_GUARDED_BY(mutex) = 0;
  };
  /// Another run may have taken a path: the id belongs to the key.
  using Key = std::pair<std::string, std::string>;
  using Place = std::pair<Key, std::shared_ptr<Entry>>;
  [[nodiscard]] std::shared_ptr<Entry> Find(const Key& key) LUFF_EXCLUDES(mutex_);

  const std::size_t limit_;
  Mutex mutex_;
  std::list<Place> entries_ LUFF_GUARDED_BY(mutex_);  // used last first
};

}  // namespace luff::server
