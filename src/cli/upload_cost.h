#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/json.h"

/// What the upload of a run into a bucket has cost so far.
namespace luff::cli {

/// What a provider charges, in the currency of whoever wrote it: [bucket] of luff.toml.
struct BucketPrices {
  double per_1000_puts = 0;  // puts and lists
  double per_1000_gets = 0;
  double per_gb_month = 0;  // 10^9 bytes
};

struct Upload {
  std::string url;               // of the run in the bucket
  std::uint64_t requests = 0;    // of these
  std::uint64_t puts = 0;        // puts and lists, which cost most
  std::uint64_t sent_bytes = 0;  // put; more than what is kept, since heads are replaced
};

/// Uploads of a run directory: of each host, `sync/uNNNN.json`; of a copy of a run in a bucket, all together.
[[nodiscard]] std::vector<Upload> UploadsOf(const std::string& run);
/// "412 requests (300 puts and lists), 18.2 MB sent", and with prices what they cost.
[[nodiscard]] std::string UploadText(const Upload& upload, const std::optional<BucketPrices>& prices);
[[nodiscard]] Json ToJson(const Upload& upload, const std::optional<BucketPrices>& prices);

}  // namespace luff::cli
