#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/owned_fd.h"
#include "luff/base/result.h"

/// Files that a user asked for, outside the run: reports, pictures, exports, findings.
///
/// No link is followed at the place of a file. Written are regular files only, and devices and own
/// descriptors
/// (/dev/null, /dev/stdout, /dev/fd/N), which take what comes. Files are of mode 0666 less the umask.
/// Errors of all functions: kAlreadyExists for a file that must stay, kInvalidArgument for a link, a pipe, a
/// directory, a file with several names; else as the file system says.
namespace luff {

enum class Existing : std::uint8_t { kRefuse, kReplace };

/// A descriptor with a buffer in front.
class BufferedFile {
 public:
  BufferedFile() = default;
  BufferedFile(OwnedFd fd, std::string path, std::uint64_t bytes = 0)
      : fd_(std::move(fd)),
        path_(std::move(path)),
        bytes_(bytes) {}
  [[nodiscard]] Status Append(std::string_view bytes);
  [[nodiscard]] Status Flush();
  /// Length of the file, with what is not flushed.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  OwnedFd fd_;
  std::string path_, buffer_;
  std::uint64_t bytes_ = 0;
};

/// A file that is written under another name beside its place, and put there whole. One that is replaced
/// hands on its mode.
class OutputFile {
 public:
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  /// What was not committed is removed.
  ~OutputFile();
  /// The folder must be there.
  [[nodiscard]] static Result<std::unique_ptr<OutputFile>> Create(const std::string& path, Existing existing);
  [[nodiscard]] Status Append(std::string_view bytes) { return file_.Append(bytes); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return file_.bytes(); }
  /// Puts it in its place, on stable storage.
  [[nodiscard]] Status Commit();

 private:
  friend class OutputFolder;
  struct Where {
    OwnedFd folder;
    std::string name, path;
    Existing existing;
    bool durable;
  };
  explicit OutputFile(Where where) : where_(std::move(where)) {}
  [[nodiscard]] static Result<std::unique_ptr<OutputFile>> In(Where where);
  [[nodiscard]] Status Begin(std::uint32_t mode);
  [[nodiscard]] Status PutInPlace();

  Where where_;
  std::string temporary_;  // "": committed, or written straight
  BufferedFile file_;
};

/// A directory that is filled with files, as exports do. It may itself be reached by a link, since the user
/// named it; below it none is followed. Names are relative, their folders are made.
class OutputFolder {
 public:
  OutputFolder() = default;
  [[nodiscard]] static Result<OutputFolder> Open(const std::string& path);
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// A file that replaces one of this name when it is committed. Not forced to stable storage: an export can
  /// be made again.
  [[nodiscard]] Result<std::unique_ptr<OutputFile>> Create(const std::string& name) const;
  [[nodiscard]] Status Write(const std::string& name, std::string_view text) const;
  [[nodiscard]] Status Remove(const std::string& name) const;
  /// A file that is appended to behind its first `counted` bytes; others are cut off. kCorruption: it is
  /// shorter.
  [[nodiscard]] Result<BufferedFile> OpenAt(const std::string& name, std::uint64_t counted) const;

 private:
  /// The directory that `name` lies in; `last` becomes the last part of the name.
  [[nodiscard]] Result<OwnedFd> Parent(const std::string& name, std::string* last) const;

  OwnedFd fd_;
  std::string path_;
};

/// Makes a file that lines are added to, or empties it.
[[nodiscard]] Status BeginLines(const std::string& path);
/// Adds a line. The file is opened anew, so it may be moved or emptied in between. Waits for no reader.
[[nodiscard]] Status AppendLine(const std::string& path, std::string_view line);

}  // namespace luff
