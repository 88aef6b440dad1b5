#pragma once
#include <cstddef>
#include <vector>

#include "luff/base/status.h"
#include "luff/format/chunk.h"

namespace luff::format {

/// Whether the value of a verified chunk has the content hash that its header says. The value of a constant
/// chunk is not made: 64 MiB of it stand in a few bytes. That of a zero bitmap is, in `scratch`: it has at
/// most 128 times as many bytes as are stored.
[[nodiscard]] Status CheckContentUntrusted(const ChunkView& chunk, std::vector<std::byte>* scratch);

}  // namespace luff::format
