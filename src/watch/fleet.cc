#include "watch/fleet.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/json.h"
#include "base/output_file.h"
#include "base/text_escape.h"
#include "catalog/walk.h"
#include "luff/base/env.h"
#include "luff/store/owner.h"
#include "luff/store/reader.h"

namespace luff::watch {
namespace {

constexpr std::int64_t kMs = 1'000'000, kSecond = 1000 * kMs;
constexpr std::int64_t kLookNs = 500 * kMs, kIdleLookNs = 2 * kSecond;  // between looks at a run
constexpr std::int64_t kCopyLookNs = 5 * kSecond;  // at a copy, of which the door tells when it changes
constexpr std::int64_t kPollNs = kSecond, kBusyPollNs = 20 * kMs;  // between looks at its requests
constexpr std::int64_t kScanNs = kSecond;
constexpr std::int64_t kLongestTurnNs =
    kSecond / 2;                         // whoever waits for a signal or an answer waits for this
constexpr std::int64_t kScanShare = 50;  // a scan may take a fiftieth of the time
constexpr std::int64_t kFirstRetryNs = kSecond, kLongestRetryNs = 30 * kSecond;
constexpr std::int64_t kElsewhereNs = 5 * kSecond;
constexpr std::size_t kDearTurns = 3;
constexpr std::int64_t kSlowTurnNs = 200 * kMs;
constexpr std::int64_t kCheapStepNs = kMs;  // a run whose steps cost less goes back to the fast lane
constexpr std::size_t kBulk = 10, kEvery = 4;

std::int64_t Monotonic() { return Env::Real().NowMonotonicNs(); }

/// Whether a run began less than `seconds` ago, by the clock of the file system where it lies.
bool IsYoung(const std::string& path, double seconds) {
  struct stat info{};
  if (seconds <= 0 || lstat((path + "/run.json").c_str(), &info) != 0) return false;
  const double age =
      static_cast<double>(Env::Real().NowUnixNs()) * 1e-9 - static_cast<double>(info.st_mtim.tv_sec);
  return age >= 0 && age < seconds && !catalog::HasEnded(path);
}

}  // namespace

Fleet::Fleet(FleetOptions options, Voice voice, std::unique_ptr<store::SupervisorLock> lock, SaidLog said)
    : options_(std::move(options)),
      voice_(std::move(voice)),
      lock_(std::move(lock)),
      said_(std::move(said)),
      slow_thread_([this](const std::stop_token& stop) { SlowLane(stop); }) {}

Fleet::~Fleet() {
  slow_thread_.request_stop();
  if (slow_thread_.joinable()) slow_thread_.join();
}

Result<std::unique_ptr<Fleet>> Fleet::Open(FleetOptions options, Voice voice) {
  LUFF_RETURN_IF_ERROR(Env::Real().MakeDirectories(options.state));
  // Whoever writes there decides what was judged and said already.
  if (const Status owner = store::CheckOwner(options.state); !owner.ok())
    return owner.WithContext("where luff watch keeps what it said (--state names another place)");
  auto lock = store::SupervisorLock::Take(options.state);
  if (!lock.ok() && lock.status().code() == StatusCode::kAlreadyExists)
    return AlreadyExists(
        "another luff watch judges these runs; give shards (--shard 0/2), or another --state: " +
        options.state);
  if (!lock.ok()) return lock.status();
  LUFF_ASSIGN_OR_RETURN(SaidLog said, SaidLog::Open(options.state + "/findings.jsonl"));
  std::unique_ptr<Fleet> fleet(
      new Fleet(std::move(options), std::move(voice), std::move(*lock), std::move(said)));
  LUFF_RETURN_IF_ERROR(fleet->ReadJudged());
  return fleet;
}

std::string Fleet::NameOf(const std::string& path) const {
  return path.substr(std::min(path.size(), options_.base.size() + 1));
}

std::optional<bool> Fleet::IsOurs(const std::string& path) const {
  if (options_.shards <= 1) return true;
  const auto id = store::ReadRunId(path);
  if (!id.ok() && id.status().code() != StatusCode::kNotFound) return std::nullopt;
  const char digit = !id.ok() || id->empty() ? '0' : id->front();
  const auto value = static_cast<std::uint32_t>(digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
  return value % options_.shards == options_.shard;
}

// The first time, runs that ended long ago are none of ours: nobody waits for what rules say of them.
Status Fleet::ReadJudged() {
  const std::string path = options_.state + "/judged.jsonl";
  if (!Env::Real().Exists(path)) {
    LUFF_ASSIGN_OR_RETURN(const auto file, OutputFile::Create(path, Existing::kRefuse));
    const auto found = catalog::FindRuns(options_.base);
    if (!found.ok()) return found.status();
    for (const catalog::FoundRun& run : found->runs) {
      if (options_.earlier || !catalog::HasEnded(run.path)) continue;
      judged_[NameOf(run.path)] = run.stamp;
      LUFF_RETURN_IF_ERROR(
          file->Append(JsonText(nlohmann::json{{"run", NameOf(run.path)}, {"stamp", run.stamp}}) + "\n"));
    }
    return file->Commit();
  }
  LUFF_ASSIGN_OR_RETURN(const std::string text, ReadRegular(path, 1ULL << 30, 1));
  std::size_t from = 0;
  for (std::size_t end = 0; (end = text.find('\n', from)) != std::string::npos; from = end + 1) {
    const nlohmann::json line = TryParseJson(std::string_view(text).substr(from, end - from), {64 << 10, 4});
    if (line.is_object() && line.contains("stamp") && line["stamp"].is_number_unsigned())
      judged_[TextMember(line, "run")] = line["stamp"].get<std::uint64_t>();
  }
  if (from == text.size()) return Status::Ok();
  LUFF_ASSIGN_OR_RETURN(const auto file, Env::Real().Open(path, Env::OpenMode::kReadWrite));
  return file->Truncate(from);
}

// ---- Runs that come and go ----

void Fleet::Scan() {
  const std::int64_t begun = Monotonic();
  const auto found = catalog::FindRuns(options_.base);
  const std::int64_t listed = Monotonic(), took = listed - begun;
  if (!found.ok()) {
    voice_.say(fmt::format("luff: the runs cannot be listed: {}", found.status().message()));
    next_scan_ns_ = begun + 10 * kScanNs;
    return;
  }
  HearDoor();  // what is known of a run is told before its copy is there
  bool cut = false;
  for (const catalog::FoundRun& run : found->runs) {
    if (runs_.contains(run.path)) continue;
    if (options_.door != nullptr && !copies_.contains(NameOf(run.path))) continue;
    const auto judged = judged_.find(NameOf(run.path));
    if (judged != judged_.end() && judged->second == run.stamp) continue;
    if (!waiting_.contains(run.path)) {
      const std::optional<bool> ours = IsOurs(run.path);
      if (!ours) continue;  // it cannot be read now: whose it is tells the next look
      if (!*ours) {
        judged_[NameOf(run.path)] = run.stamp;  // another shard's, and of no interest until it changes
        continue;
      }
    }
    if (Monotonic() - listed > kLongestTurnNs) {
      (void)waiting_[run.path];  // in the next turn
      cut = true;
      continue;
    }
    TryOpen(run.path, listed);
  }
  std::set<std::string_view> there;
  for (const catalog::FoundRun& run : found->runs) there.insert(run.path);
  std::erase_if(waiting_, [&](const auto& one) { return !there.contains(one.first); });
  std::erase_if(told_failed_, [&](const std::string& path) { return !there.contains(path); });
  next_scan_ns_ = cut ? listed + kLongestTurnNs : begun + std::max(kScanNs, took * kScanShare);
}

void Fleet::TryOpen(const std::string& path, std::int64_t now) {
  Waiting& waiting = waiting_[path];
  if (now < waiting.next_ns || IsYoung(path, options_.grace_s)) return;
  auto opened = WatchedRun::Open(path, NameOf(path), options_.runs);
  if (opened.ok()) {
    waiting_.erase(path);
    std::shared_ptr<WatchedRun> run = std::move(*opened);
    std::vector<rules::Finding> open;
    std::map<std::string, rules::Finding> stand;
    for (const Event& event : run->TakeEvents()) {
      if (Tell(run.get(), event)) continue;
      if (event.finding.healed)
        stand.erase(event.finding.id);
      else
        stand[event.finding.id] = event.finding;
    }
    for (auto& [id, finding] : stand) open.push_back(std::move(finding));
    run->Resume(std::move(open));
    const std::string id = run->run_id();
    runs_.emplace(path, std::move(run));
    if (const auto told_of = offered_.find(id); told_of != offered_.end()) {
      for (const Told& told : std::exchange(told_of->second.early, {})) Take(told);
    }
    return;
  }
  const StatusCode code = opened.status().code();
  waiting.elsewhere = code == StatusCode::kAlreadyExists;
  waiting.pause_ns = std::clamp(2 * waiting.pause_ns, kFirstRetryNs, kLongestRetryNs);
  waiting.next_ns = now + (waiting.elsewhere ? kElsewhereNs : waiting.pause_ns);
  if (code == StatusCode::kUnavailable || waiting.elsewhere || std::exchange(waiting.told, true)) return;
  voice_.say(fmt::format("luff: {} is not judged: {}", NameOf(path), opened.status().message()));
  if (options_.door == nullptr) return;
  waiting_.erase(path);
  copies_.erase(NameOf(path));
  failed_in_bucket_.insert(NameOf(path));
}

void Fleet::Close(const std::string& path) {
  const auto at = runs_.find(path);
  if (at == runs_.end()) return;
  const std::string name = at->second->name();
  const std::string id = at->second->run_id();
  const std::size_t steps = options_.door != nullptr ? at->second->steps_done() : 0;
  const bool failed = !at->second->failure().ok();
  {
    const std::scoped_lock lock(lane_mutex_);
    std::erase(lane_, at->second);
  }
  runs_.erase(at);
  if (failed) {
    ++failed_;
    if (options_.door != nullptr) {
      offered_.erase(id);
      copies_.erase(id);
      failed_in_bucket_.insert(id);
      return;
    }
    Waiting& waiting = waiting_[path];
    waiting.told = true;
    waiting.pause_ns = kLongestRetryNs;
    waiting.next_ns = Monotonic() + kLongestRetryNs;
    return;
  }
  told_failed_.erase(path);
  const std::uint64_t stamp = catalog::StampOf(path);
  if (options_.door != nullptr) {  // the bucket knows
    offered_.erase(id);
    copies_.erase(id);
    judged_in_bucket_[id] = steps;
    return;
  }
  judged_[name] = stamp;
  const Status kept =
      AppendLine(options_.state + "/judged.jsonl", JsonText(nlohmann::json{{"run", name}, {"stamp", stamp}}));
  if (!kept.ok())
    voice_.say(fmt::format("luff: that {} is judged cannot be written: {}", name, kept.message()));
}

// ---- Turns ----

bool Fleet::Tell(WatchedRun* run, const Event& event) {
  const std::string key = RunKey(run->name(), run->run_id());
  if (options_.door != nullptr) Offer(run, event);
  if (!said_.IsNews(key, event.finding, event.event)) return false;
  if (options_.door == nullptr) Say(run, event);
  return true;
}

void Fleet::Say(WatchedRun* run, const Event& event) {
  const std::string key = RunKey(run->name(), run->run_id());
  // First the action, whose audit says that it was begun; a process killed in between does not act twice.
  run->Act(event, said_.Knows(key, event.finding));
  const Status said = said_.Say(run->name(), run->run_id(), event.finding, event.event);
  if (!said.ok() && !std::exchange(said_fails_, true))
    voice_.say(fmt::format("luff: findings cannot be written: {}", said.message()));
  voice_.found(run->name(), event.finding, event.event);
  numbers_.Found(event.finding.rule, event.finding.severity == rules::Severity::kStop ? "stop" : "warn");
}

void Fleet::Hear(WatchedRun* run) {
  for (const Event& event : run->TakeEvents()) static_cast<void>(Tell(run, event));
  for (const std::string& line : run->TakeSayings()) voice_.say(line);
  // All jobs of a base are begun alike: the first stands for the others.
  if (told_not_recorded_) return;
  const std::string lacks = run->TakeNotRecorded();
  told_not_recorded_ = !lacks.empty();
  if (told_not_recorded_)
    voice_.say(fmt::format("luff: {} was {} (told of the first such run alone)", run->name(), lacks));
}

void Fleet::MoveLanes(WatchedRun* run, const WatchedRun::Turn& turn) {
  run->dear_turns = turn.dear ? run->dear_turns + 1 : 0;
  if (run->dear_turns < kDearTurns) return;
  run->dear_turns = 0;
  run->slow = true;
  const std::scoped_lock lock(lane_mutex_);
  lane_.push_back(runs_.at(run->path()));
}

void Fleet::JudgeFast(std::int64_t now) {
  std::vector<WatchedRun*> due;
  for (auto& [path, run] : runs_) {
    if (run->cheap_again.exchange(false)) run->slow = false;
    if (!run->slow && run->next_look_ns <= now) due.push_back(run.get());
  }
  // The oldest step first; runs without a step that is known to wait come last.
  std::ranges::stable_sort(due, {}, [](const WatchedRun* run) {
    const std::int64_t oldest = run->oldest_unix_ns();
    return oldest == 0 ? INT64_MAX : oldest;
  });
  std::size_t number = 0;
  for (WatchedRun* run : due) {
    if (Monotonic() - now > kLongestTurnNs) break;  // those that are left have waited longer in the next turn
    const bool bulk = behind_ && (number++ + turn_) % kEvery == 0;
    const WatchedRun::Turn turn =
        run->Judge(bulk ? kBulk * kTurnSteps : kTurnSteps, bulk ? kBulk * kTurnNs : kTurnNs, &numbers_);
    run->idle_ns = turn.steps > 0 ? 0 : std::min(kIdleLookNs, run->idle_ns + kLookNs / 2);
    const std::int64_t pause = options_.door != nullptr ? kCopyLookNs : kLookNs + run->idle_ns;
    run->next_look_ns = turn.more ? 0 : now + (turn.soon ? kBusyPollNs : pause);
    MoveLanes(run, turn);
  }
}

void Fleet::SlowLane(const std::stop_token& stop) {
  std::size_t next = 0;
  while (!stop.stop_requested()) {
    std::shared_ptr<WatchedRun> run;
    {
      const std::scoped_lock lock(lane_mutex_);
      if (!lane_.empty()) run = lane_[next++ % lane_.size()];
    }
    if (run == nullptr) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      continue;
    }
    if (run->wanted()) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(kBusyPollNs));
      continue;
    }
    const WatchedRun::Turn turn = run->Judge(kTurnSteps, kSlowTurnNs, &numbers_);
    const bool cheap = !turn.more && (turn.steps == 0 ||
                                      turn.cost_ns / static_cast<std::int64_t>(turn.steps) < kCheapStepNs);
    if (cheap) {
      {
        const std::scoped_lock lock(lane_mutex_);
        std::erase(lane_, run);
      }
      run->cheap_again = true;
    } else if (!turn.more) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
}

void Fleet::TellNumbers(std::int64_t now) {
  if (now < next_numbers_ns_) return;
  next_numbers_ns_ = now + kSecond / 4;
  std::int64_t oldest = 0;
  slow_ = 0;
  for (const auto& [path, run] : runs_) {
    const std::int64_t one = run->oldest_unix_ns();
    if (one != 0 && (oldest == 0 || one < oldest)) oldest = one;
    slow_ += run->slow ? 1 : 0;
  }
  const double lag =
      oldest == 0 ? 0
                  : static_cast<double>(std::max<std::int64_t>(0, Env::Real().NowUnixNs() - oldest)) * 1e-9;
  if (lag <= kBehindS)
    behind_since_ns_ = -1;
  else if (behind_since_ns_ < 0)
    behind_since_ns_ = now;
  const bool behind =
      behind_since_ns_ >= 0 && static_cast<double>(now - behind_since_ns_) * 1e-9 >= kBehindForS;
  if (behind != std::exchange(behind_, behind)) {
    voice_.say(
        behind
            ? fmt::format("luff: behind: the oldest step that is not judged is {:.0f} s old; the backlog is "
                          "judged in bulk, nothing is skipped",
                          lag)
            : std::string("luff: no longer behind"));
  }
  RunStates states;
  states.live = runs_.size();
  states.ended = judged_.size();
  states.failed = failed_;
  for (const auto& [path, one] : waiting_) ++(one.elsewhere ? states.elsewhere : states.waiting);
  numbers_.SetRuns(states, lag, slow_, !behind);
}

int Fleet::Turn() {
  ++turn_;
  std::int64_t now = Monotonic();
  if (now >= next_scan_ns_) Scan();
  HearDoor();
  now = Monotonic();
  JudgeFast(now);
  std::vector<std::string> over;
  std::int64_t next = next_scan_ns_;
  for (auto& [path, run] : runs_) {
    if (run->has_events()) Hear(run.get());
    if (run->busy() || now >= run->next_poll_ns) {
      run->Poll();
      run->next_poll_ns = now + (run->busy() || run->wanted() ? kBusyPollNs : kPollNs);
      Hear(run.get());
    }
    next = std::min(next, run->next_poll_ns);
    if (!run->slow) next = std::min(next, run->next_look_ns);
    if (!run->at_end()) continue;
    Hear(run.get());  // its last words
    if (const Status failure = run->failure(); !failure.ok()) {
      if (told_failed_.insert(path).second)
        voice_.say(fmt::format("luff: {} is judged no further: {}", run->name(), failure.message()));
      if (run->settled() && IsTold(run->run_id())) over.push_back(path);
    } else if (run->over() && IsTold(run->run_id())) {
      over.push_back(path);
    }
  }
  for (const std::string& path : over) Close(path);
  TalkToDoor();
  TellNumbers(now);
  const std::int64_t longest = options_.door == nullptr ? 500 : 100;  // the door does not wake us
  return static_cast<int>(std::clamp<std::int64_t>((next - Monotonic()) / kMs, 1, longest));
}

void Fleet::AddTo(std::vector<pollfd>* fds) const {
  for (const auto& [path, run] : runs_) {
    if (run->busy()) run->AddTo(fds);
  }
}

void Fleet::ChildEnded(pid_t pid, const ExitState& state) {
  for (const auto& [path, run] : runs_) {
    if (run->ChildEnded(pid, state)) return;
  }
}

void Fleet::ReapChildren() {
  for (const auto& [path, run] : runs_) {
    if (run->busy()) run->ReapChildren();
  }
}

void Fleet::Leave(double seconds) {
  const std::int64_t until = Monotonic() + static_cast<std::int64_t>(seconds * 1e9);
  slow_thread_.request_stop();
  for (auto& [path, run] : runs_) Hear(run.get());
  if (options_.door != nullptr) LeaveDoor(seconds / 3);
  for (auto& [path, run] : runs_) run->Cancel();
  for (auto& [path, run] : runs_) {
    if (Monotonic() >= until) break;  // an older checkpoint: the next process judges some steps again
    numbers_.Checkpointed(run->Leave().ok());
  }
  if (options_.door != nullptr)
    options_.door->Leave(std::max(0.5, static_cast<double>(until - Monotonic()) * 1e-9));
}

}  // namespace luff::watch
