#pragma once
#include <cstdint>
#include <string>

#include "luff/base/env.h"

/// Keeps a full disk from silencing a run: payload leaves a margin for everything else, and the writer
/// reserves some blocks to record at the end what was lost.
namespace luff::store {

struct DiskSpace {
  std::uint64_t total = 0, available = 0;  // bytes; both 0 if the file system does not report them
};
[[nodiscard]] DiskSpace DiskSpaceOf(const std::string& directory) noexcept;

/// How many bytes payload leaves free for metadata, findings and other programs: a twentieth of the file
/// system, at most 64 MiB.
[[nodiscard]] std::uint64_t PayloadMargin(std::uint64_t total) noexcept;

/// A file `reserve` of zeros in a worker's folder, which exists while the writer is open. **Owned by the
/// writer thread.**
class DiskReserve {
 public:
  static constexpr std::uint64_t kBytes = 64U << 10;
  DiskReserve(Env& env, const std::string& directory);

  /// Reserves the blocks. If the disk refuses there are none, which is not an error.
  void Take();
  /// Releases the blocks, for the last records.
  void Release();

 private:
  Env& env_;
  const std::string path_;
};

}  // namespace luff::store
