#pragma once
#include <cstdint>
#include <string>

#include "luff/base/result.h"

namespace luff {

/// Reads a regular file that holds secrets; never follows a link at its path. Errors: kFailedPrecondition if
/// others may read or write it, or it belongs to another user; kNotFound; kCorruption for a link or what is
/// no regular file; kOutOfRange for more than `limit` bytes; kIo.
[[nodiscard]] Result<std::string> ReadPrivate(const std::string& path, std::uint64_t limit);

}  // namespace luff
