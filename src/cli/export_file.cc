#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cli/export.h"

namespace luff::cli {
namespace {

constexpr std::size_t kBufferBytes = 4U << 20;

Status Failed(const std::string& path) { return IoError(std::string(std::strerror(errno)) + ": " + path); }

}  // namespace

AppendedFile& AppendedFile::operator=(AppendedFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  std::swap(buffer_, other.buffer_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

AppendedFile::~AppendedFile() {
  if (fd_ >= 0) close(fd_);
}

Result<AppendedFile> AppendedFile::Open(const std::string& path, std::uint64_t counted) {
  AppendedFile file;
  file.path_ = path;
  file.fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file.fd_ < 0) return Failed(path);
  struct stat info{};
  if (fstat(file.fd_, &info) != 0) return Failed(path);
  if (static_cast<std::uint64_t>(info.st_size) < counted) {
    return Corruption("found " + std::to_string(info.st_size) + " bytes, expected at least " +
                      std::to_string(counted) +
                      " of an earlier export; remove the output directory to begin anew: " + path);
  }
  if (ftruncate(file.fd_, static_cast<off_t>(counted)) != 0 ||
      lseek(file.fd_, static_cast<off_t>(counted), SEEK_SET) < 0)
    return Failed(path);
  file.bytes_ = counted;
  return file;
}

Status AppendedFile::Append(std::string_view bytes) {
  buffer_ += bytes;
  bytes_ += bytes.size();
  return buffer_.size() < kBufferBytes ? Status::Ok() : Flush();
}

Status AppendedFile::Flush() {
  std::size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t written = write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failed(path_);
    done += static_cast<std::size_t>(written);
  }
  buffer_.clear();
  return Status::Ok();
}

void Exporter::Remark(std::string text) {
  constexpr std::size_t kMost = 20;
  if (remarks_.size() < kMost && std::find(remarks_.begin(), remarks_.end(), text) == remarks_.end())
    remarks_.push_back(std::move(text));
}

}  // namespace luff::cli
