#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/format.h"
#include "luff/base/env.h"
#include "watch/fleet.h"

/// Runs in a bucket: what is found is offered to the door, and said, and acted on, once it stands in a commit
/// of ours.
namespace luff::watch {
namespace {

constexpr std::size_t kMostLines = 500, kMostBytes = 256 << 10;  // in one request to the door
constexpr auto kPause = std::chrono::milliseconds(20);

}  // namespace

void Fleet::Offer(WatchedRun* run, const Event& event) {
  Offered& offered = offered_[run->run_id()];
  std::string line = rules::ToJson(event.finding, event.event);
  const bool there = std::ranges::any_of(offered.waiting, [&](const auto& one) { return one.first == line; });
  if (!there) offered.waiting.emplace_back(std::move(line), event);
}

bool Fleet::IsTold(const std::string& run_id) const {
  const auto at = offered_.find(run_id);
  return at == offered_.end() || (at->second.waiting.empty() && at->second.acting.empty());
}

void Fleet::HearDoor() {
  if (options_.door == nullptr) return;
  for (const Told& told : options_.door->Hear()) {
    if (!told.say.empty()) voice_.say("luff: " + told.say);
    if (told.idle) door_idle_ = *told.idle;
    numbers_.AskedBucket(told.asked);
    for (const std::string& id : told.news) {
      const auto at = runs_.find(options_.base + "/" + id);
      if (at != runs_.end()) at->second->next_look_ns = at->second->idle_ns = 0;
    }
    if (told.run_id.empty()) continue;
    if (told.open.value_or(false)) copies_.insert(told.run_id);
    if (told.open && !*told.open) Drop(told.run_id);
    Take(told);
  }
  if (!options_.door->BegunAnew()) return;
  door_idle_ = false;
  for (auto& [id, offered] : offered_) offered.sent = 0;
  for (auto& [path, run] : runs_) {
    run->ForgetAsked();
    run->next_look_ns = 0;  // what the process before had to tell may be lost
  }
}

void Fleet::Drop(const std::string& run_id) {
  copies_.erase(run_id);
  const auto at = runs_.find(options_.base + "/" + run_id);
  if (const auto told_of = offered_.find(run_id); told_of != offered_.end()) {
    // What is acted on, and is not noted, another one does a minute later.
    if (at != runs_.end() && !at->second->busy() && !at->second->asking()) {
      for (const std::uint64_t number : told_of->second.acting)
        static_cast<void>(options_.door->Done(run_id, number));
    }
    offered_.erase(told_of);
  }
  if (at == runs_.end()) return;
  {
    const std::scoped_lock lock(lane_mutex_);
    std::erase(lane_, at->second);
  }
  runs_.erase(at);
}

void Fleet::Take(const Told& told) {
  const auto at = runs_.find(options_.base + "/" + told.run_id);
  if (at == runs_.end()) {
    if (told.act) {
      offered_[told.run_id].early.push_back(told);
    } else {
      for (const std::string& line : told.lines) {
        if (const auto parsed = rules::ParseFindingUntrusted(line); parsed.ok())
          said_.KnowOfOthers(RunKey(told.run_id, told.run_id), parsed->first, parsed->second, told.number);
      }
    }
    return;
  }
  WatchedRun* run = at->second.get();
  Offered& offered = offered_[told.run_id];
  if (told.again) run->ForgetAsked();
  const std::string key = RunKey(run->name(), run->run_id());
  for (const std::string& line : told.lines) {
    const auto one = std::ranges::find(offered.waiting, line,
                                       [](const auto& of) -> const std::string& { return of.first; });
    if (one != offered.waiting.end()) {
      if (static_cast<std::size_t>(one - offered.waiting.begin()) < offered.sent) --offered.sent;
      offered.waiting.erase(one);
    }
    const auto parsed = rules::ParseFindingUntrusted(line);
    if (!parsed.ok()) continue;
    const Event event{parsed->first, parsed->second};
    if (!told.act) {
      said_.KnowOfOthers(key, event.finding, event.event, told.number);
    } else if (said_.IsOursToSay(key, event.finding, event.event, told.number)) {
      Say(run, event);
    } else {  // said, and perhaps not asked for: a process was killed in between
      run->AskAgain(event);
    }
  }
  const bool known = std::ranges::find(offered.acting, told.number) != offered.acting.end();
  if (told.act && told.number != 0 && !known) offered.acting.push_back(told.number);
}

void Fleet::TalkToDoor() {
  if (options_.door == nullptr) return;
  for (auto& [id, offered] : offered_) {
    std::vector<std::string> lines;
    std::size_t bytes = 0;
    for (std::size_t i = offered.sent; i < offered.waiting.size(); ++i) {
      bytes += offered.waiting[i].first.size();
      if (!lines.empty() && (lines.size() >= kMostLines || bytes > kMostBytes)) break;
      lines.push_back(offered.waiting[i].first);
    }
    if (!lines.empty() && options_.door->Commit(id, lines)) offered.sent += lines.size();
    const auto at = runs_.find(options_.base + "/" + id);
    if (at == runs_.end() || at->second->busy() || at->second->asking()) continue;
    std::erase_if(offered.acting, [&](std::uint64_t number) { return options_.door->Done(id, number); });
  }
  std::erase_if(judged_in_bucket_,
                [&](const auto& one) { return options_.door->Judged(one.first, one.second); });
  std::erase_if(failed_in_bucket_, [&](const std::string& id) { return options_.door->Failed(id); });
}

// What was found, and is not in the bucket yet, is committed, and what it asks for is asked for.
void Fleet::LeaveDoor(double seconds) {
  const std::int64_t until = Env::Real().NowMonotonicNs() + static_cast<std::int64_t>(seconds * 1e9);
  const auto told = [&] {
    return std::ranges::all_of(offered_, [&](const auto& one) { return IsTold(one.first); });
  };
  do {
    TalkToDoor();
    HearDoor();
    for (auto& [path, run] : runs_) {
      if (!IsTold(run->run_id())) run->Poll();
    }
    if (told()) break;
    std::this_thread::sleep_for(kPause);
  } while (Env::Real().NowMonotonicNs() < until);
  TalkToDoor();
}

}  // namespace luff::watch
