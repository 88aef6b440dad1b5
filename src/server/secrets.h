#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/mutex.h"
#include "server/tokens.h"

/// Who asks: tokens, sessions, and how much each of them may ask. Random numbers, hashes and comparisons are
/// libsodium's.
namespace luff::server {

/// A role, and where it holds.
struct Grant {
  Role role = Role::kMetrics;
  std::vector<std::string> roots = {};  // absolute directories; empty: everywhere
  friend bool operator==(const Grant&, const Grant&) = default;
};

struct Visitor {
  std::vector<Grant> grants = {};
  std::string csrf = {};  // of a browser; "" for a token
  std::string name = {};  // of the token, or of the user as the proxy says; "" for the link
  std::string key = {};   // whose requests count together: the session, token or user

  /// The greatest role that the visitor has somewhere.
  [[nodiscard]] Role role() const;
  /// Whether the visitor may do what `least` may, with a run of this absolute path.
  [[nodiscard]] bool May(Role least, std::string_view path) const;
  /// The same visitor with what holds for a run of this absolute path only.
  [[nodiscard]] Visitor At(std::string_view path) const;
  /// Whether some runs do not exist for the visitor.
  [[nodiscard]] bool restricted() const;
};

/// Compares texts of any lengths in a time that tells nothing of where they differ.
[[nodiscard]] bool SameSecret(std::string_view a, std::string_view b);

/// **Thread-safe.** Tokens are kept as hashes and compared in constant time. A session is as good as its
/// token: when that is revoked or expires, its sessions end.
class Secrets {
 public:
  /// `tokens`: file of named tokens, "" for none; Refresh reads it.
  explicit Secrets(const std::string& tokens = "");
  /// Accepts a token from now on, as the link has it: without a name.
  void Add(std::string_view token, Role role) LUFF_EXCLUDES(mutex_);
  /// Reads the named tokens again if their file was changed, so that a token counts, or no longer counts, at
  /// once; and each second, for file systems that tell late. If the file cannot be read, none is accepted.
  /// Errors: those of TokenFile::Read.
  [[nodiscard]] Status Refresh(std::int64_t now_ns) LUFF_EXCLUDES(mutex_);
  /// The visitor that a token stands for.
  [[nodiscard]] std::optional<Visitor> ByToken(std::string_view token) const LUFF_EXCLUDES(mutex_);

  /// Exchanges a token for a session; returns its key, nullopt for a wrong token. After kTries wrong ones
  /// within a minute it refuses all (`*wait` is then set).
  [[nodiscard]] std::optional<std::string> Begin(std::string_view token, std::int64_t now_ns,
                                                 Visitor* visitor, bool* wait) LUFF_EXCLUDES(mutex_);
  [[nodiscard]] std::optional<Visitor> BySession(std::string_view key, std::int64_t now_ns)
      LUFF_EXCLUDES(mutex_);
  void End(std::string_view key) LUFF_EXCLUDES(mutex_);
  /// Text that only this process can make of `text`, e.g. a user's mark against forged requests.
  [[nodiscard]] std::string Sealed(std::string_view text) const;

  /// Whether this visitor may ask once more: kPerSecond requests a second, and as many at once.
  [[nodiscard]] bool MayAsk(const Visitor& visitor, std::int64_t now_ns) LUFF_EXCLUDES(mutex_);

  static constexpr std::size_t kTries = 5;
  static constexpr std::size_t kMaxSessions = 1024;  // then the one unused for longest ends
  static constexpr std::int64_t kSessionNs = std::int64_t{12} * 3600 * 1'000'000'000;
  static constexpr std::int64_t kPerSecond = 200;

 private:
  struct Session {
    Visitor visitor;
    std::string token;  // its hash
    std::int64_t used_ns = 0;
  };
  [[nodiscard]] const NamedToken* Find(std::string_view hash) const LUFF_REQUIRES(mutex_);

  const TokenFile file_;
  const std::string seal_;  // 256 random bits
  mutable Mutex mutex_;
  std::vector<NamedToken> own_ LUFF_GUARDED_BY(mutex_), named_ LUFF_GUARDED_BY(mutex_);
  std::map<std::string, Session> sessions_ LUFF_GUARDED_BY(mutex_);  // by the hash of the key
  std::deque<std::int64_t> failed_ns_ LUFF_GUARDED_BY(mutex_);
  /// The time until which what a visitor has asked would take at kPerSecond.
  std::map<std::string, std::int64_t> asked_until_ns_ LUFF_GUARDED_BY(mutex_);
  std::int64_t read_ns_ LUFF_GUARDED_BY(mutex_) = INT64_MIN / 2;
  TokenFile::Mark read_mark_ LUFF_GUARDED_BY(mutex_) = {};
};

}  // namespace luff::server
