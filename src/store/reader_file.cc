#include "store/reader_file.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>

#include "store/paths.h"

namespace luff::store {
namespace {

/// How many files of each kind stay open: a quarter of what the process may open, up to 256.
int MaxOpen() noexcept {
  static const int limit = [] {
    rlimit files{};
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return 0;
    return static_cast<int>(std::min<rlim_t>(files.rlim_cur / 4, 256));
  }();
  return limit;
}

std::atomic<int>& OpenNow(ReaderFile::Kind kind) noexcept {
  static std::atomic<int> counts[2];
  return counts[static_cast<std::size_t>(kind)];
}

}  // namespace

Status ReaderFile::Open() {
  LUFF_ASSIGN_OR_RETURN(file_, RegularFile::Open(path_, kNamesInRun));
  ++OpenNow(kind_);
  return Status::Ok();
}

void ReaderFile::Close() noexcept {
  if (file_ != nullptr) --OpenNow(kind_);
  file_.reset();
}

void ReaderFile::CloseBeyondLimit() noexcept {
  if (OpenNow(kind_) > MaxOpen()) Close();
}

Result<std::uint64_t> ReaderFile::Reopen() {
  Close();
  LUFF_RETURN_IF_ERROR(Open());
  return file_->size();
}

Result<std::size_t> ReaderFile::ReadAt(std::span<std::byte> to, std::uint64_t offset) {
  if (file_ == nullptr) LUFF_RETURN_IF_ERROR(Open());
  auto got = file_->ReadAt(to, offset);
  CloseBeyondLimit();
  return got;
}

Status ReaderFile::ReadAllAt(std::span<std::byte> to, std::uint64_t offset) {
  if (file_ != nullptr) {
    const auto got = file_->ReadAt(to, offset);
    if (got.ok() && *got == to.size()) {
      CloseBeyondLimit();
      return Status::Ok();
    }
  }
  LUFF_ASSIGN_OR_RETURN(const std::uint64_t bytes, Reopen());
  LUFF_ASSIGN_OR_RETURN(const std::size_t got, ReadAt(to, offset));
  if (got == to.size()) return Status::Ok();
  return Corruption("the file was cut off: " + std::to_string(to.size()) + " bytes belong at byte " +
                    std::to_string(offset) + ", it ends at byte " + std::to_string(bytes) +
                    "; put a whole copy of it back, the run's other files are read all the same: " + path_);
}

}  // namespace luff::store
