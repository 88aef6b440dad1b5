#pragma once
#include <cstddef>
#include <vector>

#include "luff/base/status.h"
#include "luff/format/chunk.h"

namespace luff::format {

/// Checks that the value of a verified chunk has the content hash in its header. Does not expand constant
/// chunks, whose few bytes may stand for 64 MiB. Expands zero bitmaps into `scratch`, to at most 128 times
/// the stored bytes. Errors: kCorruption, kResourceExhausted.
[[nodiscard]] Status CheckContentUntrusted(const ChunkView& chunk, std::vector<std::byte>* scratch);

}  // namespace luff::format
