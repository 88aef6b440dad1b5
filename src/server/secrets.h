#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/mutex.h"

/// Tokens and sessions. Random numbers, hashes and comparisons are libsodium's.
namespace luff::server {

enum class Role : std::uint8_t { kMetrics = 1, kViewer = 2, kOperator = 3, kAdmin = 4 };
[[nodiscard]] std::string_view RoleName(Role role) noexcept;

/// 256 random bits as 43 letters of base64url.
[[nodiscard]] std::string NewToken();

/// Who asks.
struct Visitor {
  Role role = Role::kViewer;
  std::string csrf;  // of a browser's session; "" for a token
};

/// **Thread-safe.** Tokens are kept as BLAKE2b hashes and compared in constant time.
class Secrets {
 public:
  Secrets();
  /// Accepts a token from now on.
  void Add(std::string_view token, Role role) LUFF_EXCLUDES(mutex_);
  /// The visitor that a token stands for.
  [[nodiscard]] std::optional<Visitor> ByToken(std::string_view token) LUFF_EXCLUDES(mutex_);

  /// Exchanges a token for a session; returns its key, nullopt for a wrong token. After kTries wrong ones
  /// within a minute it refuses all (`*wait` is then set).
  [[nodiscard]] std::optional<std::string> Begin(std::string_view token, std::int64_t now_ns,
                                                 Visitor* visitor, bool* wait) LUFF_EXCLUDES(mutex_);
  [[nodiscard]] std::optional<Visitor> BySession(std::string_view key, std::int64_t now_ns)
      LUFF_EXCLUDES(mutex_);
  void End(std::string_view key) LUFF_EXCLUDES(mutex_);

  static constexpr std::size_t kTries = 5;
  static constexpr std::size_t kMaxSessions = 1024;  // then the one unused for longest ends
  static constexpr std::int64_t kSessionNs = std::int64_t{12} * 3600 * 1'000'000'000;

 private:
  using Hash = std::string;  // 32 bytes
  struct Known {
    Hash hash;
    Role role;
  };
  struct Session {
    Visitor visitor;
    std::int64_t used_ns = 0;
  };
  [[nodiscard]] std::optional<Role> RoleOf(std::string_view token) LUFF_REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<Known> tokens_ LUFF_GUARDED_BY(mutex_);
  std::map<Hash, Session> sessions_ LUFF_GUARDED_BY(mutex_);
  std::deque<std::int64_t> failed_ns_ LUFF_GUARDED_BY(mutex_);
};

}  // namespace luff::server
