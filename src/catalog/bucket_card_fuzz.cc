// Fuzzes the cards of a bucket: any object must give a card or an error, and a card must be written again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "catalog/bucket_card.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto card = luff::catalog::ParseBucketCardUntrusted({reinterpret_cast<const char*>(data), size});
  if (!card.ok()) return card.status().message().empty() ? (std::abort(), 0) : 0;
  const std::string again = luff::catalog::BucketCard(*card);
  if (again.size() > luff::catalog::kMaxBucketCard) std::abort();
  if (!luff::catalog::ParseBucketCardUntrusted(again).ok()) std::abort();
  return 0;
}
