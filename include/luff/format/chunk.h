#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "luff/base/result.h"
#include "luff/format/layout.h"
#include "luff/tensor/dtype.h"

/// Payload chunks: a 64-byte header, stored bytes, zeros up to a multiple of 64.
namespace luff::format {

struct ChunkInfo {
  std::uint32_t tensor = 0, layout = 0;
  DType dtype = DType::kInvalid;
  std::uint32_t part = 0, parts = 1;
  std::uint64_t ordinal = 0;
};

/// Limit on the raw bytes of a constant chunk: a few stored bytes must not expand to more than a reader can
/// hold.
inline constexpr std::uint64_t kMaxConstantBytes = 64ULL << 20;

/// Size of a chunk with its header and padding.
[[nodiscard]] constexpr std::uint64_t ChunkSpace(std::uint64_t stored_bytes) noexcept {
  return (sizeof(ChunkHeader) + stored_bytes + kChunkAlign - 1) & ~std::uint64_t{kChunkAlign - 1};
}

/// Writes the header before the `stored_bytes` at `chunk + 64`, and the padding after them. `content_hash` is
/// HashBytes of the raw bytes. A raw chunk is not read again: its content hash serves as its checksum.
void FinishChunk(std::byte* chunk, const ChunkInfo& info, Codec codec, std::uint64_t raw_bytes,
                 std::uint64_t stored_bytes, std::uint64_t content_hash) noexcept;

/// True if all elements have the same bits, there are at least two, and the value has at most
/// kMaxConstantBytes.
[[nodiscard]] bool IsConstant(std::span<const std::byte> raw, std::size_t width) noexcept;

/// Encodes `raw` into `to` (resized). With `try_codecs` it uses the constant or zero-bitmap codec if that
/// saves at least an eighth; otherwise raw. Returns the codec. `content_hash` as in FinishChunk.
Codec EncodeChunk(const ChunkInfo& info, std::span<const std::byte> raw, bool try_codecs,
                  std::uint64_t content_hash, std::vector<std::byte>* to);

struct ChunkView {
  ChunkHeader header{};
  std::span<const std::byte> stored;
};

/// Parses the chunk at `offset` of a payload file. Verifies the header; of the stored bytes it checks only
/// that they lie within bounds. Errors: kOutOfRange (beyond the bytes: torn or not yet there), kCorruption.
[[nodiscard]] Result<ChunkView> ParseChunkUntrusted(std::span<const std::byte> file, std::uint64_t offset);
/// Parses only the header, from its 64 bytes (for readers that use pread).
[[nodiscard]] Result<ChunkHeader> ParseChunkHeaderUntrusted(std::span<const std::byte> bytes);
/// Verifies the stored bytes of any codec. For raw chunks this is the content hash.
[[nodiscard]] Status VerifyChunkUntrusted(const ChunkView& chunk);
/// The same for stored bytes that `read` loads piece by piece into `scratch`, starting at stored byte `from`.
/// Errors: kCorruption, kResourceExhausted, and those of `read`.
using ReadStored = std::function<Status(std::uint64_t from, std::span<std::byte> to)>;
[[nodiscard]] Status VerifyChunkInPiecesUntrusted(const ChunkHeader& header, std::span<std::byte> scratch,
                                                  const ReadStored& read);
/// Verifies and decodes into `to`, which must have header.raw_bytes bytes. Errors: kCorruption,
/// kInvalidArgument (size).
[[nodiscard]] Status DecodeChunkUntrusted(const ChunkView& chunk, std::span<std::byte> to);

/// Offset of the next chunk when walking a payload file: `offset` itself if a header begins there, or the
/// next page after padding zeros. kOutOfRange at the end.
[[nodiscard]] Result<std::uint64_t> NextChunkOffsetUntrusted(std::span<const std::byte> file,
                                                             std::uint64_t offset);

}  // namespace luff::format
