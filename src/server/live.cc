#include "server/live.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "luff/base/env.h"
#include "luff/rules/kept_findings.h"
#include "server/run_api.h"

namespace luff::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kListEveryNs = 2'000'000'000;
// While every stream watches runs: of the list their pages show labels only.
constexpr std::int64_t kListSeldomNs = 10'000'000'000;
constexpr std::int64_t kOverviewNs = 200'000'000;  // of a look: while an overview is not complete

}  // namespace

void Live::Watch(const Told& told) {
  const MutexLock lock(mutex_);
  ++streams_;
  listing_ += told.runs.empty() ? 1 : 0;
  for (const std::string& id : told.runs) ++watched_[id].streams;
}

void Live::Leave(const Told& told) {
  const MutexLock lock(mutex_);
  --streams_;
  listing_ -= told.runs.empty() ? 1 : 0;
  for (const std::string& id : told.runs) {
    const auto at = watched_.find(id);
    if (at != watched_.end() && --at->second.streams == 0) watched_.erase(at);
  }
}

bool Live::anybody() const {
  const MutexLock lock(mutex_);
  return streams_ != 0;
}

std::size_t Live::streams() const {
  const MutexLock lock(mutex_);
  return streams_;
}

void Live::LookAt(const std::string& id) {
  const auto listed = list_->Find(id);
  if (!listed) return;
  Watched known;
  {
    const MutexLock lock(mutex_);
    const auto at = watched_.find(id);
    if (at == watched_.end()) return;
    known = at->second;
  }
  const std::uint64_t stamp = rules::FindingsStampOf(listed->path);
  if (stamp != known.findings_stamp) {
    known.findings = known.stops = 0;
    for (const rules::Finding& finding : rules::FindingsOfRun(listed->path).findings) {
      if (finding.healed || !finding.leader.empty()) continue;
      ++known.findings;
      known.stops += finding.severity == rules::Severity::kStop ? 1 : 0;
    }
    known.findings_stamp = stamp;
  }
  std::string event;
  const Status looked = runs_->Use(*listed, [&](OpenRun& run) {
    const query::Trial& trial = run.trial();
    const std::size_t count = trial.step_count();
    std::int64_t heartbeat = 0;
    for (const query::WorkerInfo& worker : trial.workers())
      heartbeat = std::max(heartbeat, worker.heartbeat_unix_ns);
    event = JsonText(Json{{"id", id},
                          {"state", trial.outcome().state},  // as the run says: any text
                          {"step_count", count},
                          {"last_step", count == 0 ? -1 : trial.step_at(count - 1).global_step},
                          {"modes", ModesOf(trial)},
                          {"tensors", trial.tensor_count()},
                          {"findings", known.findings},
                          {"stop", known.stops},
                          {"heartbeat_unix_ns", heartbeat}});
    return Status::Ok();
  });
  if (!looked.ok()) {
    runs_->Forget(*listed);
    event = JsonText(Json{{"id", id}, {"state", "unreadable"}});
  }
  const MutexLock lock(mutex_);
  const auto at = watched_.find(id);
  if (at == watched_.end()) return;
  at->second.findings_stamp = known.findings_stamp;
  at->second.findings = known.findings;
  at->second.stops = known.stops;
  if (at->second.event == event) return;
  if (!looked.ok()) listed_ns_ = 0;  // it may be elsewhere by now: the next look sees where
  at->second.event = std::move(event);
  ++at->second.version;
}

void Live::Look() {
  const std::int64_t now = Env::Real().NowMonotonicNs();
  std::int64_t every = kListSeldomNs;
  {
    const MutexLock lock(mutex_);
    if (listing_ > 0) every = kListEveryNs;
  }
  if (now - listed_ns_ > every) {
    const auto changed = list_->Refresh();
    listed_ns_ = Env::Real().NowMonotonicNs();
    if (changed.ok() && *changed) {
      const MutexLock lock(mutex_);
      ++list_version_;
    }
  }
  std::vector<std::string> ids;
  {
    const MutexLock lock(mutex_);
    for (const auto& [id, watched] : watched_) ids.push_back(id);
  }
  for (const std::string& id : ids) LookAt(id);
  runs_->ReadOverviews(kOverviewNs);
}

std::string Live::News(Told* told) const {
  const MutexLock lock(mutex_);
  std::string news;
  for (const std::string& id : told->runs) {
    const auto at = watched_.find(id);
    if (at == watched_.end() || at->second.version == told->versions[id]) continue;
    told->versions[id] = at->second.version;
    news += fmt::format("id: {}\nevent: run\ndata: {}\n\n", at->second.version, at->second.event);
  }
  if (told->list != list_version_) {
    if (told->list != 0) news += fmt::format("id: {}\nevent: runs\ndata: {{}}\n\n", list_version_);
    told->list = list_version_;
  }
  return news;
}

}  // namespace luff::server
