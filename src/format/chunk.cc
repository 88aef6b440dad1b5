#include "luff/format/chunk.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <string>

#include "luff/base/bytes.h"
#include "luff/format/frames.h"

namespace luff::format {
namespace {

std::uint64_t BitmapBytes(std::uint64_t elements) noexcept { return AlignUp((elements + 7) / 8, 8); }

/// Checksum over a header and the hash of its stored bytes. Raw chunks leave out that hash: the content hash
/// in the header covers the stored bytes.
std::uint64_t ChunkChecksum(const ChunkHeader& header, std::uint64_t stored_hash) noexcept {
  const bool raw = header.codec == static_cast<std::uint8_t>(Codec::kRaw);
  return XXH3_64bits_withSeed(&header, offsetof(ChunkHeader, checksum), raw ? 0 : stored_hash);
}

std::uint64_t ChunkChecksum(const ChunkHeader& header, std::span<const std::byte> stored) noexcept {
  const bool raw = header.codec == static_cast<std::uint8_t>(Codec::kRaw);
  return ChunkChecksum(header, raw ? 0 : XXH3_64bits(stored.data(), stored.size()));
}

/// True if all bytes of an element are zero. Compares words.
bool IsZero(const std::byte* data, std::size_t width) noexcept {
  switch (width) {
    case 1: return *data == std::byte{0};
    case 2: {
      std::uint16_t v;
      std::memcpy(&v, data, 2);
      return v == 0;
    }
    case 4: {
      std::uint32_t v;
      std::memcpy(&v, data, 4);
      return v == 0;
    }
    case 8: {
      std::uint64_t v;
      std::memcpy(&v, data, 8);
      return v == 0;
    }
    default: {
      std::uint64_t v[2];
      std::memcpy(v, data, 16);
      return (v[0] | v[1]) == 0;
    }
  }
}

constexpr std::size_t kBitmapWord = 64;  // elements encoded at a time

/// Writes a bitmap (bit i: element i is not zero), then the elements that are not zero. Returns the number of
/// bytes written, or limit + 1 as soon as it exceeds `limit`. `to` has room for a word of elements and one
/// element beyond the limit.
template <std::size_t kWidth>
std::size_t EncodeBitmap(const std::byte* raw, std::size_t elements, std::byte* to,
                         std::size_t limit) noexcept {
  const std::size_t bitmap = static_cast<std::size_t>(BitmapBytes(elements));
  std::byte* values = to + bitmap;
  if (bitmap > limit) return limit + 1;
  for (std::size_t begin = 0; begin < bitmap * 8; begin += kBitmapWord) {
    std::uint64_t bits = 0;
    const std::size_t end = std::min<std::size_t>(begin + kBitmapWord, elements);
    for (std::size_t i = begin; i < end; ++i) {
      const std::byte* element = raw + i * kWidth;
      const bool set = !IsZero(element, kWidth);
      std::memcpy(values, element, kWidth);
      values += set ? kWidth : 0;
      bits |= std::uint64_t{set} << (i - begin);
    }
    std::memcpy(to + begin / 8, &bits, 8);
    if (static_cast<std::size_t>(values - to) > limit) return limit + 1;
  }
  return static_cast<std::size_t>(values - to);
}

template <std::size_t kWidth>
Status DecodeBitmap(std::span<const std::byte> stored, std::span<std::byte> to) {
  if (to.size() > (std::uint64_t{1} << 62)) return Corruption("chunk with an impossible size");
  const std::size_t elements = to.size() / kWidth;
  const std::size_t bitmap = static_cast<std::size_t>(BitmapBytes(elements));
  std::uint64_t set = 0;
  for (std::size_t at = 0; at < bitmap; at += 8) {
    std::uint64_t bits;
    std::memcpy(&bits, stored.data() + at, 8);
    const std::size_t first = at * 8;
    if (first + 64 > elements) {
      const std::size_t used = elements - first;  // the last word; bits beyond the elements must be clear
      if (used < 64 && (bits >> used) != 0) return Corruption("zero bitmap has bits beyond its elements");
    }
    set += static_cast<std::uint64_t>(std::popcount(bits));
  }
  if (bitmap + set * kWidth != stored.size()) {
    return Corruption("zero bitmap counts " + std::to_string(set) +
                      " values, which does not fit the stored bytes");
  }
  const std::byte* values = stored.data() + bitmap;
  std::fill(to.begin(), to.end(), std::byte{0});
  for (std::size_t at = 0; at < bitmap; at += 8) {
    std::uint64_t bits;
    std::memcpy(&bits, stored.data() + at, 8);
    while (bits != 0) {
      const std::size_t element = at * 8 + static_cast<std::size_t>(std::countr_zero(bits));
      std::memcpy(to.data() + element * kWidth, values, kWidth);
      values += kWidth;
      bits &= bits - 1;
    }
  }
  return Status::Ok();
}

bool KnownWidth(std::size_t width) noexcept {
  return width == 1 || width == 2 || width == 4 || width == 8 || width == 16;
}

}  // namespace

void FinishChunk(std::byte* chunk, const ChunkInfo& info, Codec codec, std::uint64_t raw_bytes,
                 std::uint64_t stored_bytes, std::uint64_t content_hash) noexcept {
  ChunkHeader header{};
  header.magic = kChunkMagic;
  header.dtype = static_cast<std::uint8_t>(info.dtype);
  header.codec = static_cast<std::uint8_t>(codec);
  header.tensor = info.tensor;
  header.layout = info.layout;
  header.part = info.part;
  header.parts = info.parts;
  header.ordinal = info.ordinal;
  header.raw_bytes = raw_bytes;
  header.stored_bytes = stored_bytes;
  header.content_hash = content_hash;
  header.checksum = ChunkChecksum(header, {chunk + sizeof(header), static_cast<std::size_t>(stored_bytes)});
  std::memcpy(chunk, &header, sizeof(header));
  const std::uint64_t used = sizeof(header) + stored_bytes;
  std::memset(chunk + used, 0, static_cast<std::size_t>(ChunkSpace(stored_bytes) - used));
}

bool IsConstant(std::span<const std::byte> raw, std::size_t width) noexcept {
  if (width == 0 || raw.size() < 2 * width || raw.size() % width != 0 || raw.size() > kMaxConstantBytes)
    return false;
  return std::memcmp(raw.data(), raw.data() + width, raw.size() - width) == 0;
}

Codec EncodeChunk(const ChunkInfo& info, std::span<const std::byte> raw, bool try_codecs,
                  std::uint64_t content_hash, std::vector<std::byte>* to) {
  const std::size_t width = DTypeSize(info.dtype);
  const auto finish = [&](Codec codec, std::size_t stored) {
    to->resize(static_cast<std::size_t>(ChunkSpace(stored)));
    FinishChunk(to->data(), info, codec, raw.size(), stored, content_hash);
    return codec;
  };
  constexpr std::size_t kHeader = sizeof(ChunkHeader);
  if (try_codecs && KnownWidth(width) && raw.size() % width == 0) {
    if (IsConstant(raw, width)) {
      to->resize(static_cast<std::size_t>(ChunkSpace(width)));
      std::memcpy(to->data() + kHeader, raw.data(), width);
      return finish(Codec::kConstant, width);
    }
    const std::size_t limit = raw.size() - raw.size() / 8;
    if (raw.size() >= 64) {
      // The encoder stores an element before it knows whether it is zero, and checks the limit once per word.
      to->resize(static_cast<std::size_t>(ChunkSpace(limit + (kBitmapWord + 1) * width)));
      std::byte* body = to->data() + kHeader;
      const std::size_t elements = raw.size() / width;
      std::size_t stored = 0;
      switch (width) {
        case 1: stored = EncodeBitmap<1>(raw.data(), elements, body, limit); break;
        case 2: stored = EncodeBitmap<2>(raw.data(), elements, body, limit); break;
        case 4: stored = EncodeBitmap<4>(raw.data(), elements, body, limit); break;
        case 8: stored = EncodeBitmap<8>(raw.data(), elements, body, limit); break;
        default: stored = EncodeBitmap<16>(raw.data(), elements, body, limit); break;
      }
      if (stored <= limit) return finish(Codec::kZeroBitmap, stored);
    }
  }
  to->resize(static_cast<std::size_t>(ChunkSpace(raw.size())));
  if (!raw.empty()) std::memcpy(to->data() + kHeader, raw.data(), raw.size());
  return finish(Codec::kRaw, raw.size());
}

Result<ChunkHeader> ParseChunkHeaderUntrusted(std::span<const std::byte> bytes) {
  ChunkHeader header;
  if (bytes.size() < sizeof(header)) return OutOfRange("chunk header is cut off");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kChunkMagic) return Corruption("found no chunk where one should be");
  if (!IsKnownDType(header.dtype))
    return Corruption("chunk of unknown dtype " + std::to_string(header.dtype));
  if (header.codec > static_cast<std::uint8_t>(Codec::kConstant)) {
    return Corruption("chunk of unknown codec " + std::to_string(header.codec));
  }
  if (header.parts == 0 || header.part >= header.parts)
    return Corruption("chunk with an impossible part number");
  const std::size_t width = DTypeSize(static_cast<DType>(header.dtype));
  if (header.raw_bytes > (std::uint64_t{1} << 62) || header.stored_bytes > header.raw_bytes + 4096) {
    return Corruption("chunk with an impossible size");
  }
  switch (static_cast<Codec>(header.codec)) {
    case Codec::kRaw:
      if (header.stored_bytes != header.raw_bytes) return Corruption("raw chunk of two sizes");
      if (header.checksum != ChunkChecksum(header, 0))
        return Corruption("checksum of a chunk header does not match");
      break;
    case Codec::kConstant:
      if (header.stored_bytes != width || header.raw_bytes % width != 0 ||
          header.raw_bytes > kMaxConstantBytes)
        return Corruption("constant chunk of a wrong size");
      break;
    case Codec::kZeroBitmap:
      if (header.raw_bytes % width != 0 || header.stored_bytes < BitmapBytes(header.raw_bytes / width)) {
        return Corruption("zero bitmap of a wrong size");
      }
      break;
  }
  return header;
}

Result<ChunkView> ParseChunkUntrusted(std::span<const std::byte> file, std::uint64_t offset) {
  if (offset % kChunkAlign != 0) return Corruption("offset that no chunk can have");
  if (offset > file.size() || file.size() - offset < sizeof(ChunkHeader)) {
    return OutOfRange("payload ends at byte " + std::to_string(file.size()) + ", before the chunk at " +
                      std::to_string(offset));
  }
  ChunkView view;
  const auto rest = file.subspan(static_cast<std::size_t>(offset));
  LUFF_ASSIGN_OR_RETURN(view.header, ParseChunkHeaderUntrusted(rest));
  if (view.header.stored_bytes > rest.size() - sizeof(ChunkHeader)) {
    return OutOfRange("payload ends at byte " + std::to_string(file.size()) + ", within the chunk at " +
                      std::to_string(offset));
  }
  view.stored = rest.subspan(sizeof(ChunkHeader), static_cast<std::size_t>(view.header.stored_bytes));
  return view;
}

Status VerifyChunkUntrusted(const ChunkView& chunk) {
  if (chunk.stored.size() != chunk.header.stored_bytes) return Corruption("chunk of a wrong size");
  if (chunk.header.checksum != ChunkChecksum(chunk.header, chunk.stored)) {
    return Corruption("checksum of a chunk does not match");
  }
  if (chunk.header.codec == static_cast<std::uint8_t>(Codec::kRaw) &&
      HashBytes(chunk.stored) != chunk.header.content_hash) {
    return Corruption("checksum of a chunk does not match");
  }
  return Status::Ok();
}

Status VerifyChunkInPiecesUntrusted(const ChunkHeader& header, std::span<std::byte> scratch,
                                    const ReadStored& read) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  if (state == nullptr) return ResourceExhausted("no memory for a checksum");
  XXH3_64bits_reset(state.get());
  for (std::uint64_t done = 0; done < header.stored_bytes;) {
    const auto piece = scratch.first(
        static_cast<std::size_t>(std::min<std::uint64_t>(scratch.size(), header.stored_bytes - done)));
    LUFF_RETURN_IF_ERROR(read(done, piece));
    XXH3_64bits_update(state.get(), piece.data(), piece.size());
    done += piece.size();
  }
  const std::uint64_t hash = XXH3_64bits_digest(state.get());
  const bool raw = header.codec == static_cast<std::uint8_t>(Codec::kRaw);
  if (header.checksum != ChunkChecksum(header, hash) || (raw && hash != header.content_hash))
    return Corruption("checksum of a chunk does not match");
  return Status::Ok();
}

Status DecodeChunkUntrusted(const ChunkView& chunk, std::span<std::byte> to) {
  LUFF_RETURN_IF_ERROR(VerifyChunkUntrusted(chunk));
  if (to.size() != chunk.header.raw_bytes) {
    return InvalidArgument("room for " + std::to_string(to.size()) + " bytes, expected " +
                           std::to_string(chunk.header.raw_bytes));
  }
  const std::size_t width = DTypeSize(static_cast<DType>(chunk.header.dtype));
  Status status;
  switch (static_cast<Codec>(chunk.header.codec)) {
    case Codec::kRaw:
      if (chunk.stored.size() != to.size()) return Corruption("raw chunk of two sizes");
      if (!to.empty()) std::memcpy(to.data(), chunk.stored.data(), to.size());
      return Status::Ok();
    case Codec::kConstant:
      if (width == 0 || chunk.stored.size() != width || to.size() % width != 0) {
        return Corruption("constant chunk of a wrong size");
      }
      // Doubles the filled part each time: for elements of one byte, copying one by one would take a call for
      // each.
      if (!to.empty()) std::memcpy(to.data(), chunk.stored.data(), width);
      for (std::size_t done = width; done < to.size(); done *= 2)
        std::memcpy(to.data() + done, to.data(), std::min(done, to.size() - done));
      break;
    case Codec::kZeroBitmap:
      if (!KnownWidth(width) || to.size() % width != 0 ||
          chunk.stored.size() < BitmapBytes(to.size() / width)) {
        return Corruption("zero bitmap of a wrong size");
      }
      switch (width) {
        case 1: status = DecodeBitmap<1>(chunk.stored, to); break;
        case 2: status = DecodeBitmap<2>(chunk.stored, to); break;
        case 4: status = DecodeBitmap<4>(chunk.stored, to); break;
        case 8: status = DecodeBitmap<8>(chunk.stored, to); break;
        default: status = DecodeBitmap<16>(chunk.stored, to); break;
      }
      LUFF_RETURN_IF_ERROR(std::move(status));
      break;
  }
  if (HashBytes(to) != chunk.header.content_hash)
    return Corruption("decoded chunk does not match its content hash");
  return Status::Ok();
}

Result<std::uint64_t> NextChunkOffsetUntrusted(std::span<const std::byte> file, std::uint64_t offset) {
  offset = AlignUp(offset, kChunkAlign);
  while (offset <= file.size() && file.size() - offset >= sizeof(ChunkHeader)) {
    std::uint32_t magic = 0;
    std::memcpy(&magic, file.data() + offset, sizeof(magic));
    if (magic != 0) return offset;
    offset = AlignUp(offset + 1, kPageBytes);
  }
  return OutOfRange("end of the payload");
}

}  // namespace luff::format
