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
#include "server/overview_cache.h"
#include "server/run_list.h"
#include "server/trace_summaries.h"

/// Runs that are open. Each is used by one thread at a time, since a trial fills caches.
namespace luff::server {

/// A run while it is in use.
class OpenRun {
 public:
  /// `cache`: of overviews, outlives it; null for none. `id`: of the run.
  explicit OpenRun(std::unique_ptr<query::Trial> trial, std::string id = {},
                   const OverviewCache* cache = nullptr)
      : trial_(std::move(trial)),
        id_(std::move(id)),
        cache_(cache) {}
  /// Keeps overviews that took work.
  ~OpenRun();
  OpenRun(const OpenRun&) = delete;
  OpenRun& operator=(const OpenRun&) = delete;
  [[nodiscard]] query::Trial& trial() noexcept { return *trial_; }

  [[nodiscard]] TraceSummaries& traces() noexcept { return traces_; }

  /// The heat map of a statistic, as far as the overview has been read.
  [[nodiscard]] HeatMap& Heat(const NamedStatistic& statistic, query::Mode mode);
  /// Reads one more part of the overview of a mode, or what is new. Returns true once it is complete.
  [[nodiscard]] Result<bool> ReadOverview(query::Mode mode);
  /// Reads a part of each overview that is in use and not complete; returns whether there was any.
  bool ReadOverviews();
  /// Memory that no file backs: of overviews, and roughly of the trial.
  [[nodiscard]] std::size_t memory_bytes() const;
  /// Whether somebody has asked for an overview that is not complete.
  [[nodiscard]] bool reading() const;

 private:
  struct Kept {
    explicit Kept(query::Mode mode) : overview(mode) {}
    Overview overview;
    std::vector<std::unique_ptr<HeatMap>> maps;
    std::size_t unsaved = 0;  // steps that were read since it was kept
    bool failed = false;
  };
  [[nodiscard]] Kept& Of(query::Mode mode);
  [[nodiscard]] Result<bool> Read(Kept& kept);
  void Save(Kept& kept);

  const std::unique_ptr<query::Trial> trial_;
  const std::string id_;
  const OverviewCache* const cache_;
  std::list<Kept> kept_;  // one for each mode that was asked for
  TraceSummaries traces_;
};

/// **Thread-safe.**
class OpenRuns {
 public:
  static constexpr std::size_t kMaxOpen = 128;
  static constexpr std::size_t kMaxBytes = std::size_t{320} << 20;  // all together
  /// `cache` outlives it; null for none.
  explicit OpenRuns(const OverviewCache* cache = nullptr, std::size_t limit = kMaxOpen,
                    std::size_t max_bytes = kMaxBytes)
      : cache_(cache),
        limit_(limit),
        max_bytes_(max_bytes) {}

  /// Calls `use` with a run, refreshed, while no other thread uses it. Opens it if need be; those
  /// unused for longest are then closed. Errors: those of opening and of `use`; kNotFound where another
  /// directory or a link has taken the place of the run's, also while it was used.
  [[nodiscard]] Status Use(const ListedRun& listed, const std::function<Status(OpenRun&)>& use)
      LUFF_EXCLUDES(mutex_);
  /// Calls `use` with a run that is open and that nobody uses now, refreshed. Returns whether it did.
  bool UseIfOpen(const ListedRun& listed, const std::function<void(OpenRun&)>& use) LUFF_EXCLUDES(mutex_);
  /// Reads on in overviews that somebody has asked for, for at most `ns` nanoseconds.
  void ReadOverviews(std::int64_t ns) LUFF_EXCLUDES(mutex_);
  /// Closes what is open of a run that is gone.
  void Forget(const ListedRun& listed) LUFF_EXCLUDES(mutex_);
  [[nodiscard]] std::size_t size() LUFF_EXCLUDES(mutex_);

 private:
  struct Entry {
    Mutex mutex;
    std::unique_ptr<OpenRun> run LUFF_GUARDED_BY(mutex);
    DirectoryId place LUFF_GUARDED_BY(mutex);
    std::int64_t refreshed_ns LUFF_GUARDED_BY(mutex) = 0;
  };
  /// Another run may have taken a path: the id belongs to the key.
  using Key = std::pair<std::string, std::string>;
  struct Place {
    Key key;
    std::shared_ptr<Entry> entry;
    std::size_t bytes = 0;  // when it was used last
    bool reading = false;   // of an overview
  };
  [[nodiscard]] std::shared_ptr<Entry> Find(const Key& key) LUFF_EXCLUDES(mutex_);
  static bool UseNow(Entry& entry, const ListedRun& listed, const std::function<void(OpenRun&)>& use)
      LUFF_REQUIRES(entry.mutex);
  /// Notes what a run holds, and closes the ones unused for longest if it is too much.
  void Note(const std::shared_ptr<Entry>& entry, std::size_t bytes, bool reading) LUFF_EXCLUDES(mutex_);

  const OverviewCache* const cache_;
  const std::size_t limit_, max_bytes_;
  Mutex mutex_;
  std::list<Place> entries_ LUFF_GUARDED_BY(mutex_);  // used last first
};

}  // namespace luff::server
