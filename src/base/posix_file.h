#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "luff/base/env.h"

/// Files of the system, each proved to be ours before it is changed.
namespace luff {

[[nodiscard]] Status FromErrno(int error, std::string_view what, const std::string& path);

/// A descriptor, and what was behind its number when it was opened. Somebody else in the process may close
/// the number, and the kernel gives it to the next file that is opened: then it is no longer ours to use or
/// to close. In a table of its own (file_table.h) that can't happen.
class Descriptor {
 public:
  Descriptor() = default;
  /// Takes `fd`, and moves it to a number that nobody is about to be given.
  explicit Descriptor(int fd) noexcept;
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { Close(); }

  /// Whether the same file is behind the number still. `links`, `size`: of the file.
  [[nodiscard]] bool Prove(std::uint64_t* links = nullptr, std::uint64_t* size = nullptr) const noexcept;
  /// Closes what is still ours.
  void Close() noexcept;
  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] const FileIdentity& identity() const noexcept { return identity_; }

 private:
  int fd_ = -1;
  std::uint64_t table_ = 0;
  FileIdentity identity_;
};

[[nodiscard]] std::unique_ptr<File> MakePosixFile(Descriptor descriptor, std::string path);

}  // namespace luff
