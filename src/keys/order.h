#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "keys/public_key.h"
#include "keys/secret_key.h"
#include "luff/base/result.h"
#include "luff/store/control.h"

/// What is signed: a text that says all of a request, a mark or a label. The text travels as it was signed,
/// so nobody has to make the same bytes twice (docs/spec/control.md, Signatures).
namespace luff::keys {

inline constexpr std::int64_t kLongestNs = 600'000'000'000;  // that a signature may count
inline constexpr std::uint64_t kMaxObjectBytes = 64 << 10;

/// What a signed text says.
struct Order {
  std::string run_id;   // 32 hexadecimal digits
  std::string nonce;    // 32 hexadecimal digits, random: what tells a replay
  std::string kind;     // "request", "mark", "label"
  std::string body;     // JSON object text, as in the control record
  std::string finding;  // of a mark, else ""
  std::string reason, author;
  std::int64_t created_unix_ns = 0, not_after_unix_ns = 0;  // by the clock of who signed
};

/// The right that an order needs: the action of a request, or its kind.
[[nodiscard]] std::string RightOf(const Order& order);

[[nodiscard]] std::string OrderText(const Order& order);
/// Errors: kCorruption, kUnsupportedVersion, with the member.
[[nodiscard]] Result<Order> ParseOrderUntrusted(std::string_view text);

/// Signs a record of kind request, mark or label for a run. `valid_ns`: how long it counts, at most
/// kLongestNs. Errors: kInvalidArgument; kOutOfRange if it is too large for a bucket.
[[nodiscard]] Status SignRecord(const SecretKey& key, const std::string& run_id, std::int64_t valid_ns,
                                store::ControlRecord* record);
/// As SignRecord, with a nonce that is made of `of`: of two records of the same run that are signed so, a job
/// takes one.
[[nodiscard]] Status SignRecordOnce(const SecretKey& key, const std::string& run_id, std::int64_t valid_ns,
                                    const std::string& of, store::ControlRecord* record);

/// The object of a bucket that holds a signed record: {"version": 1, "key_id", "signature", "signed"}.
[[nodiscard]] std::string ObjectText(const store::ControlRecord& record);
/// The three members of an object, unchecked. Errors: kOutOfRange, kCorruption, kUnsupportedVersion.
[[nodiscard]] Result<store::ControlRecord> ParseObjectUntrusted(std::string_view bytes);

/// Checks the signature of a record, and what it says. Errors: kFailedPrecondition, with cause and remedy.
/// Replays are for the caller to tell.
[[nodiscard]] Result<Order> CheckRecord(const store::ControlRecord& record, std::span<const PublicKey> keys,
                                        const std::string& run_id, std::int64_t now_unix_ns);
/// True if one of the keys has signed the record, whatever it says and however old it is.
[[nodiscard]] bool IsSigned(const store::ControlRecord& record, std::span<const PublicKey> keys);

}  // namespace luff::keys
