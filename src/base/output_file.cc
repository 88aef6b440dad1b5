#include "base/output_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/format.h"
#include "base/interrupted.h"
#include "luff/base/env.h"

namespace luff {
namespace {

constexpr std::size_t kBufferBytes = 4U << 20;
constexpr mode_t kFileMode = 0666, kFolderMode = 0700;
constexpr int kTries = 16;

Status Failed(int error, const std::string& path) {
  std::string message = fmt::format("{}: {}", std::strerror(error), path);
  switch (error) {
    case ENOENT:
    case ENOTDIR: return NotFound(std::move(message));
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return ResourceExhausted(std::move(message));
    default: return IoError(std::move(message));
  }
}

Status ALink(const std::string& path) {
  return InvalidArgument(
      "a link stands there, and links are not followed; remove it, or give another name: " + path);
}

std::string ThereAlready(const std::string& path) {
  return "the file is there already; give another name, or --force to replace it: " + path;
}

Status NoFile(mode_t mode, const std::string& path) {
  const char* what = S_ISDIR(mode)    ? "a directory"
                     : S_ISFIFO(mode) ? "a named pipe"
                     : S_ISSOCK(mode) ? "a socket"
                     : S_ISBLK(mode)  ? "a disk"
                                      : "no regular file";
  return InvalidArgument(fmt::format("{} stands there, expected a regular file or nothing: {}", what, path));
}

/// True for /dev/stdout and the like, judged by name: they refer to files that the process already has open.
bool IsOwnDescriptor(std::string_view path) {
  if (path == "/dev/stdout" || path == "/dev/stderr") return true;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    const std::string_view number = path.substr(folder.size());
    return !number.empty() && number.find_first_not_of("0123456789") == std::string_view::npos;
  }
  return false;
}

enum class Kind : std::uint8_t { kNothing, kFile, kStraight };

struct Present {
  Kind kind = Kind::kNothing;
  mode_t mode = 0;
};

/// Finds out what exists at the path. Returns an error if it can never be written.
Result<Present> LookAt(int folder, const std::string& name, const std::string& path) {
  struct stat info{};
  if (IsOwnDescriptor(path)) return Present{Kind::kStraight, 0};
  if (fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return Present{};
    return Failed(errno, path);
  }
  if (S_ISREG(info.st_mode)) return Present{Kind::kFile, info.st_mode & 0777U};
  if (S_ISCHR(info.st_mode)) return Present{Kind::kStraight, 0};
  if (!S_ISLNK(info.st_mode)) return NoFile(info.st_mode, path);
  // Devices overwrite nothing: a link to /dev/null counts as one.
  if (fstatat(folder, name.c_str(), &info, 0) == 0 && S_ISCHR(info.st_mode))
    return Present{Kind::kStraight, 0};
  return ALink(path);
}

/// Opens a path that LookAt found to be kStraight, without blocking. `waits`: whether writes may block.
Result<OwnedFd> OpenStraight(const std::string& path, bool waits) {
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  OwnedFd fd(Uninterrupted([&] { return open(path.c_str(), kFlags); }));
  struct stat info{};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) return Failed(errno, path);
  if (!S_ISCHR(info.st_mode) && !IsOwnDescriptor(path)) return NoFile(info.st_mode, path);  // changed since
  if (waits) fcntl(fd.get(), F_SETFL, O_APPEND);
  return fd;
}

/// Opens a regular file to write it in place.
Result<OwnedFd> OpenInPlace(int folder, const std::string& name, const std::string& path, int flags) {
  flags |= O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  OwnedFd fd(Uninterrupted([&] { return openat(folder, name.c_str(), flags, kFileMode); }));
  if (!fd.valid())
    return errno == ELOOP    ? ALink(path)
           : errno == EISDIR ? NoFile(S_IFDIR, path)
           : errno == ENXIO  ? NoFile(S_IFIFO, path)
                             : Failed(errno, path);
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return Failed(errno, path);
  if (!S_ISREG(info.st_mode)) return NoFile(info.st_mode, path);
  if (info.st_nlink > 1) {
    return InvalidArgument(fmt::format(
        "the file has {} names (hard links), and its bytes would change under all of them; remove it, or "
        "give another name: {}",
        info.st_nlink, path));
  }
  return fd;
}

std::string TemporaryName(const std::string& name) {
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof(number), GRND_NONBLOCK) != sizeof(number))
    number = static_cast<std::uint64_t>(Env::Real().NowMonotonicNs());
  return fmt::format(".{}.{:016x}.tmp", name.substr(0, 200), number);
}

/// Splits a path into its folder and its last part.
std::pair<std::string, std::string> Split(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

/// `path`: the path to name in errors.
Result<OwnedFd> OpenFolder(const std::string& folder, const std::string& path) {
  OwnedFd fd(Uninterrupted([&] { return open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!fd.valid() && (errno == ENOENT || errno == ENOTDIR)) {
    return NotFound(fmt::format("there is no directory {}; make it, or give a file in one that exists: {}",
                                folder, path));
  }
  if (!fd.valid()) return Failed(errno, path);
  return fd;
}

Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  return luff::WriteAll(fd, bytes) ? Status::Ok() : Failed(errno, path);
}

Result<OwnedFd> OpenLines(const std::string& path, int flags) {
  const auto [folder_path, name] = Split(path);
  LUFF_ASSIGN_OR_RETURN(const OwnedFd folder, OpenFolder(folder_path, path));
  LUFF_ASSIGN_OR_RETURN(const Present found, LookAt(folder.get(), name, path));
  if (found.kind == Kind::kStraight) return OpenStraight(path, false);
  return OpenInPlace(folder.get(), name, path, flags);
}

}  // namespace

Status BufferedFile::Append(std::string_view bytes) {
  buffer_ += bytes;
  bytes_ += bytes.size();
  return buffer_.size() < kBufferBytes ? Status::Ok() : Flush();
}

Status BufferedFile::Flush() {
  LUFF_RETURN_IF_ERROR(WriteAll(fd_.get(), buffer_, path_));
  buffer_.clear();
  return Status::Ok();
}

Result<std::unique_ptr<OutputFile>> OutputFile::Create(const std::string& path, Existing existing) {
  const auto [folder_path, name] = Split(path);
  if (name.empty() || name == "." || name == "..") return NoFile(S_IFDIR, path);
  LUFF_ASSIGN_OR_RETURN(OwnedFd folder, OpenFolder(folder_path, path));
  return In({std::move(folder), name, path, existing, true});
}

Result<std::unique_ptr<OutputFile>> OutputFile::In(Where where) {
  LUFF_ASSIGN_OR_RETURN(const Present found, LookAt(where.folder.get(), where.name, where.path));
  if (found.kind == Kind::kFile && where.existing == Existing::kRefuse)
    return AlreadyExists(ThereAlready(where.path));
  std::unique_ptr<OutputFile> file(new OutputFile(std::move(where)));
  if (found.kind == Kind::kStraight) {
    LUFF_ASSIGN_OR_RETURN(OwnedFd fd, OpenStraight(file->where_.path, true));
    file->file_ = BufferedFile(std::move(fd), file->where_.path);
    return file;
  }
  LUFF_RETURN_IF_ERROR(file->Begin(found.mode));
  return file;
}

/// Opens the temporary file; `mode`: of the file that it replaces, or 0.
Status OutputFile::Begin(std::uint32_t mode) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  int fd = -1;
  for (int n = 0; n < kTries && fd < 0; ++n) {
    temporary_ = TemporaryName(where_.name);
    fd = Uninterrupted([&] { return openat(where_.folder.get(), temporary_.c_str(), kFlags, kFileMode); });
    if (fd < 0 && errno != EEXIST) break;
  }
  if (fd < 0) {
    temporary_.clear();
    return Failed(errno, where_.path);
  }
  if (mode != 0) (void)fchmod(fd, mode);
  file_ = BufferedFile(OwnedFd(fd), where_.path);
  return Status::Ok();
}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) unlinkat(where_.folder.get(), temporary_.c_str(), 0);
}

Status OutputFile::Commit() {
  LUFF_RETURN_IF_ERROR(file_.Flush());
  if (temporary_.empty()) return Status::Ok();
  if (where_.durable && Uninterrupted([&] { return fsync(file_.fd()); }) != 0 && errno != EINVAL)
    return Failed(errno, where_.path);
  LUFF_RETURN_IF_ERROR(PutInPlace());
  temporary_.clear();
  if (where_.durable) (void)Uninterrupted([&] { return fsync(where_.folder.get()); });
  return Status::Ok();
}

Status OutputFile::PutInPlace() {
  const int folder = where_.folder.get();
  if (where_.existing == Existing::kReplace) {
    // A link may have appeared since LookAt. It is replaced, not followed.
    if (renameat(folder, temporary_.c_str(), folder, where_.name.c_str()) == 0) return Status::Ok();
    return errno == EISDIR ? NoFile(S_IFDIR, where_.path) : Failed(errno, where_.path);
  }
  if (renameat2(folder, temporary_.c_str(), folder, where_.name.c_str(), RENAME_NOREPLACE) == 0)
    return Status::Ok();
  if (errno == EINVAL || errno == ENOSYS) {  // the file system does not support it
    if (linkat(folder, temporary_.c_str(), folder, where_.name.c_str(), 0) == 0) {
      (void)unlinkat(folder, temporary_.c_str(), 0);
      return Status::Ok();
    }
  }
  return errno == EEXIST ? AlreadyExists(ThereAlready(where_.path)) : Failed(errno, where_.path);
}

Result<OutputFolder> OutputFolder::Open(const std::string& path) {
  LUFF_RETURN_IF_ERROR(Env::Real().MakeDirectories(path));
  OutputFolder folder;
  folder.path_ = path;
  LUFF_ASSIGN_OR_RETURN(folder.fd_, OpenFolder(path, path));
  return folder;
}

Result<OwnedFd> OutputFolder::Parent(const std::string& name, std::string* last) const {
  OwnedFd at(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!at.valid()) return Failed(errno, path_);
  for (std::size_t from = 0;;) {
    const std::size_t slash = name.find('/', from);
    const std::string part = name.substr(from, slash - from);
    const std::string path = path_ + "/" + name.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return InvalidArgument("no name of an output: " + path);
    if (slash == std::string::npos) {
      *last = part;
      return at;
    }
    if (mkdirat(at.get(), part.c_str(), kFolderMode) != 0 && errno != EEXIST) return Failed(errno, path);
    constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    OwnedFd next(Uninterrupted([&] { return openat(at.get(), part.c_str(), kFlags); }));
    if (!next.valid()) {  // errno is ENOTDIR for a link
      const int error = errno;
      struct stat info{};
      const bool link =
          fstatat(at.get(), part.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode);
      return link ? ALink(path) : Failed(error, path);
    }
    at = std::move(next);
    from = slash + 1;
  }
}

Result<std::unique_ptr<OutputFile>> OutputFolder::Create(const std::string& name) const {
  std::string last;
  LUFF_ASSIGN_OR_RETURN(OwnedFd folder, Parent(name, &last));
  return OutputFile::In({std::move(folder), last, path_ + "/" + name, Existing::kReplace, false});
}

Status OutputFolder::Write(const std::string& name, std::string_view text) const {
  LUFF_ASSIGN_OR_RETURN(const auto file, Create(name));
  LUFF_RETURN_IF_ERROR(file->Append(text));
  return file->Commit();
}

Status OutputFolder::Remove(const std::string& name) const {
  std::string last;
  LUFF_ASSIGN_OR_RETURN(const OwnedFd folder, Parent(name, &last));
  return unlinkat(folder.get(), last.c_str(), 0) == 0 ? Status::Ok() : Failed(errno, path_ + "/" + name);
}

Result<BufferedFile> OutputFolder::OpenAt(const std::string& name, std::uint64_t counted) const {
  std::string last;
  LUFF_ASSIGN_OR_RETURN(const OwnedFd folder, Parent(name, &last));
  const std::string path = path_ + "/" + name;
  LUFF_ASSIGN_OR_RETURN(OwnedFd fd, OpenInPlace(folder.get(), last, path, 0));
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return Failed(errno, path);
  if (static_cast<std::uint64_t>(info.st_size) < counted) {
    return Corruption(
        fmt::format("found {} bytes, expected at least {} of an earlier export; remove the output "
                    "directory to begin anew: {}",
                    info.st_size, counted, path));
  }
  if (Uninterrupted([&] { return ftruncate(fd.get(), static_cast<off_t>(counted)); }) != 0 ||
      lseek(fd.get(), static_cast<off_t>(counted), SEEK_SET) < 0)
    return Failed(errno, path);
  return BufferedFile(std::move(fd), path, counted);
}

Status CheckFolderOf(const std::string& path) { return OpenFolder(Split(path).first, path).status(); }

Status BeginLines(const std::string& path) {
  LUFF_ASSIGN_OR_RETURN(const OwnedFd fd, OpenLines(path, 0));
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return Failed(errno, path);
  if (!S_ISREG(info.st_mode) || IsOwnDescriptor(path)) return Status::Ok();
  return Uninterrupted([&] { return ftruncate(fd.get(), 0); }) == 0 ? Status::Ok() : Failed(errno, path);
}

Status AppendLine(const std::string& path, std::string_view line) {
  LUFF_ASSIGN_OR_RETURN(const OwnedFd fd, OpenLines(path, O_APPEND));
  return WriteAll(fd.get(), std::string(line) + "\n", path);
}

}  // namespace luff
