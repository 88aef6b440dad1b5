#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"

/// Named tokens: who may look, until when and at what. `luff serve token` keeps them in a file that only its
/// owner can read; it holds hashes, never tokens.
namespace luff::server {

/// What somebody may do; each role may do what those before it may.
enum class Role : std::uint8_t { kMetrics = 1, kViewer = 2, kOperator = 3, kAdmin = 4 };
[[nodiscard]] std::string_view RoleName(Role role) noexcept;
/// Errors: kInvalidArgument, which names the roles.
[[nodiscard]] Result<Role> ParseRole(std::string_view name);

/// 256 random bits as 43 letters of base64url.
[[nodiscard]] std::string NewToken();
/// BLAKE2b, 32 bytes.
[[nodiscard]] std::string HashOf(std::string_view text);

struct NamedToken {
  std::string name = {};
  Role role = Role::kViewer;
  std::string hash = {};  // HashOf the token
  std::int64_t created_unix_s = 0;
  std::int64_t expires_unix_s = 0;      // 0: never
  std::vector<std::string> roots = {};  // absolute directories whose runs it shows; empty: all

  [[nodiscard]] bool expired(std::int64_t now_unix_s) const noexcept {
    return expires_unix_s != 0 && now_unix_s >= expires_unix_s;
  }
};

/// Errors: kCorruption for what is no such file.
[[nodiscard]] Result<std::vector<NamedToken>> ParseTokensUntrusted(std::string_view text);
[[nodiscard]] std::string TokensText(const std::vector<NamedToken>& tokens);

/// The file. **Immutable**, thread-safe; several processes may change it, one after the other.
class TokenFile {
 public:
  explicit TokenFile(std::string path) : path_(std::move(path)) {}
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Which file stands there now, and when it was changed last: two marks that differ are of two contents.
  /// All 0: none.
  using Mark = std::array<std::int64_t, 4>;
  [[nodiscard]] Mark mark() const noexcept;
  /// No tokens if there is no file. Errors: kFailedPrecondition for a file that others can read, kCorruption.
  [[nodiscard]] Result<std::vector<NamedToken>> Read() const;
  /// Adds a token and returns it; it is kept nowhere. `like.hash` and `like.created_unix_s` are set here.
  /// Errors: kAlreadyExists for a name in use; kInvalidArgument for a name that is none.
  [[nodiscard]] Result<std::string> Add(NamedToken like) const;
  /// Errors: kNotFound, which names the tokens that there are.
  [[nodiscard]] Status Revoke(std::string_view name) const;

  static constexpr std::size_t kMaxTokens = 1000;

 private:
  template <typename Change>
  [[nodiscard]] Status Alter(const Change& change) const;
  const std::string path_;
};

}  // namespace luff::server
