#pragma once
#include <memory>
#include <string>

#include "catalog/bucket_look.h"
#include "catalog/catalog.h"

/// The runs of a bucket.
namespace luff::cli {

/// Asks a bucket through Luff's Python package.
[[nodiscard]] std::unique_ptr<catalog::CardSource> CardsOfBucket(std::string url);
/// The URL of a bucket without slashes at its end.
[[nodiscard]] std::string BucketUrl(std::string url);
/// The run that `URL/@1` means, the newest of a bucket; anything else stays as it is. Exits with a message
/// where there is none.
[[nodiscard]] std::string RunUrlOrExit(const std::string& url);
/// How many digits of their ids tell these runs apart: 8, or all 32.
[[nodiscard]] std::size_t DigitsOf(const catalog::Answer& answer);

}  // namespace luff::cli
