#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "luff/base/mutex.h"
#include "luff/base/regex.h"
#include "server/exposition.h"
#include "server/run_list.h"
#include "server/run_metrics.h"

/// What machines are told of runs: docs/spec/metrics.md.
namespace luff::server {

struct MetricsOptions {
  std::string public_url;        // where people find the page, for links to it; "" for none
  std::optional<Regex> tensors;  // names of tensors with series of their own
};

/// Runs are told of while they are alive and for 15 minutes afterwards. **Thread-safe.**
class Metrics {
 public:
  static constexpr std::size_t kMaxRuns = 1000, kMaxOpen = 32;

  /// Call it before anything else.
  void Configure(MetricsOptions options) { options_ = std::move(options); }
  /// Puts the samples of runs, and how many have none.
  void Put(const std::vector<ListedRun>& runs, std::int64_t now_unix_ns, Exposition* to)
      LUFF_EXCLUDES(mutex_);

 private:
  struct Kept {
    std::string id;
    std::unique_ptr<RunMetrics> metrics;
    std::uint64_t used = 0;
  };
  [[nodiscard]] RunMetrics* Find(const ListedRun& run) LUFF_REQUIRES(mutex_);

  MetricsOptions options_;
  Mutex mutex_;
  std::map<std::string, Kept> kept_ LUFF_GUARDED_BY(mutex_);  // by path
  std::uint64_t uses_ LUFF_GUARDED_BY(mutex_) = 0;
};

/// The run's address on the page; "" without a public address.
[[nodiscard]] std::string PageOf(const std::string& public_url, const std::string& id);

/// Counts what a server answers. **Thread-safe.**
class RequestCounts {
 public:
  void Count(int status, std::int64_t ns) noexcept;
  void Put(Exposition* to) const;

 private:
  std::array<std::atomic<std::uint64_t>, 4> by_class_{};  // 2xx to 5xx
  std::atomic<std::int64_t> ns_{0};
};

}  // namespace luff::server
