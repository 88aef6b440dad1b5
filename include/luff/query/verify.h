#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "luff/base/result.h"
#include "luff/store/verify.h"

/// Checks a directory that smdebug wrote. luff::store::VerifyRun checks a run that Luff wrote.
namespace luff::query {

struct SmdebugReport {
  std::uint64_t files = 0, bytes = 0;
  std::uint64_t records = 0;             // intact records of event files
  std::uint64_t unchecked = 0;           // of these, without a payload checksum, as smdebug writes them
  std::uint64_t values = 0, shapes = 0;  // listed in index files
  std::uint64_t workers = 0, steps = 0;
  std::uint64_t damage_count = 0;
  std::vector<store::Damage> damage;  // the first 1,000: place, what was found and expected, remedy
  std::vector<std::string> notes;     // not damage: traces of a running or killed job
};

/// True if the directory has the folders that only smdebug creates.
[[nodiscard]] bool IsSmdebugDirectory(const std::string& path);

/// Checks the whole directory: each record of the event files with its checksums and its tensor, index files
/// and the records they refer to, collections, workers. Memory: the largest record, and about 200 bytes for
/// each index file. Errors: kNotFound, kIo. Damage is not an error. **Thread-safe.**
[[nodiscard]] Result<SmdebugReport> VerifySmdebug(const std::string& path);

}  // namespace luff::query
