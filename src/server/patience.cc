#include "server/patience.h"

#include <algorithm>

#include "catalog/walk.h"

namespace luff::server {

bool Patience::Leave(const std::string& run, std::int64_t now_ns) {
  {
    const MutexLock lock(mutex_);
    const auto at = read_ns_.find(run);
    if (at != read_ns_.end() && now_ns - at->second < pause_ns_ && !catalog::HasEnded(run)) return true;
    read_ns_[run] = now_ns;
    if (read_ns_.size() % 1024 == 0) {  // of runs that have ended or are gone
      std::erase_if(read_ns_, [&](const auto& one) { return now_ns - one.second > 2 * kMostNs; });
    }
  }
  return false;
}

void Patience::Spent(std::int64_t cpu_ns, std::size_t count) {
  if (count == 0) return;
  const MutexLock lock(mutex_);
  card_ns_ = std::max(card_ns_ * 3 / 4, cpu_ns / static_cast<std::int64_t>(count));
  pause_ns_ = std::clamp(card_ns_ * static_cast<std::int64_t>(read_ns_.size()) * kShare, kLeastNs, kMostNs);
}

std::int64_t Patience::pause_ns() const {
  const MutexLock lock(mutex_);
  return pause_ns_;
}

}  // namespace luff::server
