#pragma once
#include <cstdint>
#include <string>

#include "luff/base/env.h"

/// What keeps a full disk from silencing a run: payload leaves a margin to everybody else, and the writer
/// holds some blocks back to say at the end what was lost.
namespace luff::store {

struct DiskSpace {
  std::uint64_t total = 0, available = 0;  // bytes; both 0 when the file system cannot tell
};
[[nodiscard]] DiskSpace DiskSpaceOf(const std::string& directory) noexcept;

/// Bytes of a file system that payload leaves to metadata, findings and other programs: a twentieth, at most
/// 64 MiB.
[[nodiscard]] std::uint64_t PayloadMargin(std::uint64_t total) noexcept;

/// A file `reserve` of zeros in a worker's folder, held while the writer is open. **Owned by the writer
/// thread.**
class DiskReserve {
 public:
  static constexpr std::uint64_t kBytes = 64U << 10;
  DiskReserve(Env& env, const std::string& directory);

  /// Takes the blocks; a disk that refuses gives none, which is no error.
  void Take();
  /// Gives them back, for the last words.
  void Release();

 private:
  Env& env_;
  const std::string path_;
};

}  // namespace luff::store
