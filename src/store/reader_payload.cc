#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/bounded_read.h"
#include "format/chunk_content.h"
#include "luff/base/bytes.h"
#include "luff/store/reader.h"
#include "store/paths.h"

namespace luff::store {
namespace {

// Smaller chunks are read the first times, for a page fault costs more than a copy of them. Larger ones, and
// those that are asked for again and again, are viewed where the file is mapped. Each is hashed once only.
constexpr std::uint64_t kViewBytes = 16 << 10;
constexpr std::uint8_t kReadsBeforeView = 2;
constexpr std::size_t kMaxOpenFiles = 64;
constexpr std::size_t kMaxRemembered = 1 << 20;
constexpr std::size_t kMaxMappedFiles = 1024;
constexpr std::uint64_t kBelievedBytes = 64 << 20;  // larger values get memory when their chunks were seen
constexpr int kMaxRelocations = 64;                 // longer chains are hostile
constexpr std::uint64_t kMaxFileBytes = (std::uint64_t{1} << 40) - 1;
constexpr std::uint32_t kMaxFiles = 1U << 24;

std::uint64_t PlaceKey(std::uint64_t file, std::uint64_t offset) noexcept { return file << 40 ^ offset; }

std::string Where(const std::string& path, std::uint64_t offset) {
  return " at byte " + std::to_string(offset) + ": " + path;
}

/// Encoded chunks may stand for far more than their file holds: beyond this a value is refused, not tried.
std::uint64_t MemoryOfMachine() noexcept {
  static const auto bytes = static_cast<std::uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES))) *
                            static_cast<std::uint64_t>(std::max(0L, sysconf(_SC_PAGESIZE)));
  return bytes;
}

/// Memory for a value, aligned as chunks are; freed with the last owner.
std::shared_ptr<std::byte> Allocate(std::uint64_t bytes) {
  const std::uint64_t whole = AlignUp(std::max<std::uint64_t>(bytes, 1), format::kChunkAlign);
  void* at = std::aligned_alloc(format::kChunkAlign, static_cast<std::size_t>(whole));
  if (at == nullptr) return nullptr;
  return {static_cast<std::byte*>(at), [](std::byte* p) { std::free(p); }};
}

}  // namespace

std::string WorkerReader::DataPath(std::uint32_t data_file) const {
  return folder_ + "/" + DataFileName(data_file);
}

Result<Place> WorkerReader::Locate(const format::IndexRow& row) const {
  Place place{row.data_file, row.offset};
  for (int i = 0; i < kMaxRelocations; ++i) {
    const auto retired = retired_.find(place.data_file);
    if (retired == retired_.end()) return place;
    const auto moved = relocated_.find({place.data_file, place.offset});
    if (moved == relocated_.end()) {
      return OutOfRange("the value was deleted by retention, its summary remains: " +
                        DataPath(place.data_file));
    }
    place = moved->second;
  }
  return Corruption("relocations go round in a circle: " + folder_);
}

Result<std::shared_ptr<const MappedFile>> WorkerReader::DataFile(std::uint32_t number,
                                                                 std::uint64_t at_least) const {
  const auto at = data_files_.find(number);
  if (at != data_files_.end() && at->second->bytes().size() >= at_least) return at->second;
  auto opened = MappedFile::Open(DataPath(number));  // again when it has grown
  if (!opened.ok()) {
    if (opened.status().code() != StatusCode::kNotFound) return opened.status();
    return NotFound("payload file is missing, its values are lost: " + DataPath(number));
  }
  if (data_files_.size() >= kMaxMappedFiles) data_files_.clear();
  data_files_[number] = *opened;
  return opened;
}

/// The bytes of a small chunk, or fewer at the end of the file. `keep`: in memory of their own, which `owner`
/// gets; else until the next call.
Result<std::span<const std::byte>> WorkerReader::ReadSmall(Place place, std::uint64_t bytes, bool keep,
                                                           std::shared_ptr<const void>* owner) const {
  auto at = open_files_.find(place.data_file);
  if (at == open_files_.end()) {
    auto opened = RegularFile::Open(DataPath(place.data_file), kNamesInRun);
    if (!opened.ok()) {
      if (opened.status().code() != StatusCode::kNotFound) return opened.status();
      return NotFound("payload file is missing, its values are lost: " + DataPath(place.data_file));
    }
    if (open_files_.size() >= kMaxOpenFiles) open_files_.clear();
    at = open_files_.emplace(place.data_file, std::move(opened).value()).first;
  }
  std::span<std::byte> to;
  if (keep) {
    std::shared_ptr<std::byte> memory = Allocate(bytes);
    if (memory == nullptr)
      return ResourceExhausted("no memory for a chunk of " + std::to_string(bytes) + " bytes");
    to = {memory.get(), static_cast<std::size_t>(bytes)};
    *owner = std::move(memory);
  } else {
    scratch_.resize(std::max(scratch_.size(), static_cast<std::size_t>(bytes)));
    to = std::span(scratch_).first(static_cast<std::size_t>(bytes));
  }
  LUFF_ASSIGN_OR_RETURN(const std::size_t got, at->second->ReadAt(to, place.offset));
  return std::span<const std::byte>(to.first(got));
}

Result<WorkerReader::Piece> WorkerReader::ReadChunk(const format::IndexRow& row, bool keep) const {
  LUFF_ASSIGN_OR_RETURN(const Place place, Locate(row));
  const auto where = [&] { return Where(DataPath(place.data_file), place.offset); };
  // The limits of the format; within them PlaceKey is without collisions.
  if (row.stored_bytes > kMaxFileBytes || place.offset > kMaxFileBytes || place.data_file >= kMaxFiles ||
      place.offset % format::kChunkAlign != 0) {
    return Corruption("index row points to where no chunk can be" + where());
  }
  Piece piece;
  std::span<const std::byte> bytes;
  const std::uint64_t space = sizeof(format::ChunkHeader) + row.stored_bytes;
  const std::uint64_t key = PlaceKey(place.data_file, place.offset);
  const auto known = verified_chunks_.find(key);
  const bool small =
      row.stored_bytes < kViewBytes && (known == verified_chunks_.end() || known->second < kReadsBeforeView);
  if (small) {
    LUFF_ASSIGN_OR_RETURN(bytes, ReadSmall(place, space, keep, &piece.owner));
  } else {
    LUFF_ASSIGN_OR_RETURN(auto file, DataFile(place.data_file, place.offset + space));
    bytes = file->bytes();
    piece.owner = std::move(file);
  }
  auto chunk = format::ParseChunkUntrusted(bytes, small ? 0 : place.offset);
  if (!chunk.ok()) {
    const bool torn = chunk.status().code() == StatusCode::kOutOfRange;
    return Corruption((torn ? std::string("payload file is shorter than its index says")
                            : std::string(chunk.status().message())) +
                      where());
  }
  const format::ChunkHeader& header = chunk->header;
  if (header.content_hash != row.content_hash || header.raw_bytes != row.raw_bytes ||
      header.stored_bytes != row.stored_bytes || header.codec != row.codec) {
    return Corruption("chunk is not the one its index row means" + where());
  }
  if (known != verified_chunks_.end()) {
    if (small) ++known->second;
  } else {
    const Status status = format::VerifyChunkUntrusted(*chunk);
    if (!status.ok()) return Corruption(std::string(status.message()) + where());
    if (verified_chunks_.size() >= kMaxRemembered) verified_chunks_.clear();
    verified_chunks_.emplace(key, 1);
  }
  piece.chunk = *chunk;
  return piece;
}

Result<WorkerReader::Payload> WorkerReader::ReadPayload(std::span<const format::IndexRow> parts,
                                                        std::uint64_t expected_bytes) const {
  if (parts.size() == 1 && parts[0].codec == static_cast<std::uint8_t>(format::Codec::kRaw)) {
    LUFF_ASSIGN_OR_RETURN(Piece piece, ReadChunk(parts[0], true));
    if (piece.chunk.stored.size() != expected_bytes) {
      return Corruption("value of " + std::to_string(piece.chunk.stored.size()) + " bytes, its layout says " +
                        std::to_string(expected_bytes) +
                        Where(DataPath(parts[0].data_file), parts[0].offset));
    }
    return Payload{piece.chunk.stored, std::move(piece.owner)};
  }
  LUFF_RETURN_IF_ERROR(CheckThere(parts, expected_bytes));
  std::shared_ptr<std::byte> memory = expected_bytes > MemoryOfMachine() ? nullptr : Allocate(expected_bytes);
  if (memory == nullptr) {
    return ResourceExhausted("no memory for a value of " + std::to_string(expected_bytes) +
                             " bytes: " + folder_);
  }
  const std::span<std::byte> to(memory.get(), static_cast<std::size_t>(expected_bytes));
  LUFF_RETURN_IF_ERROR(ReadPayloadInto(parts, to));
  return Payload{to, std::move(memory)};
}

Status WorkerReader::CheckChunk(const format::IndexRow& row, bool decode) const {
  LUFF_ASSIGN_OR_RETURN(const Piece piece, ReadChunk(row, true));
  if (!decode) return Status::Ok();
  const Status status = format::CheckContentUntrusted(piece.chunk, &decoded_);
  if (status.ok()) return status;
  return Corruption(std::string(status.message()) + Where(DataPath(row.data_file), row.offset));
}

Status WorkerReader::CheckThere(std::span<const format::IndexRow> parts, std::uint64_t bytes) const {
  if (bytes <= kBelievedBytes) return Status::Ok();
  LUFF_RETURN_IF_ERROR(CheckSizes(parts, bytes));
  for (const format::IndexRow& part : parts) LUFF_RETURN_IF_ERROR(ReadChunk(part, false).status());
  return Status::Ok();
}

Status WorkerReader::CheckSizes(std::span<const format::IndexRow> parts, std::uint64_t bytes) const {
  std::uint64_t total = 0;
  for (const format::IndexRow& part : parts) {
    if (part.raw_bytes > bytes - total) {
      return Corruption("value of more bytes than its layout says" +
                        Where(DataPath(part.data_file), part.offset));
    }
    total += part.raw_bytes;
  }
  if (total != bytes || parts.empty()) {
    return Corruption("value of " + std::to_string(total) + " bytes, its layout says " +
                      std::to_string(bytes) + ": " + folder_);
  }
  return Status::Ok();
}

Status WorkerReader::ReadPayloadInto(std::span<const format::IndexRow> parts, std::span<std::byte> to) const {
  LUFF_RETURN_IF_ERROR(CheckSizes(parts, to.size()));
  std::size_t at = 0;
  for (const format::IndexRow& part : parts) {
    LUFF_ASSIGN_OR_RETURN(const Piece piece, ReadChunk(part, false));
    const auto place = to.subspan(at, static_cast<std::size_t>(part.raw_bytes));
    if (piece.chunk.header.codec == static_cast<std::uint8_t>(format::Codec::kRaw)) {
      std::copy(piece.chunk.stored.begin(), piece.chunk.stored.end(),
                place.begin());  // verified by ReadChunk
    } else {
      const Status status = format::DecodeChunkUntrusted(piece.chunk, place);
      if (!status.ok())
        return Corruption(std::string(status.message()) + Where(DataPath(part.data_file), part.offset));
    }
    at += static_cast<std::size_t>(part.raw_bytes);
  }
  return Status::Ok();
}

}  // namespace luff::store
