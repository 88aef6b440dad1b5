#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "catalog/card.h"
#include "luff/base/result.h"

/// The card of a run in a bucket: the object `cards/ID` (docs/spec/bucket-format.md, 8).
namespace luff::catalog {

/// Most bytes of the object.
inline constexpr std::size_t kMaxBucketCard = 8192;

/// The card as one line of JSON of at most kMaxBucketCard bytes, without the path that the run has on its
/// host. What does not fit is left out, scalars beyond 16 first, and the member `cut` says so.
[[nodiscard]] std::string BucketCard(const Card& card);

/// Reads such an object. `run` and `name` of the card are as the object has them. Errors: kCorruption for
/// what is no card, kUnsupportedVersion for one of a later version.
[[nodiscard]] Result<Card> ParseBucketCardUntrusted(std::string_view text);

}  // namespace luff::catalog
