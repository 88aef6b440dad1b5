#include "server/metrics.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "luff/base/work_bound.h"

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace luff::server {
namespace {

constexpr double kShownS = 15 * 60;

/// Whether a run is alive, or has ended a moment ago.
bool IsShown(const ListedRun& listed, std::int64_t now_unix_ns) {
  const nlohmann::json card = TryParseJson(listed.card);
  if (!card.is_object()) return false;
  if (TextMember(card, "outcome") == "running") return true;
  const auto number = [&](const char* name) {
    const auto at = card.find(name);
    return at != card.end() && at->is_number() ? at->get<double>() : 0;
  };
  return static_cast<double>(now_unix_ns) / 1e9 - number("begun_unix_ns") / 1e9 - number("took_s") <= kShownS;
}

}  // namespace

std::string PageOf(const std::string& public_url, const std::string& id) {
  if (public_url.empty()) return "";
  return fmt::format("{}{}#/run/{}", public_url, public_url.ends_with('/') ? "" : "/", id);
}

RunMetrics* Metrics::Find(const ListedRun& run) {
  Kept& kept = kept_[run.path];
  kept.used = ++uses_;
  if (kept.metrics != nullptr && kept.id == run.id) return kept.metrics.get();
  auto opened = RunMetrics::Open(run.path);
  if (!opened.ok()) {
    kept_.erase(run.path);
    return nullptr;
  }
  kept.id = run.id;
  kept.metrics = std::move(*opened);
  if (kept_.size() > kMaxOpen)
    kept_.erase(std::ranges::min_element(kept_, {}, [](const auto& entry) { return entry.second.used; }));
  return kept_.at(run.path).metrics.get();
}

void Metrics::Put(const std::vector<ListedRun>& runs, std::int64_t now_unix_ns, Exposition* to) {
  std::map<std::string, std::size_t> named;
  for (const ListedRun& run : runs) ++named[run.name.substr(0, Exposition::kMaxLabelBytes)];
  const MutexLock lock(mutex_);
  std::size_t shown = 0, dropped = 0;
  for (const ListedRun& run : runs) {
    if (!IsShown(run, now_unix_ns)) continue;
    // What there is no time for comes with the next answer: those that were read are kept.
    const bool late = !WorkBound::GoOn().ok();
    const WorkBound unbounded(nullptr);
    RunMetrics* const metrics = late || shown == kMaxRuns || !PlaceOf(run).ok() ? nullptr : Find(run);
    if (metrics == nullptr) {
      ++dropped;
      continue;
    }
    ++shown;
    // Two runs may be called the same: no two series may have the same labels.
    const bool alone = named[run.name.substr(0, Exposition::kMaxLabelBytes)] == 1;
    const std::string label =
        alone ? run.name : fmt::format("{}~{}", run.name.substr(0, 96), run.id.substr(0, 16));
    metrics->Put(run, label, PageOf(options_.public_url, run.id), options_.tensors, now_unix_ns, to);
  }
  to->Put(Metric::kRunsDropped, {}, static_cast<double>(dropped));
}

void RequestCounts::Count(int status, std::int64_t ns) noexcept {
  const auto place = static_cast<std::size_t>(std::clamp(status / 100, 2, 5) - 2);
  by_class_[place].fetch_add(1, std::memory_order_relaxed);
  ns_.fetch_add(ns, std::memory_order_relaxed);
}

void RequestCounts::Put(Exposition* to) const {
  for (std::size_t i = 0; i < by_class_.size(); ++i)
    to->Put(Metric::kServeRequests, {{"code", fmt::format("{}xx", i + 2)}},
            static_cast<double>(by_class_[i].load(std::memory_order_relaxed)));
  to->Put(Metric::kServeRequestSeconds, {}, static_cast<double>(ns_.load(std::memory_order_relaxed)) / 1e9);
}

}  // namespace luff::server
