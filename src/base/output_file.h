#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/owned_fd.h"
#include "luff/base/result.h"

/// Files that the user asked for, outside the run: reports, pictures, exports, findings.
///
/// Never follows a link at the path of a file. Writes only regular files, and devices and own descriptors
/// (/dev/null, /dev/stdout, /dev/fd/N), which simply receive the bytes. New files have mode 0666 less the
/// umask. Errors of all functions: kAlreadyExists for a file that must not be replaced; kInvalidArgument for
/// a link, a pipe, a directory, or a file with several names; otherwise those of the file system.
namespace luff {

enum class Existing : std::uint8_t { kRefuse, kReplace };

/// A descriptor with a buffer.
class BufferedFile {
 public:
  BufferedFile() = default;
  BufferedFile(OwnedFd fd, std::string path, std::uint64_t bytes = 0)
      : fd_(std::move(fd)),
        path_(std::move(path)),
        bytes_(bytes) {}
  [[nodiscard]] Status Append(std::string_view bytes);
  [[nodiscard]] Status Flush();
  /// Length of the file, including what is not flushed.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  OwnedFd fd_;
  std::string path_, buffer_;
  std::uint64_t bytes_ = 0;
};

/// A file that is written under a temporary name in the same folder and renamed when it is complete. It takes
/// the mode of the file that it replaces.
class OutputFile {
 public:
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  /// Removes the file if it was not committed.
  ~OutputFile();
  /// The folder must exist.
  [[nodiscard]] static Result<std::unique_ptr<OutputFile>> Create(const std::string& path, Existing existing);
  [[nodiscard]] Status Append(std::string_view bytes) { return file_.Append(bytes); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return file_.bytes(); }
  /// Syncs it to stable storage and renames it.
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
  std::string temporary_;  // "": committed, or written directly
  BufferedFile file_;
};

/// A directory to fill with files, for exports. Its own path may contain links, since the user named it, but
/// no link below it is followed. Names are relative; missing folders are created.
class OutputFolder {
 public:
  OutputFolder() = default;
  [[nodiscard]] static Result<OutputFolder> Open(const std::string& path);
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Creates a file that replaces any file of this name when it is committed. It is not synced, since an
  /// export can be repeated.
  [[nodiscard]] Result<std::unique_ptr<OutputFile>> Create(const std::string& name) const;
  [[nodiscard]] Status Write(const std::string& name, std::string_view text) const;
  [[nodiscard]] Status Remove(const std::string& name) const;
  /// Opens a file to append to after its first `counted` bytes, and cuts off the rest. kCorruption if it is
  /// shorter.
  [[nodiscard]] Result<BufferedFile> OpenAt(const std::string& name, std::uint64_t counted) const;

 private:
  /// Opens the directory that contains `name`, and sets `last` to the last part of the name.
  [[nodiscard]] Result<OwnedFd> Parent(const std::string& name, std::string* last) const;

  OwnedFd fd_;
  std::string path_;
};

/// Whether the folder of a file exists, which is written later.
[[nodiscard]] Status CheckFolderOf(const std::string& path);

/// Creates a file for AppendLine, or empties it.
[[nodiscard]] Status BeginLines(const std::string& path);
/// Appends a line. Opens the file each time, so it may be moved or emptied in between. Never waits for a
/// reader.
[[nodiscard]] Status AppendLine(const std::string& path, std::string_view line);

}  // namespace luff
