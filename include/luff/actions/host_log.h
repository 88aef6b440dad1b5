#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "luff/base/result.h"

/// What the supervisors of a job's hosts tell each other, where the hosts share a bucket and no file system:
/// a log of signed messages, one order for all (docs/spec/control.md, Several hosts).
namespace luff::actions {

inline constexpr std::size_t kMaxHostRanks = 4096;  // of one host
inline constexpr std::size_t kMaxHosts = 1024;
inline constexpr std::size_t kMaxHostBody = 24 << 10;  // bytes of HostMessage::body

/// One message. Members that its kind does not have are empty.
struct HostMessage {
  enum class Kind : std::uint8_t { kPropose, kAnswer, kCommit, kAbort };
  enum class Verdict : std::uint8_t { kAccepted, kLate, kRefused };
  Kind kind = Kind::kPropose;
  std::string job;             // 32 hexadecimal digits, the same for all hosts of the job
  std::string instance;        // 32 hexadecimal digits, random: of the supervisor
  std::uint64_t sequence = 0;  // from 1, grows: the second one with a sequence is a copy
  std::int64_t created_unix_ns = 0;
  std::string proposal;                  // id() of a proposal; "" in a proposal
  std::int64_t train_step = -1;          // propose: the step; answer: how many TRAIN steps are finished here
  std::string reason, finding;           // for people; propose: of the finding, or ""
  std::string action = "stop";           // propose: one of kRequestable
  std::string body;                      // propose: JSON object text with what the action needs, or ""
  std::string cause;                     // propose: CauseKey of the finding's "RULE/CAUSE", or ""
  Verdict verdict = Verdict::kAccepted;  // answer; abort: kLate if a later step may do
  std::vector<std::uint32_t> ranks;      // answer: of the host
  std::uint32_t world = 0;               // answer: ranks of the job
  std::vector<std::string> agreed;       // commit: instances whose answers it counts
  [[nodiscard]] std::string id() const;  // "INSTANCE-SEQUENCE"
};

[[nodiscard]] std::string HostMessageText(const HostMessage& message);
/// Bounds: 64 KiB, kMaxHostRanks, kMaxHosts. Errors: kCorruption, kUnsupportedVersion, with the member.
[[nodiscard]] Result<HostMessage> ParseHostMessageUntrusted(std::string_view text);

/// Signs messages, and opens those that a host of the job has signed. The room `keys` implements it.
class HostSeal {
 public:
  virtual ~HostSeal() = default;
  [[nodiscard]] virtual Result<std::string> Seal(const std::string& text) = 0;
  /// Returns the text. Errors: kFailedPrecondition, with cause and remedy.
  [[nodiscard]] virtual Result<std::string> Open(std::string_view object, std::int64_t now_unix_ns) = 0;
  /// 32 hexadecimal digits, the same on all hosts of the job, by which nobody else can tell `text`; "" where
  /// nothing can be sealed.
  [[nodiscard]] virtual std::string KeyedHash(const std::string& text) const = 0;
};

/// Carries sealed messages to and from the log.
class HostPost {
 public:
  virtual ~HostPost() = default;
  /// Call it often. Makes what it needs.
  virtual void Look() {}
  /// True once the end of the log is known: what was there before belongs to nobody any more.
  [[nodiscard]] virtual bool reaches() = 0;
  /// Gives one away, to stand behind those that were given before.
  [[nodiscard]] virtual Status Send(std::uint64_t sequence, const std::string& object) = 0;
  /// True if it was not sent, and never will be.
  [[nodiscard]] virtual bool TakeBack(std::uint64_t sequence) = 0;
  /// What stands in the log next, own messages, too, each once. It is kept for who goes on in this
  /// supervisor's place if it dies.
  [[nodiscard]] virtual std::vector<std::string> Take() = 0;
  /// What was taken is needed no more.
  virtual void Release() {}
};

/// The log as this host knows it: at most one proposal is open; the first decision about it counts.
/// **Thread-compatible.**
class HostLog {
 public:
  enum class Decision : std::uint8_t { kOpen, kCommit, kAbort };
  enum class Answers : std::uint8_t { kOpen, kAll, kLate, kRefused };
  /// `says_why`: false where the bucket must not read what was found.
  HostLog(std::string job, std::string instance, std::unique_ptr<HostPost> post,
          std::unique_ptr<HostSeal> seal, bool says_why = true);

  /// What it had heard before the open proposal: messages behind it are judged by that.
  struct Past {
    std::map<std::string, std::uint64_t> heard;  // by instance: the last sequence
    std::vector<std::string> decided;            // proposals
  };
  /// Of the open proposal, or the last one; null if there was none.
  [[nodiscard]] std::shared_ptr<const Past> past() const noexcept { return past_; }
  /// Judges as the log that the past is of does, from its open proposal on. Call it first.
  void Recall(const Past& past);

  /// Reads what is new.
  void Look(std::int64_t unix_ns);
  void LookAgain() { Look(unix_ns_); }
  /// `held`: a decision is not carried out yet, so that another process may have to read it again.
  void Hold(bool held) noexcept { held_ = held; }
  [[nodiscard]] bool reaches() { return post_->reaches(); }
  [[nodiscard]] const std::string& instance() const noexcept { return instance_; }
  [[nodiscard]] bool says_why() const noexcept { return says_why_; }
  /// What a proposal says of a cause: hosts can compare it, and who reads the bucket learns nothing. "" of
  /// "".
  [[nodiscard]] std::string CauseKey(const std::string& cause) const {
    return cause.empty() ? "" : seal_->KeyedHash(cause);
  }
  /// The proposal that has no decision; null if there is none.
  [[nodiscard]] const HostMessage* open() const noexcept { return open_ ? &*open_ : nullptr; }
  /// What became of a proposal. A commit that does not count this host's consent is an abort here.
  [[nodiscard]] Decision DecisionOf(const std::string& proposal, std::string* why, bool* late) const;
  /// This host's consent to the open proposal stands in the log.
  [[nodiscard]] bool consented() const;
  /// What the hosts say of the open proposal. `why`: what is missing, for people. `reached`: the most TRAIN
  /// steps that are finished anywhere.
  [[nodiscard]] Answers Count(std::uint32_t world, std::string* why, std::int64_t* reached) const;
  /// Sends a message; fills in job, instance, sequence and time, and of a commit whose answers it counts. The
  /// `cause` that is given is "RULE/CAUSE".
  /// Returns its sequence.
  [[nodiscard]] Result<std::uint64_t> Send(HostMessage message);
  [[nodiscard]] bool TakeBack(std::uint64_t sequence) { return post_->TakeBack(sequence); }
  /// This host has no part in the open proposal any more. `consented`: its answer was sent, so a commit may
  /// count it.
  void Forget(const std::string& why, bool consented = false);
  /// A proposal was forgotten that the others may have carried out with this host's consent.
  [[nodiscard]] bool doubts() const noexcept { return forgotten_.has_value(); }
  /// A proposal that was forgotten and that the others have carried out with this host's consent, once.
  [[nodiscard]] bool has_late_commit() const noexcept { return late_commit_.has_value(); }
  [[nodiscard]] std::optional<HostMessage> TakeLateCommit() { return std::exchange(late_commit_, {}); }
  /// Behind the open proposal there is something that counts for nothing. In its place there may have been a
  /// decision that other hosts have read, so none behind it counts here, but an abort of who has proposed.
  [[nodiscard]] bool unsure() const noexcept { return unsure_; }
  /// Messages that count for nothing since the last call: how many, and why the last one.
  [[nodiscard]] std::pair<std::size_t, std::string> TakeRefused();

 private:
  struct Decided {
    std::string proposal;
    Decision decision;
    std::string why;
    bool late;
  };
  void Hear(const std::string& object, std::int64_t unix_ns);
  void Decide(Decision decision, std::string why, bool late);
  void HearOfForgotten(const HostMessage& message);
  [[nodiscard]] bool KnowsOf(const std::string& proposal) const;
  void Doubt() noexcept { unsure_ = forgotten_unsure_ = true; }
  void Refuse(std::string why);

  const std::string job_, instance_;
  const std::unique_ptr<HostPost> post_;
  const std::unique_ptr<HostSeal> seal_;
  const bool says_why_;
  std::uint64_t sent_ = 0;
  std::int64_t unix_ns_ = 0;
  std::optional<HostMessage> open_;
  std::map<std::string, HostMessage> answers_;  // to the open proposal, by instance
  std::deque<Decided> decided_;                 // the newest
  std::map<std::string, std::uint64_t> heard_;  // by instance: the last sequence
  std::shared_ptr<const Past> past_;
  bool unsure_ = false, held_ = false;
  std::optional<HostMessage> forgotten_, late_commit_;  // proposals
  bool forgotten_unsure_ = false;                       // as unsure_, of forgotten_
  std::size_t refused_ = 0;
  std::string refused_why_;
};

}  // namespace luff::actions
