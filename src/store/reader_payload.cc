#include <algorithm>

#include "base/bounded_read.h"
#include "format/chunk_content.h"
#include "luff/store/mirror.h"
#include "luff/store/reader.h"
#include "store/paths.h"
#include "store/read_cache.h"
#include "store/reader_file.h"
#include "store/uploaded.h"

namespace luff::store {
namespace {

// Raw chunks up to this size are cached when they are requested again; a few larger ones would evict all
// others.
constexpr std::uint64_t kKeptBytes = 1 << 20;
// Raw chunks from this size on are read straight into the caller's memory, in two calls.
constexpr std::uint64_t kDirectFrom = 16 << 10;
constexpr std::uint64_t kCheckedAtOnce = 1 << 20;
constexpr std::size_t kMaxOpenFiles = 64;
// Larger values get memory only after their chunks were found.
constexpr std::uint64_t kBelievedBytes = 64 << 20;
constexpr int kMaxRelocations = 64;  // longer chains are hostile
constexpr std::uint64_t kMaxFileBytes = (std::uint64_t{1} << 40) - 1;
constexpr std::uint32_t kMaxFiles = 1U << 24;

std::uint64_t PlaceKey(std::uint64_t file, std::uint64_t offset) noexcept { return file << 40 ^ offset; }

std::string Where(const std::string& path, std::uint64_t offset) {
  return " at byte " + std::to_string(offset) + ": " + path;
}

bool IsRaw(const format::IndexRow& row) noexcept {
  return row.codec == static_cast<std::uint8_t>(format::Codec::kRaw);
}

Status NoMemory(std::uint64_t bytes, const std::string& of) {
  return ResourceExhausted("no memory for a value of " + std::to_string(bytes) + " bytes: " + of);
}

Status CheckHeader(const format::ChunkHeader& header, const format::IndexRow& row) {
  const bool same = header.content_hash == row.content_hash && header.raw_bytes == row.raw_bytes &&
                    header.stored_bytes == row.stored_bytes && header.codec == row.codec;
  return same ? Status::Ok() : Corruption("chunk is not the one its index row means");
}

}  // namespace

std::string WorkerReader::DataPath(std::uint32_t data_file) const {
  return folder_ + "/" + DataFileName(data_file);
}

bool WorkerReader::IsUploaded(std::uint32_t data_file) const noexcept {
  const auto retired = retired_.find(data_file);
  return retired != retired_.end() &&
         retired->second == static_cast<std::uint32_t>(format::GapReason::kUploaded);
}

std::string WorkerReader::UploadUrl() const {
  if (upload_url_.empty()) {
    const std::string path = folder_.substr(0, folder_.rfind('/')) + "/sync/uploaded.json";
    const auto text = ReadRegular(path, 1 << 20, 2);
    const auto told = text.ok() ? ParseUploadedUntrusted(*text, worker_) : Result<Uploaded>(text.status());
    upload_url_ = told.ok() && !told->url.empty() ? told->url : "its URL";
  }
  return upload_url_;
}

Result<Place> WorkerReader::Locate(const format::IndexRow& row) const {
  Place place{row.data_file, row.offset};
  for (int i = 0; i < kMaxRelocations; ++i) {
    const auto retired = retired_.find(place.data_file);
    if (retired == retired_.end()) return place;
    const auto moved = relocated_.find({place.data_file, place.offset});
    if (moved == relocated_.end() && IsUploaded(place.data_file)) {
      return OutOfRange(
          "the value is in the bucket and not here any more, its summary remains; read the run by " +
          UploadUrl() + ": " + DataPath(place.data_file));
    }
    if (moved == relocated_.end()) {
      return OutOfRange("the value was deleted by retention, its summary remains: " +
                        DataPath(place.data_file));
    }
    place = moved->second;
  }
  return Corruption("relocations go round in a circle: " + folder_);
}

Result<Place> WorkerReader::PlaceOfChunk(const format::IndexRow& row) const {
  LUFF_ASSIGN_OR_RETURN(const Place place, Locate(row));
  // The limits of the format; within them PlaceKey() has no collisions.
  const bool more_than_raw = row.stored_bytes > row.raw_bytes && row.stored_bytes - row.raw_bytes > 4096;
  if (row.stored_bytes > kMaxFileBytes || more_than_raw || place.offset > kMaxFileBytes ||
      place.data_file >= kMaxFiles || place.offset % format::kChunkAlign != 0) {
    return Corruption("index row points to where no chunk can be" +
                      Where(DataPath(place.data_file), place.offset));
  }
  return place;
}

Status WorkerReader::Fetch(std::uint32_t data_file, std::uint64_t from, std::uint64_t bytes) const {
  if (options_.mirror == nullptr) return Status::Ok();
  return options_.mirror->Need(worker_, data_file, from, bytes);
}

/// Reads bytes of a chunk, starting at its byte `from`.
Status WorkerReader::ReadAt(const Place& place, std::uint64_t from, std::span<std::byte> to) const {
  LUFF_RETURN_IF_ERROR(Fetch(place.data_file, place.offset + from, to.size()));
  auto at = data_files_.find(place.data_file);
  if (at == data_files_.end()) {
    if (data_files_.size() >= kMaxOpenFiles) data_files_.clear();
    at = data_files_
             .emplace(place.data_file,
                      std::make_unique<ReaderFile>(ReaderFile::Kind::kPayload, DataPath(place.data_file)))
             .first;
  }
  Status status = at->second->ReadAllAt(to, place.offset + from);
  if (status.code() != StatusCode::kNotFound) return status;
  return NotFound("payload file is missing, its values are lost: " + DataPath(place.data_file));
}

/// Reads the header of a chunk and checks that it matches the row.
Result<format::ChunkHeader> WorkerReader::ReadHeader(const format::IndexRow& row, const Place& place) const {
  std::byte bytes[sizeof(format::ChunkHeader)];
  LUFF_RETURN_IF_ERROR(ReadAt(place, 0, bytes));
  const auto header = format::ParseChunkHeaderUntrusted(bytes);
  const Status status = header.ok() ? CheckHeader(*header, row) : header.status();
  if (!status.ok())
    return Corruption(std::string(status.message()) + Where(DataPath(place.data_file), place.offset));
  return header;
}

/// Reads a chunk, and verifies a raw one. `lasting`: the caller may keep the memory; otherwise it is valid
/// until the next call.
Result<WorkerReader::Piece> WorkerReader::ReadChunk(const format::IndexRow& row, const Place& place,
                                                    bool lasting) const {
  const std::uint64_t space = sizeof(format::ChunkHeader) + row.stored_bytes;
  const ReadCache::Key key{cache_file_, PlaceKey(place.data_file, place.offset)};
  const bool keepable = IsRaw(row) && row.stored_bytes <= kKeptBytes;
  const ReadCache::Entry* known = keepable ? cache_->Find(key) : nullptr;
  const bool keep = keepable && known == nullptr && cache_->AskedBefore(key);
  std::span<const std::byte> bytes;
  std::shared_ptr<std::byte> memory;
  if (known != nullptr) {
    bytes = known->bytes;
  } else {
    memory = lasting || keep ? AllocateForReading(space) : cache_->Passing(space);
    if (memory == nullptr) return NoMemory(space, DataPath(place.data_file));
    const std::span<std::byte> to(memory.get(), static_cast<std::size_t>(space));
    LUFF_RETURN_IF_ERROR(ReadAt(place, 0, to));
    bytes = to;
  }
  const auto chunk = format::ParseChunkUntrusted(bytes, 0);
  Status status = chunk.ok() ? CheckHeader(chunk->header, row) : chunk.status();
  if (status.ok() && IsRaw(row) && known == nullptr) status = format::VerifyChunkUntrusted(*chunk);
  if (!status.ok())
    return Corruption(std::string(status.message()) + Where(DataPath(place.data_file), place.offset));
  if (keep) cache_->Put(key, {bytes, memory});
  if (known != nullptr && lasting) return Piece{*chunk, known->owner};
  return Piece{*chunk, std::move(memory)};
}

Result<WorkerReader::Payload> WorkerReader::ReadPayload(std::span<const format::IndexRow> parts,
                                                        std::uint64_t expected_bytes) const {
  if (parts.size() == 1 && IsRaw(parts[0])) {
    LUFF_RETURN_IF_ERROR(CheckSizes(parts, expected_bytes));
    LUFF_RETURN_IF_ERROR(CheckThere(parts, expected_bytes));
    LUFF_ASSIGN_OR_RETURN(const Place place, PlaceOfChunk(parts[0]));
    LUFF_ASSIGN_OR_RETURN(Piece piece, ReadChunk(parts[0], place, true));
    return Payload{piece.chunk.stored, std::move(piece.owner)};
  }
  LUFF_RETURN_IF_ERROR(CheckThere(parts, expected_bytes));
  std::shared_ptr<std::byte> memory = AllocateForReading(expected_bytes);
  if (memory == nullptr) return NoMemory(expected_bytes, folder_);
  const std::span<std::byte> to(memory.get(), static_cast<std::size_t>(expected_bytes));
  LUFF_RETURN_IF_ERROR(ReadPayloadInto(parts, to));
  return Payload{to, std::move(memory)};
}

Status WorkerReader::CheckChunk(const format::IndexRow& row, bool decode) const {
  LUFF_ASSIGN_OR_RETURN(const Place place, PlaceOfChunk(row));
  LUFF_ASSIGN_OR_RETURN(const format::ChunkHeader header, ReadHeader(row, place));
  Status status;
  {
    const std::shared_ptr<std::byte> memory = cache_->Passing(kCheckedAtOnce);
    if (memory == nullptr) return NoMemory(kCheckedAtOnce, DataPath(place.data_file));
    status = format::VerifyChunkInPiecesUntrusted(
        header, {memory.get(), kCheckedAtOnce}, [&](std::uint64_t from, std::span<std::byte> to) {
          return ReadAt(place, sizeof(format::ChunkHeader) + from, to);
        });
  }
  if (status.ok() && decode && !IsRaw(row)) {
    LUFF_ASSIGN_OR_RETURN(const Piece piece, ReadChunk(row, place, false));
    status = format::CheckContentUntrusted(piece.chunk, &decoded_);
  }
  if (status.ok() || status.code() != StatusCode::kCorruption) return status;
  return Corruption(std::string(status.message()) + Where(DataPath(place.data_file), place.offset));
}

Status WorkerReader::CheckThere(std::span<const format::IndexRow> parts, std::uint64_t bytes) const {
  if (bytes <= kBelievedBytes) return Status::Ok();
  LUFF_RETURN_IF_ERROR(CheckSizes(parts, bytes));
  for (const format::IndexRow& part : parts) {
    LUFF_ASSIGN_OR_RETURN(const Place place, PlaceOfChunk(part));
    LUFF_ASSIGN_OR_RETURN(const format::ChunkHeader header, ReadHeader(part, place));
    std::byte last[1];
    LUFF_RETURN_IF_ERROR(ReadAt(place, sizeof(header) + header.stored_bytes - 1, last));
  }
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
    LUFF_RETURN_IF_ERROR(ReadPart(part, to.subspan(at, static_cast<std::size_t>(part.raw_bytes))));
    at += static_cast<std::size_t>(part.raw_bytes);
  }
  return Status::Ok();
}

Status WorkerReader::ReadPart(const format::IndexRow& row, std::span<std::byte> to) const {
  LUFF_ASSIGN_OR_RETURN(const Place place, PlaceOfChunk(row));
  Status status;
  if (IsRaw(row) && row.stored_bytes >= kDirectFrom) {  // straight into `to`, without a copy
    LUFF_ASSIGN_OR_RETURN(const format::ChunkHeader header, ReadHeader(row, place));
    LUFF_RETURN_IF_ERROR(ReadAt(place, sizeof(header), to));
    status = format::VerifyChunkUntrusted({header, to});
  } else {
    LUFF_ASSIGN_OR_RETURN(const Piece piece, ReadChunk(row, place, false));
    if (IsRaw(row)) {
      std::copy(piece.chunk.stored.begin(), piece.chunk.stored.end(), to.begin());  // verified by ReadChunk
      return status;
    }
    status = format::DecodeChunkUntrusted(piece.chunk, to);
  }
  if (status.ok()) return status;
  return Corruption(std::string(status.message()) + Where(DataPath(place.data_file), place.offset));
}

}  // namespace luff::store
