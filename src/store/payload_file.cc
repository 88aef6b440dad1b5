#include "store/payload_file.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "luff/base/bytes.h"
#include "luff/format/frames.h"

namespace luff::store {
namespace {

// Small enough for short runs, 4 calls per segment of 64 MiB.
constexpr std::uint64_t kReserveStep = 16ULL << 20;
constexpr std::uint64_t kWriteBackWindow = 8ULL << 20;
constexpr std::size_t kBounceBytes = 1 << 20;

struct FreeDeleter {
  void operator()(std::byte* memory) const noexcept { std::free(memory); }
};

}  // namespace

PayloadFile::PayloadFile(Env& env, std::string path, std::unique_ptr<File> file, DirectIo* direct)
    : env_(env),
      path_(std::move(path)),
      file_(std::move(file)),
      direct_(direct) {}

PayloadFile::~PayloadFile() { Finish(); }

Result<std::unique_ptr<PayloadFile>> PayloadFile::Create(Env& env, const std::string& path,
                                                         const format::FileHeader& header, DirectIo* direct) {
  LUFF_ASSIGN_OR_RETURN(auto file, env.Open(path, Env::OpenMode::kCreateNew));
  std::unique_ptr<PayloadFile> payload(new PayloadFile(env, path, std::move(file), direct));
  format::FileHeader sealed = header;
  format::SealFileHeader(&sealed, format::kDataMagic);
  std::byte page[format::kFileHeaderBytes] = {};
  std::memcpy(page, &sealed, sizeof(sealed));
  const Status status = payload->file_->WriteAt(page, 0);
  if (!status.ok()) {
    payload.reset();
    (void)env.Remove(path);
    return status;
  }
  payload->end_ = format::kFileHeaderBytes;
  return payload;
}

Result<std::uint64_t> PayloadFile::Append(std::span<const std::byte> bytes) {
  if (failed_ || finished_) return FailedPrecondition("payload file takes no more bytes: " + path_);
  if (Status intact = file_->Intact(); !intact.ok()) {
    failed_ = true;
    lost_ = intact.code() != StatusCode::kUnavailable;
    return intact;
  }
  std::uint64_t offset = end_;
  if (direct_->enabled && bytes.size() >= DirectIo::kMinBytes) {
    const std::uint64_t page = AlignUp(offset, format::kPageBytes);
    const std::size_t whole = bytes.size() & ~(format::kPageBytes - 1);
    ReserveUpTo(page + bytes.size());
    static constexpr std::byte kZeros[format::kPageBytes] = {};
    Status status = page == offset ? Status::Ok()
                                   : WriteBuffered({kZeros, static_cast<std::size_t>(page - offset)}, offset);
    if (status.ok()) {
      auto written = WriteDirect(bytes.first(whole), page);
      if (written.ok() && *written) {
        status = whole == bytes.size() ? Status::Ok() : WriteBuffered(bytes.subspan(whole), page + whole);
      } else if (written.ok()) {
        status = WriteBuffered(bytes, page);
      } else {
        status = std::move(written).status();
      }
    }
    if (!status.ok()) {
      failed_ = true;
      return status;
    }
    end_ = page + bytes.size();
    return page;
  }
  ReserveUpTo(offset + bytes.size());
  if (Status status = WriteBuffered(bytes, offset); !status.ok()) {
    failed_ = true;
    return status;
  }
  end_ = offset + bytes.size();
  return offset;
}

Status PayloadFile::WriteBuffered(std::span<const std::byte> bytes, std::uint64_t offset) {
  if (bytes.empty()) return Status::Ok();
  LUFF_RETURN_IF_ERROR(file_->WriteAt(bytes, offset));
  // Dirty pages must not pile up: the kernel would stop the training process to write them. Write-back of
  // each window starts when it is full; one window later it is waited for and dropped from the cache.
  const std::uint64_t end = offset + bytes.size();
  if (end - dirty_begin_ >= kWriteBackWindow) {
    if (writing_begin_ < dirty_begin_) file_->WriteBack(writing_begin_, dirty_begin_ - writing_begin_, true);
    const std::uint64_t boundary = end & ~(std::uint64_t{format::kPageBytes} - 1);
    file_->WriteBack(dirty_begin_, boundary - dirty_begin_, false);
    writing_begin_ = dirty_begin_;
    dirty_begin_ = boundary;
  }
  return Status::Ok();
}

Result<bool> PayloadFile::WriteDirect(std::span<const std::byte> bytes, std::uint64_t offset) {
  if (direct_file_ == nullptr) {
    auto file = env_.Open(path_, Env::OpenMode::kWriteDirect);
    if (!file.ok()) {
      direct_->enabled = false;  // tmpfs, some network and user-space file systems
      return false;
    }
    if (!((*file)->Identity() == file_->Identity())) return NotFound("another file has its name: " + path_);
    direct_file_ = std::move(file).value();
  }
  const auto refused = [&](const Status& status) {
    if (status.code() != StatusCode::kInvalidArgument) return false;
    direct_->enabled = false;
    return true;
  };
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % format::kPageBytes == 0) {
    Status status = direct_file_->WriteAt(bytes, offset);
    if (status.ok()) return true;
    if (refused(status)) return false;
    return status;
  }
  const std::unique_ptr<std::byte, FreeDeleter> bounce(
      static_cast<std::byte*>(std::aligned_alloc(format::kPageBytes, kBounceBytes)));
  if (bounce == nullptr) return false;
  for (std::size_t at = 0; at < bytes.size(); at += kBounceBytes) {
    const auto part = bytes.subspan(at, std::min(kBounceBytes, bytes.size() - at));
    std::memcpy(bounce.get(), part.data(), part.size());
    Status status = direct_file_->WriteAt({bounce.get(), part.size()}, offset + at);
    if (status.ok()) continue;
    if (at == 0 && refused(status)) return false;
    return status;
  }
  return true;
}

void PayloadFile::ReserveUpTo(std::uint64_t end) noexcept {
  if (end <= reserved_) return;
  const std::uint64_t begin = std::max(reserved_, end_);
  const std::uint64_t to = AlignUp(end, kReserveStep);
  // Errors are ignored: a full disk shows up in the write itself, which may need less than is reserved here.
  try {
    (void)file_->Reserve(begin, to - begin);
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory for the error's text
  }
  reserved_ = to;
}

Status PayloadFile::Read(std::span<std::byte> to, std::uint64_t offset) {
  LUFF_ASSIGN_OR_RETURN(const std::size_t read, file_->ReadAt(to, offset));
  if (read != to.size()) return Corruption("payload ends too early: " + path_);
  return Status::Ok();
}

Status PayloadFile::Sync() { return file_->Sync(); }

void PayloadFile::Finish() noexcept {
  if (finished_) return;
  finished_ = true;
  // In a forked child `end_` is stale: truncating would cut off what the parent has written since.
  try {
    if ((reserved_ > end_ || failed_) && getpid() == pid_) (void)file_->Truncate(end_);
  } catch (...) {  // NOLINT(bugprone-empty-catch): reserved space stays with the file
  }
  direct_file_.reset();
}

}  // namespace luff::store
