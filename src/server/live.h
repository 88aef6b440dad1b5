#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "luff/base/mutex.h"
#include "server/open_runs.h"
#include "server/run_list.h"

/// What event streams tell (docs/spec/http-api.md, section 6).
namespace luff::server {

/// What one stream was told last.
struct Told {
  std::vector<std::string> runs;  // that it asked for, ids
  std::map<std::string, std::uint64_t> versions;
  std::uint64_t list = 0;
};

/// **Thread-safe.** Looks at the runs that somebody watches, however many streams there are.
class Live {
 public:
  Live(RunList* list, OpenRuns* runs) : list_(list), runs_(runs) {}
  /// Runs that one stream may watch.
  static constexpr std::size_t kMaxWatched = 32;

  void Watch(const Told& told) LUFF_EXCLUDES(mutex_);
  void Leave(const Told& told) LUFF_EXCLUDES(mutex_);
  [[nodiscard]] bool anybody() const LUFF_EXCLUDES(mutex_);
  [[nodiscard]] std::size_t streams() const LUFF_EXCLUDES(mutex_);

  /// Looks at the watched runs, and now and then at the list, more often while somebody looks at it. Called
  /// four times a second, by one thread at a time.
  void Look() LUFF_EXCLUDES(mutex_);
  /// The events that a stream has not been told yet; "" if there are none.
  [[nodiscard]] std::string News(Told* told) const LUFF_EXCLUDES(mutex_);

 private:
  struct Watched {
    std::size_t streams = 0;
    std::uint64_t version = 0;
    std::string event;  // JSON
    std::uint64_t findings_stamp = 0;
    std::uint64_t findings = 0, stops = 0;
  };
  void LookAt(const std::string& id) LUFF_EXCLUDES(mutex_);

  RunList* const list_;
  OpenRuns* const runs_;
  mutable Mutex mutex_;
  std::map<std::string, Watched> watched_ LUFF_GUARDED_BY(mutex_);
  std::size_t streams_ LUFF_GUARDED_BY(mutex_) = 0;
  std::size_t listing_ LUFF_GUARDED_BY(mutex_) = 0;  // of them, those that watch no run: they show the list
  std::uint64_t list_version_ LUFF_GUARDED_BY(mutex_) = 1;
  std::int64_t listed_ns_ = 0;  // of Look() alone
};

}  // namespace luff::server
