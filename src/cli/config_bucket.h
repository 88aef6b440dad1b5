#pragma once
#include <optional>

#include "cli/config_place.h"
#include "cli/upload_cost.h"
#include "luff/base/process.h"

namespace luff::cli {

/// [bucket] of luff.toml.
struct BucketConfig {
  std::optional<BucketPrices> prices;
  /// What the upload is told in its environment: how the store encrypts (as its own tools are told), and who
  /// can read.
  Variables environment;
};

/// Errors: kInvalidArgument with file and line.
[[nodiscard]] Result<BucketConfig> ReadBucket(const toml::table& table, const ConfigPlace& place);

/// kInvalidArgument if the environment of `BucketConfig` names an encryption that the store of `url` does not
/// take: only S3 does by `sse`.
[[nodiscard]] Status CheckEncryptionBy(const Variables& environment, const std::string& url);

}  // namespace luff::cli
