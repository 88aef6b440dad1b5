#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"

/// Whose signatures count, and for what. Nothing here is secret.
namespace luff::keys {

/// What a key may be allowed.
inline constexpr std::string_view kRights[] = {"stop",  "lower_lr", "skip_batch", "rollback", "capture",
                                               "trace", "mark",     "label",      "host"};
inline constexpr std::size_t kMaxKeys = 64, kMaxIdBytes = 64, kPublicBytes = 32;

struct PublicKey {
  std::string id;
  std::string ed25519;              // kPublicBytes raw bytes
  std::vector<std::string> may;     // of kRights
  std::int64_t expires_unix_s = 0;  // 0: never

  [[nodiscard]] bool May(std::string_view right) const;
  [[nodiscard]] bool expired(std::int64_t now_unix_s) const noexcept {
    return expires_unix_s != 0 && now_unix_s >= expires_unix_s;
  }
};

/// Says what is wrong with an id: 1 to 64 letters, digits, '.', '_', '-' and '@'. Errors: kInvalidArgument.
[[nodiscard]] Status CheckId(std::string_view id);
/// Says what is wrong with a right, and names the nearest. Errors: kInvalidArgument.
[[nodiscard]] Status CheckRight(std::string_view right);
/// Says what is wrong with a list of keys: two of one id, too many of them, none of 32 bytes.
[[nodiscard]] Status CheckKeys(std::span<const PublicKey> keys);
[[nodiscard]] const PublicKey* FindKey(std::span<const PublicKey> keys, std::string_view id);

/// Seconds since 1970 of "2027-01-31", the begin of that day in UTC, or "2027-01-31T12:00:00Z". Errors:
/// kInvalidArgument.
[[nodiscard]] Result<std::int64_t> ParseTime(std::string_view text);
/// "2027-01-31 12:00 UTC".
[[nodiscard]] std::string TimeOf(std::int64_t unix_s);

/// Base64 (RFC 4648, with "="); "" if the text is none, or holds more than `most` bytes.
[[nodiscard]] std::string Base64Of(std::string_view bytes);
[[nodiscard]] std::string FromBase64(std::string_view text, std::size_t most);

/// The body of the control record `keys`: {"keys": [{"id", "ed25519", "may", "expires_unix_s"}]}.
[[nodiscard]] std::string KeysText(std::span<const PublicKey> keys);
/// Parses it. Bounds: 64 KiB, kMaxKeys. Errors: kCorruption.
[[nodiscard]] Result<std::vector<PublicKey>> ParseKeysUntrusted(std::string_view text);

}  // namespace luff::keys
