#include "watch/door.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "luff/base/env.h"
#include "rules/own/own_child.h"

namespace luff::watch {
namespace {

constexpr std::int64_t kDoorSecond = 1'000'000'000;
constexpr std::int64_t kDoorStartNs = 120 * kDoorSecond;  // a bucket that is away is asked again meanwhile
constexpr std::int64_t kFirstPauseNs = kDoorSecond, kLongestPauseNs = 60 * kDoorSecond;

std::int64_t DoorNow() { return Env::Real().NowMonotonicNs(); }

// More than any bucket answers between two words: a sum of these never overflows.
std::uint64_t Counted(const nlohmann::json& json, const char* name) {
  return static_cast<std::uint64_t>(
      std::clamp<std::int64_t>(WholeMember(json, name, 0), 0, std::int64_t{1} << 48));
}

void AddTexts(const nlohmann::json& json, const char* name, std::vector<std::string>* to) {
  const auto texts = json.find(name);
  if (texts == json.end() || !texts->is_array()) return;
  for (const nlohmann::json& one : *texts) {
    if (one.is_string()) to->push_back(one.get<std::string>());
  }
}

std::string DoorLine(const nlohmann::json& json) { return AsciiJsonText(json); }

}  // namespace

Told ParseToldUntrusted(const std::string& line) {
  const nlohmann::json json = TryParseJson(line, {.bytes = rules::OwnChild::kMaxLine, .depth = 4});
  Told told;
  if (!json.is_object()) return told;
  told.run_id = TextMember(json, "run");
  told.say = TextMember(json, "say");
  told.act = FlagMember(json, "act");
  told.again = FlagMember(json, "again");
  if (json.contains("open")) told.open = FlagMember(json, "open");
  if (json.contains("idle")) told.idle = FlagMember(json, "idle");
  told.number = static_cast<std::uint64_t>(std::max<std::int64_t>(0, WholeMember(json, "number", 0)));
  if (const auto asked = json.find("asked"); asked != json.end() && asked->is_object()) {
    told.asked = {Counted(*asked, "gets"), Counted(*asked, "puts"), Counted(*asked, "sent"),
                  Counted(*asked, "received")};
  }
  AddTexts(json, "lines", &told.lines);
  AddTexts(json, "news", &told.news);
  return told;
}

BucketDoor::BucketDoor(std::vector<std::string> argv) : argv_(std::move(argv)) {}

BucketDoor::~BucketDoor() = default;

Result<std::unique_ptr<BucketDoor>> BucketDoor::Open(std::vector<std::string> argv) {
  std::unique_ptr<BucketDoor> door(new BucketDoor(std::move(argv)));
  LUFF_RETURN_IF_ERROR(door->Start());
  const std::int64_t until = DoorNow() + kDoorStartNs;
  while (!door->ready_) {
    std::vector<std::string> lines;
    (void)door->child_->Receive(100, &lines);
    for (const std::string& line : lines) {
      const nlohmann::json json = TryParseJson(line, {.bytes = rules::OwnChild::kMaxLine, .depth = 4});
      if (const std::string error = TextMember(json, "error"); !error.empty())
        return Status(FlagMember(json, "away") ? StatusCode::kUnavailable : StatusCode::kFailedPrecondition,
                      error);
      if (json.is_object() && json.contains("base")) {
        door->base_ = TextMember(json, "base");
        door->state_ = TextMember(json, "state");
        door->ready_ = true;
      } else {
        door->told_.push_back(ParseToldUntrusted(line));
      }
    }
    if (const std::string end = door->child_->Ended(); !door->ready_ && !end.empty())
      return Unavailable(
          fmt::format("the process that asks the bucket has ended ({}): {}", end, door->child_->LastWords()));
    if (!door->ready_ && DoorNow() > until)
      return DeadlineExceeded("the bucket did not answer within two minutes");
  }
  door->begun_anew_ = false;
  return door;
}

Status BucketDoor::Start() {
  auto child = rules::OwnChild::Start({argv_, {}, 0, false});
  if (!child.ok()) return child.status();
  child_ = std::move(*child);
  begun_anew_ = true;
  return Status::Ok();
}

bool BucketDoor::BegunAnew() { return std::exchange(begun_anew_, false); }

bool BucketDoor::Commit(const std::string& run_id, const std::vector<std::string>& lines) {
  return child_ != nullptr && child_->Send(DoorLine({{"do", "commit"}, {"run", run_id}, {"lines", lines}}));
}

bool BucketDoor::Done(const std::string& run_id, std::uint64_t number) {
  return child_ != nullptr && child_->Send(DoorLine({{"do", "done"}, {"run", run_id}, {"number", number}}));
}

bool BucketDoor::Request(const std::string& run_id, const std::string& object) {
  return child_ != nullptr &&
         child_->Send(DoorLine({{"do", "request"}, {"run", run_id}, {"object", object}}));
}

bool BucketDoor::Judged(const std::string& run_id, std::size_t steps) {
  return child_ != nullptr && child_->Send(DoorLine({{"do", "judged"}, {"run", run_id}, {"steps", steps}}));
}

bool BucketDoor::Failed(const std::string& run_id) {
  return child_ != nullptr && child_->Send(DoorLine({{"do", "failed"}, {"run", run_id}}));
}

std::vector<Told> BucketDoor::Hear() {
  std::vector<Told> all = std::exchange(told_, {});
  if (child_ == nullptr) {
    if (DoorNow() < next_start_ns_) return all;
    if (const Status started = Start(); !started.ok()) {
      pause_ns_ = std::clamp(2 * pause_ns_, kFirstPauseNs, kLongestPauseNs);
      next_start_ns_ = DoorNow() + pause_ns_;
    }
    return all;
  }
  std::vector<std::string> lines;
  (void)child_->Receive(0, &lines);
  for (const std::string& line : lines) {
    Told told = ParseToldUntrusted(line);
    if (const std::string error = TextMember(TryParseJson(line, {64 << 10, 4}), "error"); !error.empty())
      told.say = error;
    all.push_back(std::move(told));
    pause_ns_ = 0;
  }
  const std::string end = child_->broken() ? "a line without end" : child_->Ended();
  if (!end.empty()) {
    Told told;
    told.say = fmt::format("the process that asks the bucket has ended ({}), another one is started{}{}", end,
                           child_->LastWords().empty() ? "" : ": ", child_->LastWords());
    all.push_back(std::move(told));
    child_.reset();
    pause_ns_ = std::clamp(2 * pause_ns_, kFirstPauseNs, kLongestPauseNs);
    next_start_ns_ = DoorNow() + pause_ns_;
  }
  return all;
}

void BucketDoor::Leave(double seconds) {
  if (child_ == nullptr || !child_->Send(R"({"do":"leave"})")) return;
  const std::int64_t until = DoorNow() + static_cast<std::int64_t>(seconds * 1e9);
  while (DoorNow() < until && child_->Ended().empty()) {
    std::vector<std::string> lines;
    (void)child_->Receive(50, &lines);
    for (const std::string& line : lines) told_.push_back(ParseToldUntrusted(line));
  }
  child_.reset();
}

}  // namespace luff::watch
