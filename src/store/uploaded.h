#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "luff/base/result.h"

namespace luff::store {

/// What an upload says of payload that it has put into a bucket: `sync/uploaded.json` of the run
/// (docs/spec/bucket-format.md, 12). There only if the owner wants to keep less than everything here.
struct Uploaded {
  std::string url;                                 // of the run in the bucket
  std::int64_t unix_ns = 0;                        // when it was said
  std::uint64_t keep_bytes = 0;                    // of payload that is to stay here
  std::map<std::uint32_t, std::uint64_t> payload;  // of one worker: bytes in the bucket, by file
};

/// Parses the text. Bounds: at most 1 MiB. Errors: kCorruption.
[[nodiscard]] Result<Uploaded> ParseUploadedUntrusted(std::string_view text, std::uint32_t worker);
/// Reads it, for who removes payload because of it: only from folders and files that the user owns and nobody
/// else may write. Errors: kNotFound if no upload says anything; kFailedPrecondition; kCorruption; kIo.
[[nodiscard]] Result<Uploaded> ReadUploaded(const std::string& run_path, std::uint32_t worker);

}  // namespace luff::store
