#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>

#include "luff/base/mutex.h"

namespace luff::server {

/// How often the cards of running runs are read again: so seldom that reading them takes about a hundredth of
/// a core, but at least once a minute, and not more often than every two seconds. A run that has ended is
/// read at once. **Thread-safe.**
class Patience {
 public:
  /// Asked before a run is read again that was running when it was read last. Returns true if its card need
  /// not be read yet; else it counts as read at `now_ns`.
  [[nodiscard]] bool Leave(const std::string& run, std::int64_t now_ns) LUFF_EXCLUDES(mutex_);
  /// Tells what reading `count` cards has cost.
  void Spent(std::int64_t cpu_ns, std::size_t count) LUFF_EXCLUDES(mutex_);
  [[nodiscard]] std::int64_t pause_ns() const LUFF_EXCLUDES(mutex_);

  static constexpr std::int64_t kLeastNs = 2'000'000'000, kMostNs = 60'000'000'000, kShare = 100;

 private:
  mutable Mutex mutex_;
  std::unordered_map<std::string, std::int64_t> read_ns_ LUFF_GUARDED_BY(mutex_);  // by path
  std::int64_t card_ns_ LUFF_GUARDED_BY(mutex_) = 0;                               // CPU time of one card
  std::int64_t pause_ns_ LUFF_GUARDED_BY(mutex_) = kLeastNs;
};

}  // namespace luff::server
