#include "luff/store/mirror.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/bounded_read.h"
#include "base/json.h"
#include "base/line_socket.h"
#include "luff/base/env.h"

namespace luff::store {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMaxBytes = 16 << 20;  // of mirror.json
constexpr std::int64_t kLookEveryNs = 100'000'000;
constexpr std::uint64_t kMaxAsked = 32 << 20;  // bytes of payload in one request
constexpr int kTimeoutMs = 120'000;
constexpr int kFollowMs =
    10'000;  // whoever reads waits for it; a copy that is there is shown without an answer
constexpr std::size_t kMaxAnswer = 64 << 10;
// After a failure, which took its time, others fail at once for so long.
constexpr std::int64_t kFailFastNs = 5'000'000'000;

std::string FileOf(const std::string& run_path) { return run_path + "/mirror.json"; }

}  // namespace

Mirror::Mirror(std::string path, std::string socket_folder)
    : path_(std::move(path)),
      socket_folder_(std::move(socket_folder)) {}

Mirror::~Mirror() = default;

std::shared_ptr<Mirror> Mirror::Of(const std::string& run_path) {
  const auto text = ReadRegular(FileOf(run_path), kMaxBytes, 1);
  if (!text.ok()) return nullptr;
  const Json json = TryParseJson(*text, {.bytes = kMaxBytes, .depth = 8});
  if (!json.is_object() || TextMember(json, "format") != "luff-mirror") return nullptr;
  const std::string socket = TextMember(json, "socket");
  const std::size_t slash = socket.rfind('/');
  if (slash == std::string::npos || socket.substr(slash) != "/socket") return nullptr;
  std::shared_ptr<Mirror> mirror(new Mirror(run_path, socket.substr(0, slash)));
  mirror->Parse(*text);
  (void)mirror->Follow();  // without a fetcher, what is here is shown
  return mirror;
}

void Mirror::Parse(const std::string& text) {
  const Json json = TryParseJson(text, {.bytes = kMaxBytes, .depth = 8});
  if (!json.is_object()) return;
  state_.url = TextMember(json, "url");
  state_.problem = TextMember(json, "problem");
  state_.ended = FlagMember(json, "ended");
  state_.behind = FlagMember(json, "behind");
  state_.pruned = FlagMember(json, "pruned");
  state_.silent = FlagMember(json, "silent");
  state_.host_unix_ns = WholeMember(json, "host_unix_ns", 0);
  state_.requests = static_cast<std::uint64_t>(std::max<std::int64_t>(0, WholeMember(json, "requests", 0)));
  state_.sent_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(0, WholeMember(json, "sent", 0)));
  const auto workers = json.find("workers");
  if (workers == json.end() || !workers->is_array()) return;
  for (const Json& one : *workers) {
    const bool good = one.is_array() && one.size() == 3 && one[0].is_number_unsigned() &&
                      one[1].is_number_integer() && one[2].is_boolean();
    if (good) workers_[one[0].get<std::uint32_t>()] = {one[1].get<std::int64_t>(), one[2].get<bool>()};
  }
}

const Mirror::State& Mirror::Look() {
  const std::int64_t now = Env::Real().NowMonotonicNs();
  if (now - looked_monotonic_ns_ < kLookEveryNs) return state_;
  looked_monotonic_ns_ = now;
  // One that was killed may have been started anew by another reader.
  if (follower_ != getpid() || !fetcher_ || !fetcher_->alive()) (void)Follow();
  struct stat info{};
  if (stat(FileOf(path_).c_str(), &info) != 0) return state_;
  const std::int64_t modified =
      static_cast<std::int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
  if (modified == mtime_ns_) return state_;
  mtime_ns_ = modified;
  if (const auto text = ReadRegular(FileOf(path_), kMaxBytes, 1); text.ok()) Parse(*text);
  return state_;
}

std::int64_t Mirror::TimeOf(std::uint32_t worker) const noexcept {
  const auto at = workers_.find(worker);
  return at == workers_.end() ? state_.host_unix_ns : at->second.unix_ns;
}

bool Mirror::EndedOf(std::uint32_t worker) const noexcept {
  const auto at = workers_.find(worker);
  return at == workers_.end() ? state_.ended : at->second.ended;
}

Status Mirror::Follow() {
  fetcher_.reset();
  follower_ = getpid();
  LUFF_ASSIGN_OR_RETURN(LineSocket socket, LineSocket::Connect(socket_folder_, "socket"));
  const Json request = {{"op", "follow"}, {"path", path_}};
  LUFF_RETURN_IF_ERROR(socket.Ask(AsciiJsonText(request), kFollowMs, kMaxAnswer).status());
  fetcher_ = std::make_unique<LineSocket>(std::move(socket));
  return Status::Ok();
}

Status Mirror::Need(std::uint32_t worker, std::uint32_t file, std::uint64_t from, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at == 0 || at < bytes; at += kMaxAsked)
    LUFF_RETURN_IF_ERROR(Piece(worker, file, from + at, std::min(kMaxAsked, bytes - at)));
  return Status::Ok();
}

Status Mirror::Piece(std::uint32_t worker, std::uint32_t file, std::uint64_t from, std::uint64_t bytes) {
  const Json request = {{"op", "payload"}, {"path", path_}, {"worker", worker},
                        {"file", file},    {"from", from},  {"bytes", bytes}};
  return Ask(AsciiJsonText(request), "the value, whose summary remains,").status();
}

Result<std::vector<Mirror::Extent>> Mirror::NeedRows(const Segment& segment, std::uint64_t from,
                                                     std::uint64_t bytes) {
  const Json request = {{"op", "rows"},
                        {"path", path_},
                        {"worker", segment.worker},
                        {"file", segment.sequence},
                        {"generation", segment.generation},
                        {"from", from},
                        {"bytes", bytes}};
  const auto line = Ask(AsciiJsonText(request), "a segment with rows");
  // As of a run of our own: whoever looks again finds what is in its place.
  if (line.status().code() == StatusCode::kOutOfRange) return NotFound(std::string(line.status().message()));
  if (!line.ok()) return line.status();
  const Json answer = TryParseJson(*line, {.bytes = kMaxAnswer, .depth = 4});
  std::vector<Extent> there;
  const auto have = answer.find("have");
  if (have != answer.end() && have->is_array()) {
    for (const Json& one : *have) {
      if (one.is_array() && one.size() == 2 && one[0].is_number_unsigned() && one[1].is_number_unsigned())
        there.emplace_back(one[0].get<std::uint64_t>(), one[1].get<std::uint64_t>());
    }
  }
  return there;
}

Result<std::string> Mirror::Ask(const std::string& request, const char* what) {
  const std::int64_t now = Env::Real().NowMonotonicNs();
  if (failed_monotonic_ns_ != 0 && now - failed_monotonic_ns_ < kFailFastNs) return ++missed_, failure_;
  failed_monotonic_ns_ = 0;
  const auto fail = [&](const std::string& why) {
    ++missed_;
    failed_monotonic_ns_ = Env::Real().NowMonotonicNs();
    failure_ = Status(StatusCode::kUnavailable, why);
    return failure_;
  };
  if (follower_ != getpid() || !fetcher_) {
    if (const Status status = Follow(); !status.ok())
      return fail("nobody fetches the run; open its URL again: " + state_.url);
  }
  auto line = fetcher_->Ask(request, kTimeoutMs, kMaxAnswer);
  if (!line.ok()) {
    fetcher_.reset();
    return fail(std::string(line.status().message()) + "; open the run's URL again: " + state_.url);
  }
  const Json answer = TryParseJson(*line, {.bytes = kMaxAnswer, .depth = 4});
  if (!answer.is_object()) return fail("the process that fetches runs answers nonsense: " + state_.url);
  if (FlagMember(answer, "ok")) return line;
  const std::string why = TextMember(answer, "error") + ": " + state_.url;
  if (FlagMember(answer, "gone")) return OutOfRange(std::string(what) + " is not in the bucket: " + why);
  if (FlagMember(answer, "later")) {
    ++missed_;
    return Status(StatusCode::kUnavailable, std::string(what) + " is not in the bucket yet: " + why);
  }
  return fail(why);
}

}  // namespace luff::store
