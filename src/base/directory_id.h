#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "luff/base/result.h"

namespace luff {

/// A directory whatever it is called.
struct DirectoryId {
  std::uint64_t device = 0, inode = 0;
  friend bool operator==(const DirectoryId&, const DirectoryId&) = default;
};

/// The directory at `path` now; none of the last `inside` names may be a link. Errors: kNotFound; kCorruption
/// (a link, or no directory); kIo.
[[nodiscard]] Result<DirectoryId> DirectoryAt(const std::string& path, std::size_t inside);

}  // namespace luff
