#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "luff/base/mutex.h"
#include "luff/base/result.h"
#include "rules/own/own_channel.h"
#include "rules/own/own_child.h"

namespace luff::rules {

/// One process of a user's rule that judges many runs, each a stream (docs/spec/rule-child.md). It answers
/// messages in their order, so what it works on is known: when it hangs or dies, that run is blamed, and the
/// others begin again from what they saved. **Thread-safe.** Must be owned by a shared_ptr.
class OwnHost : public std::enable_shared_from_this<OwnHost> {
 public:
  struct Limits {
    double step_s = 10, start_s = 60;
    std::uint64_t memory_bytes = 0;  // of the process, with all its runs
  };
  OwnHost(OwnChild::Options child, Limits limits) : options_(std::move(child)), limits_(limits) {}
  ~OwnHost();

  /// Begins a stream, and the process if there is none. Errors: those of OwnChild::Start; kFailedPrecondition
  /// once it has died too often.
  [[nodiscard]] Result<std::unique_ptr<OwnChannel>> Join();

 private:
  class Stream;
  struct State {  // of a stream
    std::vector<std::string> inbox;
    OwnChannel::End end;
    bool over = false;  // it has ended by an error of its own
  };
  struct Sent {
    std::uint64_t stream = 0;
    bool begins = false;
  };
  static constexpr std::size_t kMostDeaths = 30, kMostUnexplained = 3;  // in an hour

  bool Send(std::uint64_t stream, std::string_view line);
  bool Receive(std::uint64_t stream, int wait_ms, std::vector<std::string>* lines);
  OwnChannel::End EndOf(std::uint64_t stream);
  void Leave(std::uint64_t stream);
  std::string LastWords();
  std::string Unshielded();

  void Pump(int wait_ms) LUFF_REQUIRES(mutex_);
  bool HearUntrusted(const std::string& line) LUFF_REQUIRES(mutex_);
  /// The process is gone. `blamed`: the stream it worked for; 0: not known.
  void Down(const std::string& how, std::uint64_t blamed) LUFF_REQUIRES(mutex_);
  [[nodiscard]] bool IsGivenUp() LUFF_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t Front() const LUFF_REQUIRES(mutex_) {
    return sent_.empty() ? 0 : sent_.front().stream;
  }

  const OwnChild::Options options_;
  const Limits limits_;
  Mutex mutex_;
  std::unique_ptr<OwnChild> child_ LUFF_GUARDED_BY(mutex_);
  std::map<std::uint64_t, State> streams_ LUFF_GUARDED_BY(mutex_);  // by number, from 1
  std::deque<Sent> sent_ LUFF_GUARDED_BY(mutex_);                   // and not answered
  std::uint64_t next_ LUFF_GUARDED_BY(mutex_) = 1;
  std::int64_t heard_ns_ LUFF_GUARDED_BY(mutex_) = 0, looked_ns_ LUFF_GUARDED_BY(mutex_) = 0;
  std::size_t lines_ LUFF_GUARDED_BY(mutex_) = 0;  // of what it works on now
  std::deque<std::int64_t> deaths_ LUFF_GUARDED_BY(mutex_), unexplained_ LUFF_GUARDED_BY(mutex_);  // when
  std::string how_ LUFF_GUARDED_BY(mutex_), words_ LUFF_GUARDED_BY(mutex_);
};

}  // namespace luff::rules
