#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "luff/base/result.h"
#include "luff/store/verify.h"

/// Checking a directory that smdebug wrote; of a run of Luff's luff::store::VerifyRun.
namespace luff::query {

struct SmdebugReport {
  std::uint64_t files = 0, bytes = 0;
  std::uint64_t records = 0;    // of event files, good ones
  std::uint64_t unchecked = 0;  // of these: without a checksum of their payload, as smdebug writes them
  std::uint64_t values = 0, shapes = 0;  // that index files name
  std::uint64_t workers = 0, steps = 0;
  std::uint64_t damage_count = 0;
  std::vector<store::Damage> damage;  // the first 1,000: place, what was found and expected, remedy
  std::vector<std::string> notes;     // no damage: a job that runs or was killed
};

/// True for a directory that has what only smdebug makes.
[[nodiscard]] bool IsSmdebugDirectory(const std::string& path);

/// Reads all of it: each record of the event files with its checksums and its tensor, index files and what
/// they name, collections, who wrote. Memory: the largest record, and some 200 bytes for each index file.
/// Errors: kNotFound, kIo. Damage is no error. Threads: any.
[[nodiscard]] Result<SmdebugReport> VerifySmdebug(const std::string& path);

}  // namespace luff::query
