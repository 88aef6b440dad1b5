#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "store/read_cache.h"
#include "store/reader_file.h"

namespace luff::store {

/// The part of a file that a scan looks at. Reads a megabyte at a time, or more for one larger object.
class FileWindow {
 public:
  static constexpr std::uint64_t kBytes = 1 << 20;
  FileWindow(ReaderFile* file, std::uint64_t file_bytes) : file_(file), file_bytes_(file_bytes) {}

  /// Returns bytes from `offset` on: at least `wanted`, or all up to the end of the file. Aligned as `offset`
  /// is, up to 8 bytes. Lifetime: until the next call. Errors: as ReaderFile::ReadAllAt, kResourceExhausted.
  [[nodiscard]] Result<std::span<const std::byte>> At(std::uint64_t offset, std::uint64_t wanted) {
    offset = std::min(offset, file_bytes_);
    const std::uint64_t left = file_bytes_ - offset;
    if (offset < begin_ || offset > begin_ + size_ || std::min(wanted, left) > begin_ + size_ - offset) {
      begin_ = offset / 8 * 8;
      size_ = 0;
      const std::uint64_t bytes =
          std::min(std::max(wanted, kBytes) + (offset - begin_), file_bytes_ - begin_);
      if (memory_ == nullptr || bytes > room_) {
        room_ = std::max(bytes, kBytes);
        memory_ = AllocateForReading(room_);
      }
      if (memory_ == nullptr)
        return ResourceExhausted("no memory for " + std::to_string(bytes) + " bytes of " + file_->path());
      LUFF_RETURN_IF_ERROR(file_->ReadAllAt({memory_.get(), static_cast<std::size_t>(bytes)}, begin_));
      size_ = bytes;
    }
    return std::span<const std::byte>(memory_.get(), static_cast<std::size_t>(size_))
        .subspan(static_cast<std::size_t>(offset - begin_));
  }
  [[nodiscard]] ReaderFile& file() const noexcept { return *file_; }
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return file_bytes_; }

 private:
  ReaderFile* file_;
  std::uint64_t file_bytes_;
  std::shared_ptr<std::byte> memory_;
  std::uint64_t begin_ = 0, size_ = 0, room_ = 0;
};

}  // namespace luff::store
