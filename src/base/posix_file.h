#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "luff/base/env.h"

/// Files of the operating system. Before each use, a file checks that its descriptor is still ours.
namespace luff {

[[nodiscard]] Status FromErrno(int error, std::string_view what, const std::string& path);

/// A descriptor, and the identity of the file it referred to when it was opened. Other code in the process
/// may close the number, and the kernel then reuses it for another file, which we must neither use nor close.
/// In a thread's own table (file_table.h) that cannot happen.
class Descriptor {
 public:
  Descriptor() = default;
  /// Takes ownership of `fd` and moves it to a number that is unlikely to be reused soon.
  explicit Descriptor(int fd) noexcept;
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { Close(); }

  /// Returns whether the number still refers to the same file. Sets `links` and `size` to those of the file.
  [[nodiscard]] bool Prove(std::uint64_t* links = nullptr, std::uint64_t* size = nullptr) const noexcept;
  /// Closes the descriptor if it is still ours.
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
