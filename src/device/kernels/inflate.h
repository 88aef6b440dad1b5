#pragma once
#include <span>

namespace luff::device {

/// Unpacks a deflate stream (RFC 1951) into `out`. Returns true if it is whole and fills `out` exactly. Reads
/// and writes nothing beyond the two. Slow, about 20 MB/s: it is for one image that is unpacked once.
[[nodiscard]] bool InflateUntrusted(std::span<const unsigned char> packed,
                                    std::span<unsigned char> out) noexcept;

}  // namespace luff::device
