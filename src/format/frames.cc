#include "luff/format/frames.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "luff/base/bytes.h"
#include "luff/format/live.h"

namespace luff::format {
namespace {

/// Seed of a frame's checksum: hash of its header without the checksum, seeded with its place in the run.
std::uint64_t FrameSeed(const FrameHeader& header, std::uint64_t sequence, std::uint64_t offset) noexcept {
  static_assert(offsetof(FrameHeader, checksum) == 24);
  return XXH3_64bits_withSeed(&header, offsetof(FrameHeader, checksum), sequence << 40 ^ offset);
}

std::uint64_t ChecksumBytes(const FrameHeader& header, std::uint64_t available) noexcept {
  if ((header.flags & kFlagHeadChecksumOnly) == 0) return header.body_bytes;
  // The head's size is the first word of the footer; 184 in this version. A wrong flag only makes
  // the checksum fail.
  return available < 184 ? available : 184;
}

FrameOutcome ParseFrameHeader(std::span<const std::byte> bytes, FrameHeader* header) noexcept {
  if (bytes.size() < sizeof(*header)) return FrameOutcome::kIncomplete;
  std::memcpy(header, bytes.data(), sizeof(*header));
  const bool good =
      header->magic == kFrameMagic && header->reserved == 0 && header->body_bytes <= kMaxFrameBody;
  return good ? FrameOutcome::kFrame : FrameOutcome::kBad;
}

FrameOutcome ParseBody(const FrameHeader& header, std::span<const std::byte> body, std::uint64_t offset,
                       std::uint64_t sequence, FrameView* out) noexcept {
  const std::uint64_t covered = ChecksumBytes(header, body.size());
  if (header.checksum != XXH3_64bits_withSeed(body.data(), static_cast<std::size_t>(covered),
                                              FrameSeed(header, sequence, offset))) {
    return FrameOutcome::kBad;
  }
  out->kind = static_cast<FrameKind>(header.kind);
  out->flags = header.flags;
  out->ordinal = header.ordinal;
  out->offset = offset;
  out->next_offset = offset + sizeof(header) + AlignUp(header.body_bytes, kFrameAlign);
  out->body = body;
  return FrameOutcome::kFrame;
}

}  // namespace

std::uint64_t HashBytes(std::span<const std::byte> bytes, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

bool IsLivePageUntrusted(std::span<const std::byte> page) noexcept {
  if (page.size() < sizeof(LivePage)) return false;
  std::uint64_t magic = 0;
  std::uint64_t checksum = 0;
  std::memcpy(&magic, page.data() + offsetof(LivePage, magic), sizeof(magic));
  std::memcpy(&checksum, page.data() + offsetof(LivePage, checksum), sizeof(checksum));
  return magic == kLiveMagic && checksum == HashBytes(page.first(offsetof(LivePage, checksum)));
}

std::optional<LiveNews> ParseLiveNewsUntrusted(std::span<const std::byte> bytes) noexcept {
  LiveNews news;
  if (bytes.size() < sizeof(news)) return std::nullopt;
  std::memcpy(&news, bytes.data(), sizeof(news));
  if (news.checksum != HashBytes(bytes.first(offsetof(LiveNews, checksum)))) return std::nullopt;
  return news;
}

void SealLiveNews(LiveNews* news) noexcept {
  news->checksum = HashBytes(std::as_bytes(std::span(news, 1)).first(offsetof(LiveNews, checksum)));
}

void SealFileHeader(FileHeader* header, std::uint64_t magic) noexcept {
  header->magic = magic;
  header->major = kFormatMajor;
  header->minor = kFormatMinor;
  header->header_bytes = static_cast<std::uint32_t>(kFileHeaderBytes);
  header->checksum = XXH3_64bits(header, offsetof(FileHeader, checksum));
}

Result<FileHeader> ParseFileHeaderUntrusted(std::span<const std::byte> file, std::uint64_t magic) {
  FileHeader header;
  if (file.size() < sizeof(header)) {
    return Corruption("found " + std::to_string(file.size()) + " bytes, expected a file header of 4096");
  }
  std::memcpy(&header, file.data(), sizeof(header));
  if (header.magic != magic) return Corruption("found no magic number at the beginning of the file");
  if (header.checksum != XXH3_64bits(&header, offsetof(FileHeader, checksum))) {
    return Corruption("checksum of the file header does not match");
  }
  if (header.major > kFormatMajor) {
    return UnsupportedVersion("found format version " + std::to_string(header.major) + "." +
                              std::to_string(header.minor) + ", this build reads up to " +
                              std::to_string(kFormatMajor) + "; use a newer luff");
  }
  if (header.header_bytes != kFileHeaderBytes) return Corruption("file header of an unexpected size");
  return header;
}

void FrameBuffer::Reset(std::uint64_t sequence, std::uint64_t base_offset) {
  bytes_.clear();
  sequence_ = sequence;
  base_offset_ = base_offset;
  begin_ = 0;
}

void FrameBuffer::Begin(FrameKind kind, std::uint64_t ordinal, std::uint16_t flags) {
  begin_ = bytes_.size();
  FrameHeader header{};
  header.magic = kFrameMagic;
  header.kind = static_cast<std::uint16_t>(kind);
  header.flags = flags;
  header.ordinal = ordinal;
  Put(&header, sizeof(header));
}

void FrameBuffer::Put(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  bytes_.insert(bytes_.end(), from, from + bytes);
}

void FrameBuffer::PutVarint(std::uint64_t value) {
  std::byte text[10];
  std::size_t n = 0;
  while (value >= 0x80) {
    text[n++] = static_cast<std::byte>(value | 0x80);
    value >>= 7;
  }
  text[n++] = static_cast<std::byte>(value);
  Put(text, n);
}

void FrameBuffer::PutZeros(std::size_t bytes) { bytes_.resize(bytes_.size() + bytes); }

void FrameBuffer::Overwrite(std::uint64_t offset, const void* data, std::size_t bytes) {
  std::memcpy(bytes_.data() + (offset - base_offset_), data, bytes);
}

void FrameBuffer::End(std::size_t checksum_bytes) {
  const std::size_t body = body_bytes();
  FrameHeader header;
  std::memcpy(&header, bytes_.data() + begin_, sizeof(header));
  header.body_bytes = static_cast<std::uint32_t>(body);
  const std::byte* data = bytes_.data() + begin_ + sizeof(header);
  header.checksum = XXH3_64bits_withSeed(data, checksum_bytes < body ? checksum_bytes : body,
                                         FrameSeed(header, sequence_, base_offset_ + begin_));
  std::memcpy(bytes_.data() + begin_, &header, sizeof(header));
  PutZeros(AlignUp(body, kFrameAlign) - body);
}

FrameOutcome ParseFrameUntrusted(std::span<const std::byte> file, std::uint64_t offset,
                                 std::uint64_t sequence, FrameView* out) noexcept {
  return ParseFrameInWindowUntrusted(file, 0, offset, sequence, out);
}

FrameOutcome ParseFrameInWindowUntrusted(std::span<const std::byte> window, std::uint64_t window_offset,
                                         std::uint64_t offset, std::uint64_t sequence,
                                         FrameView* out) noexcept {
  if (offset < window_offset || offset % kFrameAlign != 0) return FrameOutcome::kBad;
  const std::uint64_t at = offset - window_offset;
  FrameHeader header;
  if (at > window.size()) return FrameOutcome::kIncomplete;
  const auto rest = window.subspan(static_cast<std::size_t>(at));
  if (const auto outcome = ParseFrameHeader(rest, &header); outcome != FrameOutcome::kFrame) return outcome;
  if (AlignUp(header.body_bytes, kFrameAlign) > rest.size() - sizeof(header))
    return FrameOutcome::kIncomplete;
  return ParseBody(header, rest.subspan(sizeof(header), header.body_bytes), offset, sequence, out);
}

FrameOutcome ParseFrameHeadUntrusted(std::span<const std::byte> begin, std::uint64_t offset,
                                     std::uint64_t sequence, FrameView* out) noexcept {
  FrameHeader header;
  if (offset % kFrameAlign != 0) return FrameOutcome::kBad;
  if (const auto outcome = ParseFrameHeader(begin, &header); outcome != FrameOutcome::kFrame) return outcome;
  if ((header.flags & kFlagHeadChecksumOnly) == 0) return FrameOutcome::kBad;
  const auto there = begin.subspan(sizeof(header));
  const std::size_t body = std::min<std::size_t>(there.size(), header.body_bytes);
  if (body < ChecksumBytes(header, header.body_bytes)) return FrameOutcome::kIncomplete;
  return ParseBody(header, there.first(body), offset, sequence, out);
}

}  // namespace luff::format
