#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "luff/actions/coordinator.h"
#include "luff/actions/host_log.h"
#include "luff/rules/finding.h"

/// Several hosts without a common file system: a simulation of their log, their supervisors and ranks, in
/// which links break, puts are repeated and supervisors die.
namespace luff::actions::hosts_test {

constexpr std::int64_t kMs = 1'000'000, kTickMs = 100;
constexpr std::int64_t kUnixNs = 1'800'000'000'000'000'000;
inline const std::string kJob(32, 'a');

/// "Signs" by a word in front.
class WordSeal final : public HostSeal {
 public:
  Result<std::string> Seal(const std::string& text) override { return "signed:" + text; }
  Result<std::string> Open(std::string_view object, std::int64_t) override {
    if (!object.starts_with("signed:")) return FailedPrecondition("it is not signed");
    return std::string(object.substr(7));
  }
  std::string KeyedHash(const std::string& text) const override {
    const std::string half = rules::FindingId(text, "", "", 0);
    return half + half;
  }
};

inline std::string NewInstance() {
  static int number = 0;
  const std::string digits = std::to_string(++number);
  return std::string(32 - digits.size(), '0') + digits;
}

/// The bucket.
struct Bucket {
  std::vector<std::string> log;
  std::mt19937 random{1};
  bool faults = false;
  bool Happens(unsigned of_a_hundred) { return faults && random() % 100 < of_a_hundred; }
};

/// A host's upload: `Turn` is one look of it.
class SimPost final : public HostPost {
 public:
  explicit SimPost(Bucket* bucket) : bucket_(bucket), read_(bucket->log.size()) {}
  void Turn() {
    if (!up || bucket_->Happens(40)) return;
    // One that was taken may stand in the log later, or twice.
    for (const std::string& object : std::exchange(limbo_, {})) bucket_->log.push_back(object);
    if (!out_.empty()) {
      const std::string object = out_.begin()->second;
      out_.erase(out_.begin());
      if (bucket_->Happens(20)) {
        limbo_.push_back(object);
      } else {
        bucket_->log.push_back(object);
        if (bucket_->Happens(10)) bucket_->log.push_back(object);
      }
    }
    fetched_ = bucket_->log.size();
  }
  bool reaches() override { return true; }
  Status Send(std::uint64_t sequence, const std::string& object) override {
    if (on_send(false)) return FailedPrecondition("dead");
    out_[sequence] = object;
    on_send(true);
    return Status::Ok();
  }
  bool TakeBack(std::uint64_t sequence) override { return out_.erase(sequence) == 1; }
  std::vector<std::string> Take() override { return TakeFrom(&read_); }
  void Release() override { kept_ = read_; }
  bool up = true;
  std::function<bool(bool after)> on_send;  // true: its supervisor is dead

 private:
  friend class SimInheritedPost;
  std::vector<std::string> TakeFrom(std::size_t* read) const {
    std::vector<std::string> taken;
    while (*read < std::min(fetched_, bucket_->log.size())) taken.push_back(bucket_->log[(*read)++]);
    return taken;
  }
  Bucket* bucket_;
  std::size_t read_, kept_ = read_, fetched_ = 0;
  std::map<std::uint64_t, std::string> out_;
  std::vector<std::string> limbo_;
};

/// As InheritedPost.
class SimInheritedPost final : public HostPost {
 public:
  explicit SimInheritedPost(SimPost* post) : post_(post), read_(post->kept_) {}
  bool reaches() override { return true; }
  Status Send(std::uint64_t, const std::string&) override { return FailedPrecondition("dead"); }
  bool TakeBack(std::uint64_t) override {
    post_->out_.clear();
    return post_->limbo_.empty();
  }
  std::vector<std::string> Take() override { return post_->TakeFrom(&read_); }

 private:
  SimPost* post_;
  std::size_t read_;
};

inline StopSettings Settings() {
  StopSettings settings;
  settings.hosts_doubt_s = 60;
  return settings;
}

/// Where a supervisor dies: before or after it has done something for the given time.
struct Death {
  enum class At : std::uint8_t { kNever, kSend, kWrite, kDecide } at = At::kNever;
  int times = 1;
  bool after = false;
};

/// A host with its run, its supervisor with an heir, and one rank that obeys the run's log as the worker's
/// side of docs/spec/control.md does.
class Host {
 public:
  Host(Bucket* bucket, std::uint32_t rank, std::uint32_t world, bool encrypted = false)
      : rank_(rank),
        world_(world),
        post(new SimPost(bucket)),
        log(std::make_shared<HostLog>(kJob, NewInstance(), std::unique_ptr<HostPost>(post),
                                      std::make_unique<WordSeal>(), !encrypted)),
        coordinator(Settings(), Log(), log) {
    post->on_send = [this](bool after) { return Dies(Death::At::kSend, after); };
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  void Ask(const std::string& id) { coordinator.Request({"stop", id, "asked by somebody", "", ""}); }
  void AskFor(const std::string& kind, const std::string& id, const std::string& body,
              const std::string& cause = "") {
    coordinator.Request({kind, id, "asked by somebody", cause.empty() ? "" : "f-" + id, body, false, cause});
  }
  /// What the supervisor does, or its heir.
  void Supervise(std::int64_t now_ms) {
    post->Turn();
    if (!dead) {
      Poll(now_ms, *log, coordinator);
      if (!dead) bequest_ = coordinator.bequest();
      return;
    }
    if (!bequest_ || !has_heir) return;
    if (!heir_) {
      heir_log_ = std::make_shared<HostLog>(kJob, log->instance(), std::make_unique<SimInheritedPost>(post),
                                            std::make_unique<WordSeal>(), false);
      heir_ = std::make_unique<Coordinator>(Settings(), Log(), heir_log_);
      heir_->Inherit(*bequest_, records_[bequest_->proposal - 1], now_ms * kMs);
    }
    Poll(now_ms, *heir_log_, *heir_);
  }
  void Poll(std::int64_t now_ms, HostLog& hosts, Coordinator& by) {
    hosts.Look(kUnixNs + now_ms * kMs);
    query::WorkerInfo worker;
    worker.worker = rank_;
    worker.alive = !stopped && !killed;
    worker.ended = !worker.alive;
    worker.last_train_step = worker.last_global_step = finished - 1;
    if (!by.busy()) by.Observe(now_ms * kMs, finished - 1);
    const std::vector<query::WorkerInfo> workers{worker};
    if (by.busy() &&  // as `Runner::Poll` asks
        by.Poll(now_ms * kMs, world_, workers, acks_) != Coordinator::Signal::kNone)
      killed = true;
    for (const ActionNews& one : by.TakeNews()) news.push_back(one);
  }
  /// What the rank does at a step boundary. True if it takes part in the next step.
  bool Boundary(std::int64_t now_ms) {
    for (; heard_ < records_.size(); ++heard_) Hear(records_[heard_]);
    if (stopped || killed) return false;
    if (!open_ || finished < open_->train_step) return true;
    if (waits_since_ms_ < 0) waits_since_ms_ = now_ms;
    if (!decision_ && static_cast<double>(now_ms - waits_since_ms_) >= open_->deadline_s * 1000) {
      store::ControlRecord abort;
      abort.phase = "abort";
      abort.proposal = open_->number;
      decision_ = Decide(abort)->phase;
    }
    if (!decision_) return false;
    const bool commits = *decision_ == "commit";
    stopped = commits && open_->kind == "stop";
    if (commits && !stopped) {
      done.emplace_back(finished, open_->kind + " " + open_->body);
      format::AckRow ack{};
      ack.control = open_->number;
      ack.verdict = 3;
      acks_.emplace_back(rank_, ack);
    }
    open_.reset();
    return !stopped;
  }
  bool Said(ActionNews::What what) const {
    return std::ranges::any_of(news, [&](const ActionNews& one) { return one.what == what; });
  }

  std::int64_t finished = 0;
  bool stopped = false, killed = false, dead = false, has_heir = true, opted_in = true;
  Death death;
  std::vector<ActionNews> news;
  std::vector<std::pair<std::int64_t, std::string>> done;  // corrections: TRAIN steps finished, kind and body

 private:
  /// What the supervisor does to the run's log.
  ControlLog Log() {
    return {[this](const auto& record) -> Result<std::uint64_t> {
              if (Dies(Death::At::kWrite, false)) return IoError("dead");
              auto number = Write(record);
              Dies(Death::At::kWrite, true);
              return number;
            },
            [this](const auto& record) -> Result<store::ControlRecord> {
              if (Dies(Death::At::kDecide, false)) return IoError("dead");
              auto counts = Decide(record);
              Dies(Death::At::kDecide, true);
              return counts;
            }};
  }
  /// Counts what the supervisor does; true if it must not any more. An heir does not die.
  bool Dies(Death::At at, bool after) {
    if (heir_) return false;
    if (!dead && at == death.at && after == death.after && --death.times == 0) dead = true;
    return dead;
  }
  Result<std::uint64_t> Write(const store::ControlRecord& record) {
    records_.push_back(record);
    return records_.back().number = records_.size();
  }
  Result<store::ControlRecord> Decide(const store::ControlRecord& record) {
    for (const auto& other : records_) {
      if (other.proposal == record.proposal) return other;
    }
    static_cast<void>(Write(record));
    return records_.back();
  }
  void Hear(const store::ControlRecord& record) {
    if (record.phase == "propose") {
      format::AckRow ack{};
      ack.control = record.number;
      ack.verdict = !opted_in && record.kind != "stop" ? 4 : open_ || finished >= record.train_step ? 2 : 1;
      if (ack.verdict == 1) {
        open_ = record;
        decision_.reset();
        waits_since_ms_ = -1;
      }
      acks_.emplace_back(rank_, ack);
    } else if (open_ && record.proposal == open_->number && !decision_) {
      decision_ = record.phase;
      if (record.phase == "abort" && finished < open_->train_step) open_.reset();
    }
  }

  const std::uint32_t rank_, world_;
  std::vector<store::ControlRecord> records_;
  std::size_t heard_ = 0;
  std::optional<store::ControlRecord> open_;
  std::optional<std::string> decision_;
  std::int64_t waits_since_ms_ = -1;
  std::vector<std::pair<std::uint32_t, format::AckRow>> acks_;
  std::optional<Coordinator::Bequest> bequest_;
  std::shared_ptr<HostLog> heir_log_;
  std::unique_ptr<Coordinator> heir_;

 public:
  SimPost* post;
  std::shared_ptr<HostLog> log;
  Coordinator coordinator;
};

class Hosts : public ::testing::Test {
 protected:
  void Begin(std::uint32_t world) {
    for (std::uint32_t rank = 0; rank < world; ++rank)
      hosts.push_back(std::make_unique<Host>(&bucket, rank, world, encrypted));
  }
  /// Ranks take every step together: who does not take part holds all of them up.
  void Tick() {
    now_ms += kTickMs;
    for (const auto& host : hosts) host->Supervise(now_ms);
    bool all = true;
    for (const auto& host : hosts) all = host->Boundary(now_ms) && all;
    if (!all || hold) return;
    for (const auto& host : hosts) ++host->finished;
  }
  void RunFor(std::int64_t seconds) {
    for (const std::int64_t end = now_ms + seconds * 1000; now_ms < end;) Tick();
  }
  /// Until the consents of both hosts stand in the log.
  void UntilBothConsent() {
    while (std::ranges::count_if(bucket.log, [](const auto& object) {
             return object.find("\"accepted\"") != std::string::npos;
           }) < 2)
      Tick();
  }
  /// Every host stopped, after the same step.
  bool AllStopped() const {
    return std::ranges::all_of(
        hosts, [&](const auto& host) { return host->stopped && host->finished == hosts[0]->finished; });
  }
  std::size_t Stopped() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(hosts, [](const auto& host) { return host->stopped; }));
  }
  bool AnyKilled() const {
    return std::ranges::any_of(hosts, [](const auto& host) { return host->killed; });
  }

  Bucket bucket;
  std::vector<std::unique_ptr<Host>> hosts;
  std::int64_t now_ms = 0;
  bool hold = false;  // no step ends
  bool encrypted = false;
};

}  // namespace luff::actions::hosts_test
