#include "format/chunk_content.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>

namespace luff::format {
namespace {

constexpr std::size_t kBlock = 64 << 10;  // a multiple of every width

Status CheckConstant(const ChunkView& chunk) {
  const std::size_t width = chunk.stored.size();
  const std::uint64_t bytes = chunk.header.raw_bytes;
  if (width == 0 || width > kBlock || kBlock % width != 0 || bytes % width != 0 || bytes > kMaxConstantBytes)
    return Corruption("constant chunk of a wrong size");
  std::vector<std::byte> block(static_cast<std::size_t>(std::min<std::uint64_t>(bytes, kBlock)));
  for (std::size_t at = 0; at < block.size(); at += width)
    std::memcpy(block.data() + at, chunk.stored.data(), width);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  if (state == nullptr) return ResourceExhausted("no memory for a checksum");
  XXH3_64bits_reset(state.get());
  for (std::uint64_t left = bytes; left > 0;) {
    const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(left, block.size()));
    XXH3_64bits_update(state.get(), block.data(), part);
    left -= part;
  }
  if (XXH3_64bits_digest(state.get()) != chunk.header.content_hash)
    return Corruption("decoded chunk does not match its content hash");
  return Status::Ok();
}

}  // namespace

Status CheckContentUntrusted(const ChunkView& chunk, std::vector<std::byte>* scratch) {
  switch (static_cast<Codec>(chunk.header.codec)) {
    case Codec::kRaw: return Status::Ok();  // verified: its content hash is that of its stored bytes
    case Codec::kConstant: return CheckConstant(chunk);
    case Codec::kZeroBitmap: break;
  }
  scratch->resize(std::max(scratch->size(), static_cast<std::size_t>(chunk.header.raw_bytes)));
  return DecodeChunkUntrusted(chunk,
                              std::span(*scratch).first(static_cast<std::size_t>(chunk.header.raw_bytes)));
}

}  // namespace luff::format
