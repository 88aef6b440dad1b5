#include "server/open_runs.h"

#include <algorithm>

#include "luff/base/env.h"

namespace luff::server {
namespace {

constexpr std::int64_t kFreshNs = 100'000'000;  // requests of one picture come together

}  // namespace

HeatMap& OpenRun::Heat(const NamedStatistic& statistic, query::Mode mode) {
  const auto at = std::ranges::find_if(
      maps_, [&](const Kept& kept) { return kept.statistic == statistic.statistic && kept.mode == mode; });
  if (at != maps_.end()) {
    maps_.splice(maps_.begin(), maps_, at);
  } else {
    maps_.push_front({statistic.statistic, mode, std::make_unique<HeatMap>(statistic, mode)});
    if (maps_.size() > kMaxMaps) maps_.pop_back();
  }
  return *maps_.front().map;
}

std::shared_ptr<OpenRuns::Entry> OpenRuns::Find(const Key& key) {
  const MutexLock lock(mutex_);
  const auto at = std::ranges::find(entries_, key, &Place::first);
  if (at != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, at);
  } else {
    entries_.emplace_front(key, std::make_shared<Entry>());
    if (entries_.size() > limit_) entries_.pop_back();  // whoever uses it still holds it
  }
  return entries_.front().second;
}

Status OpenRuns::Use(const ListedRun& listed, const std::function<Status(OpenRun&)>& use) {
  const std::shared_ptr<Entry> entry = Find({listed.id, listed.path});
  const MutexLock lock(entry->mutex);
  const std::int64_t now = Env::Real().NowMonotonicNs();
  if (entry->run == nullptr) {
    LUFF_ASSIGN_OR_RETURN(auto trial, query::Trial::Open(listed.path));
    entry->run = std::make_unique<OpenRun>(std::move(trial));
    entry->refreshed_ns = now;
  } else if (now - entry->refreshed_ns > kFreshNs) {
    LUFF_RETURN_IF_ERROR(entry->run->trial().Refresh().status());
    entry->refreshed_ns = now;
  }
  return use(*entry->run);
}

void OpenRuns::Forget(const ListedRun& listed) {
  const MutexLock lock(mutex_);
  entries_.remove_if([&](const Place& place) { return place.first == Key(listed.id, listed.path); });
}

std::size_t OpenRuns::size() {
  const MutexLock lock(mutex_);
  return entries_.size();
}

}  // namespace luff::server
