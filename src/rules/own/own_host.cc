#include "rules/own/own_host.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "luff/base/env.h"

namespace luff::rules {
namespace {

constexpr std::size_t kStepsAhead = 64;               // steps of a run ahead: the others wait for them
constexpr std::int64_t kMemoryEveryNs = 100'000'000;  // between looks at its memory
constexpr std::size_t kMaxLines = 10'000;             // of one answer
constexpr std::int64_t kForgottenNs = 3600LL * 1'000'000'000;
constexpr JsonLimits kHostLimits{4ULL << 20, 32};

std::int64_t HostNow() { return Env::Real().NowMonotonicNs(); }

}  // namespace

class OwnHost::Stream final : public OwnChannel {
 public:
  Stream(std::shared_ptr<OwnHost> host, std::uint64_t number) : host_(std::move(host)), number_(number) {}
  ~Stream() override { host_->Leave(number_); }
  bool Send(std::string_view line) override { return host_->Send(number_, line); }
  bool Receive(int wait_ms, std::vector<std::string>* lines) override {
    return host_->Receive(number_, wait_ms, lines);
  }
  [[nodiscard]] End Ended() override { return host_->EndOf(number_); }
  [[nodiscard]] std::size_t window() const noexcept override { return kStepsAhead; }
  [[nodiscard]] bool has_limits() const noexcept override { return true; }
  [[nodiscard]] std::string LastWords() const override { return host_->LastWords(); }
  [[nodiscard]] std::string unshielded() const override { return host_->Unshielded(); }

 private:
  const std::shared_ptr<OwnHost> host_;
  const std::uint64_t number_;
};

OwnHost::~OwnHost() = default;

Result<std::unique_ptr<OwnChannel>> OwnHost::Join() {
  const MutexLock lock(mutex_);
  if (IsGivenUp())
    return FailedPrecondition(
        fmt::format("its process has ended too often for all runs; the last time: {}", how_));
  if (child_ == nullptr) {
    LUFF_ASSIGN_OR_RETURN(child_, OwnChild::Start(options_));
    heard_ns_ = HostNow();
  }
  const std::uint64_t number = next_++;
  streams_[number];
  return std::unique_ptr<OwnChannel>(std::make_unique<Stream>(shared_from_this(), number));
}

bool OwnHost::Send(std::uint64_t stream, std::string_view line) {
  const MutexLock lock(mutex_);
  const auto at = streams_.find(stream);
  if (child_ == nullptr || at == streams_.end() || at->second.over || !at->second.end.how.empty() ||
      line.empty())
    return false;
  if (!child_->Send(fmt::format(R"({{"stream":{},{})", stream, line.substr(1)))) return false;
  if (sent_.empty()) heard_ns_ = HostNow();
  sent_.push_back({stream, line.find(R"("do":"begin")") != std::string_view::npos});
  return true;
}

bool OwnHost::Receive(std::uint64_t stream, int wait_ms, std::vector<std::string>* lines) {
  const MutexLock lock(mutex_);
  Pump(wait_ms);
  const auto at = streams_.find(stream);
  if (at == streams_.end() || at->second.inbox.empty()) return false;
  std::ranges::move(at->second.inbox, std::back_inserter(*lines));
  at->second.inbox.clear();
  return true;
}

OwnChannel::End OwnHost::EndOf(std::uint64_t stream) {
  const MutexLock lock(mutex_);
  const auto at = streams_.find(stream);
  return at == streams_.end() ? OwnChannel::End{"gone", false} : at->second.end;
}

void OwnHost::Leave(std::uint64_t stream) {
  const MutexLock lock(mutex_);
  const auto at = streams_.find(stream);
  if (at == streams_.end()) return;
  const bool lives = at->second.end.how.empty();
  streams_.erase(at);
  if (streams_.empty()) {  // nobody would hear of its end
    child_.reset();
    sent_.clear();
    lines_ = 0;
    return;
  }
  // What was sent before it is answered still, and not heard any more.
  if (lives && child_ != nullptr) (void)child_->Send(fmt::format(R"({{"stream":{},"do":"drop"}})", stream));
}

std::string OwnHost::LastWords() {
  const MutexLock lock(mutex_);
  return child_ != nullptr ? child_->LastWords() : words_;
}

std::string OwnHost::Unshielded() {
  const MutexLock lock(mutex_);
  return child_ != nullptr ? child_->unshielded() : "";
}

void OwnHost::Pump(int wait_ms) {
  if (child_ == nullptr) return;
  std::vector<std::string> lines;
  if (child_->Receive(wait_ms, &lines)) heard_ns_ = HostNow();
  for (const std::string& line : lines) {
    if (!HearUntrusted(line)) return Down("it sent a line that is not of the protocol", Front());
  }
  if (child_->broken()) return Down("it sent a line that is too long", Front());
  if (std::string end = child_->Ended(); !end.empty()) {
    lines.clear();
    child_->Receive(0, &lines);  // its last lines
    for (const std::string& line : lines) {
      if (!HearUntrusted(line)) break;
    }
    // Memory is that of all runs.
    const bool of_all = end == fmt::format("exit code {}", OwnChild::kNoMemory);
    return Down(end, of_all ? 0 : Front());
  }
  const std::int64_t now = HostNow();
  if (now - looked_ns_ > kMemoryEveryNs) {
    looked_ns_ = now;
    if (limits_.memory_bytes > 0 && child_->ResidentBytes() > limits_.memory_bytes)
      return Down(fmt::format("it used more than {} MiB of memory for {} runs", limits_.memory_bytes >> 20,
                              streams_.size()),
                  0);
  }
  if (sent_.empty()) return;
  const double limit = sent_.front().begins ? limits_.start_s : limits_.step_s;
  if (static_cast<double>(now - heard_ns_) > limit * 1e9)
    Down(fmt::format("no answer within {} s", limit), Front());
}

/// Passes a line on to its run. False if it breaks the protocol.
bool OwnHost::HearUntrusted(const std::string& line) {
  const nlohmann::json json = TryParseJson(line, kHostLimits);
  const std::int64_t number = json.is_object() ? WholeMember(json, "stream", 0) : 0;
  if (number <= 0 || sent_.empty() || static_cast<std::uint64_t>(number) != Front()) return false;
  const auto stream = static_cast<std::uint64_t>(number);
  const std::string say = TextMember(json, "say");
  const auto at = streams_.find(stream);
  if (say == "error") {  // it ends, whatever else was sent to it
    std::erase_if(sent_, [&](const Sent& one) { return one.stream == stream; });
    if (at != streams_.end()) at->second.over = true;
    lines_ = 0;
  } else if (say != "finding" && say != "heal") {
    sent_.pop_front();
    lines_ = 0;
  } else if (++lines_ > kMaxLines) {
    return false;
  }
  if (at != streams_.end()) at->second.inbox.push_back(line);
  return true;
}

void OwnHost::Down(const std::string& how, std::uint64_t blamed) {
  words_ = child_->LastWords();
  child_.reset();
  sent_.clear();
  lines_ = 0;
  const bool known = blamed != 0;
  for (auto& [number, state] : streams_) {
    if (state.end.how.empty()) state.end = {how, known && number == blamed};
  }
  (known ? deaths_ : unexplained_).push_back(HostNow());
  how_ = how;
}

/// Whether it has died too often lately: a service lives for months.
bool OwnHost::IsGivenUp() {
  const std::int64_t since = HostNow() - kForgottenNs;
  for (std::deque<std::int64_t>* times : {&deaths_, &unexplained_})
    while (!times->empty() && times->front() < since) times->pop_front();
  return deaths_.size() >= kMostDeaths || unexplained_.size() >= kMostUnexplained;
}

}  // namespace luff::rules
