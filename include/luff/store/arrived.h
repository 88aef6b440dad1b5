#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "luff/base/result.h"

/// Requests that `luff sync` has fetched from a bucket: files requests/NNNNNN.json in the run directory, each
/// with the bytes of one object as they were, and removed once they were looked at (docs/spec/control.md).
namespace luff::store {

inline constexpr std::uint64_t kMaxArrivedBytes = 64 << 10;

struct Arrived {
  std::uint64_t number = 0;  // of the object in the bucket
  std::string bytes;
  std::string problem;  // why its bytes are not here, for people; else ""
};

/// Makes the folder, which is what `luff sync` looks for: without it, it fetches nothing. Errors: kIo.
[[nodiscard]] Status WantArrivals(const std::string& run_path);
/// At most `most` of them, those with the lowest numbers. Reads as ReadCommands() does. Errors: kNotFound (no
/// folder), kFailedPrecondition, kIo.
[[nodiscard]] Result<std::vector<Arrived>> ReadArrived(const std::string& run_path, std::size_t most);
/// Removes one that was looked at.
[[nodiscard]] Status RemoveArrived(const std::string& run_path, std::uint64_t number);

}  // namespace luff::store
