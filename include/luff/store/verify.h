#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "luff/base/result.h"

/// Checks a whole run: every byte that has a checksum, and every reference.
namespace luff::store {

struct Damage {
  std::string file;  // path below the run directory
  std::uint64_t offset = 0;
  std::string what;  // what was found and what is lost
};

struct VerifyReport {
  std::uint64_t files = 0, frames = 0, footers = 0, chunks = 0, rows = 0, bytes = 0;
  std::uint64_t absent = 0;  // of `rows`: their values are not here, and were not checked
  std::uint64_t damage_count = 0;
  std::vector<Damage> damage;  // the first 1,000
  std::vector<std::string>
      notes;  // not damage: torn tails of running or killed jobs, values deleted by retention
};

struct VerifyOptions {
  /// Limit on the decoded bytes of values that repeat one number, since a few stored bytes can expand to any
  /// size. Beyond the limit only the checksum of the stored bytes is checked, and a note is added.
  std::uint64_t max_bytes = 64ULL << 30;
  /// Whether raw values are read. Without them all else is checked: names, steps, statistics, events, places.
  bool values = true;
};

/// Reads the whole run. Errors: those of ReadRunInfo, and kIo. Damage is not an error. **Thread-safe.**
[[nodiscard]] Result<VerifyReport> VerifyRun(const std::string& run_path, const VerifyOptions& options = {});

}  // namespace luff::store
