#include "server/open_runs.h"

#include <algorithm>

#include "luff/base/env.h"
#include "luff/base/work_bound.h"

namespace luff::server {
namespace {

constexpr std::int64_t kFreshNs = 100'000'000;  // requests of one picture come together
constexpr std::size_t kPartRows = 2'000'000;    // read of an overview at a time: a tenth of a second
constexpr std::size_t kWorthRows = 1'000'000;   // less is read again nearly as quickly as from a file

}  // namespace

OpenRun::~OpenRun() {
  for (Kept& kept : kept_) {
    if (kept.unsaved * kept.overview.tensors() >= kWorthRows) Save(kept);
  }
}

OpenRun::Kept& OpenRun::Of(query::Mode mode) {
  for (Kept& kept : kept_) {
    if (kept.overview.mode() == mode) return kept;
  }
  kept_.emplace_back(mode);
  if (cache_ != nullptr) cache_->Load(id_, *trial_, &kept_.back().overview);
  return kept_.back();
}

HeatMap& OpenRun::Heat(const NamedStatistic& statistic, query::Mode mode) {
  Kept& kept = Of(mode);
  for (const auto& map : kept.maps) {
    if (map->statistic().statistic == statistic.statistic) return *map;
  }
  kept.maps.push_back(std::make_unique<HeatMap>(&kept.overview, statistic));
  return *kept.maps.back();
}

void OpenRun::Save(Kept& kept) {
  if (cache_ != nullptr) cache_->Save(id_, *trial_, &kept.overview);
  kept.unsaved = 0;
}

Result<bool> OpenRun::Read(Kept& kept) {
  const WorkBound unbounded(nullptr);  // a part is short, and kept for all who ask later
  if (kept.overview.Covers(*trial_)) return true;
  const auto steps = [&] { return kept.overview.state().to - kept.overview.state().from; };
  const std::size_t before = steps();
  const std::size_t tensors = std::max<std::size_t>(trial_->tensor_count(), 1);
  const auto read = kept.overview.Read(*trial_, std::max<std::size_t>(kPartRows / tensors, 1));
  kept.failed = !read.ok();
  if (!read.ok()) return read;
  const std::size_t now = steps();
  kept.unsaved = now < before ? now : kept.unsaved + now - before;
  // A file of a growing run is written again, whole, when it has doubled.
  if (*read && kept.unsaved * kept.overview.tensors() >= kWorthRows && kept.unsaved >= now / 2) Save(kept);
  return read;
}

Result<bool> OpenRun::ReadOverview(query::Mode mode) { return Read(Of(mode)); }

bool OpenRun::ReadOverviews() {
  bool any = false;
  for (Kept& kept : kept_) {
    if (kept.failed || kept.overview.Covers(*trial_)) continue;
    any = true;
    (void)Read(kept).ok();  // whoever asks for the map is told
  }
  return any;
}

bool OpenRun::reading() const {
  return std::ranges::any_of(
      kept_, [&](const Kept& kept) { return !kept.failed && !kept.overview.Covers(*trial_); });
}

std::size_t OpenRun::memory_bytes() const {
  // Tables of steps and names, and of segments of 8 MiB: about 100,000 summaries each.
  const std::size_t steps = trial_->step_count();
  const std::size_t tensors = trial_->tensor_count();
  std::size_t bytes = 64 * steps + 512 * tensors + steps * tensors / 6;
  for (const Kept& kept : kept_) bytes += kept.overview.anonymous_bytes();
  return bytes;
}

std::shared_ptr<OpenRuns::Entry> OpenRuns::Find(const Key& key) {
  std::list<Place> closed;  // after the lock: what they have read may be kept
  const MutexLock lock(mutex_);
  const auto at = std::ranges::find(entries_, key, &Place::key);
  if (at != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, at);
  } else {
    entries_.push_front({key, std::make_shared<Entry>()});
    if (entries_.size() > limit_) closed.splice(closed.begin(), entries_, std::prev(entries_.end()));
  }
  return entries_.front().entry;
}

void OpenRuns::Note(const std::shared_ptr<Entry>& entry, std::size_t bytes, bool reading) {
  std::list<Place> closed;  // after the lock
  const MutexLock lock(mutex_);
  const auto at = std::ranges::find(entries_, entry, &Place::entry);
  if (at == entries_.end()) return;
  at->bytes = bytes;
  at->reading = reading;
  std::size_t all = 0;
  for (const Place& place : entries_) all += place.bytes;
  while (all > max_bytes_ && entries_.size() > 1 && entries_.back().entry != entry) {
    all -= entries_.back().bytes;
    closed.splice(closed.begin(), entries_, std::prev(entries_.end()));
  }
}

Status OpenRuns::Use(const ListedRun& listed, const std::function<Status(OpenRun&)>& use) {
  const std::shared_ptr<Entry> entry = Find({listed.id, listed.path});
  std::size_t bytes = 0;
  bool reading = false;
  Status used;
  {
    const MutexLock lock(entry->mutex);
    LUFF_RETURN_IF_ERROR(WorkBound::GoOn());  // it may have waited for others
    LUFF_ASSIGN_OR_RETURN(const DirectoryId place, PlaceOf(listed));
    if (place != entry->place) entry->run = nullptr;
    const std::int64_t now = Env::Real().NowMonotonicNs();
    if (entry->run == nullptr) {
      if (!IsStill(listed)) return NotFound("another run has taken the place of the run: " + listed.path);
      entry->place = place;
      LUFF_ASSIGN_OR_RETURN(auto trial, query::Trial::Open(listed.path));
      entry->run = std::make_unique<OpenRun>(std::move(trial), listed.id, cache_);
      entry->refreshed_ns = now;
    } else if (now - entry->refreshed_ns > kFreshNs) {
      LUFF_RETURN_IF_ERROR(entry->run->trial().Refresh().status());
      entry->refreshed_ns = now;
    }
    used = use(*entry->run);
    // What it has read by its path was the run's only if the path has led there all the time.
    const auto after = PlaceOf(listed);
    if (used.ok() && (!after.ok() || *after != place))
      used = NotFound("the run was moved or replaced while it was read: " + listed.path);
    bytes = entry->run->memory_bytes();
    reading = entry->run->reading();
  }
  Note(entry, bytes, reading);
  return used;
}

bool OpenRuns::UseNow(Entry& entry, const ListedRun& listed, const std::function<void(OpenRun&)>& use) {
  const auto here = [&listed, place = entry.place] {
    const auto now = PlaceOf(listed);
    return now.ok() && *now == place;
  };
  if (entry.run == nullptr || !here() || !entry.run->trial().Refresh().ok()) return false;
  entry.refreshed_ns = Env::Real().NowMonotonicNs();
  use(*entry.run);
  return here();
}

bool OpenRuns::UseIfOpen(const ListedRun& listed, const std::function<void(OpenRun&)>& use) {
  std::shared_ptr<Entry> entry;
  {
    const MutexLock lock(mutex_);
    const auto at = std::ranges::find(entries_, Key(listed.id, listed.path), &Place::key);
    if (at == entries_.end()) return false;
    entry = at->entry;
  }
  if (!entry->mutex.TryLock()) return false;
  const bool used = UseNow(*entry, listed, use);
  entry->mutex.Unlock();
  return used;
}

void OpenRuns::ReadOverviews(std::int64_t ns) {
  std::vector<std::shared_ptr<Entry>> reading;
  {
    const MutexLock lock(mutex_);
    for (const Place& place : entries_) {
      if (place.reading) reading.push_back(place.entry);
    }
  }
  const std::int64_t end = Env::Real().NowMonotonicNs() + ns;
  for (const auto& entry : reading) {
    bool more = true;
    std::size_t bytes = 0;
    while (more && Env::Real().NowMonotonicNs() < end) {  // others may use it between parts
      const MutexLock lock(entry->mutex);
      more = entry->run != nullptr && entry->run->ReadOverviews();
      bytes = entry->run == nullptr ? 0 : entry->run->memory_bytes();
    }
    Note(entry, bytes, more);
  }
}

void OpenRuns::Forget(const ListedRun& listed) {
  std::list<Place> closed;  // after the lock
  const MutexLock lock(mutex_);
  const auto at = std::ranges::find(entries_, Key(listed.id, listed.path), &Place::key);
  if (at != entries_.end()) closed.splice(closed.begin(), entries_, at);
}

std::size_t OpenRuns::size() {
  const MutexLock lock(mutex_);
  return entries_.size();
}

}  // namespace luff::server
