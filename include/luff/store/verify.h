#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "luff/base/result.h"

/// Checking a whole run: every byte that has a checksum, and every reference.
namespace luff::store {

struct Damage {
  std::string file;  // path below the run directory
  std::uint64_t offset = 0;
  std::string what;  // what was found and what is lost
};

struct VerifyReport {
  std::uint64_t files = 0, frames = 0, footers = 0, chunks = 0, rows = 0, bytes = 0;
  std::uint64_t damage_count = 0;
  std::vector<Damage> damage;  // the first 1,000
  std::vector<std::string>
      notes;  // no damage: torn tails of what still runs or was killed, values deleted by retention
};

struct VerifyOptions {
  /// What may be decoded of values that are one number again and again: few bytes may stand for any number of
  /// them. Those beyond are checked by the checksum of what is stored, and a note says so.
  std::uint64_t max_bytes = 64ULL << 30;
};

/// Reads all of the run. Errors: those of ReadRunInfo, and kIo. Damage is no error. Threads: any.
[[nodiscard]] Result<VerifyReport> VerifyRun(const std::string& run_path, const VerifyOptions& options = {});

}  // namespace luff::store
