#pragma once
#include <cstddef>
#include <string>

#include "base/owned_fd.h"
#include "luff/base/result.h"

/// A connection with a process of the same user over a socket in the file system: a line asks, a line
/// answers.
namespace luff {

/// **Thread-compatible.** Bounded in time and memory. After an error the connection is of no more use.
class LineSocket {
 public:
  /// Connects to the socket `name` in a directory; its path may be of any length. Errors: kUnavailable if
  /// nobody, or another user, listens there.
  [[nodiscard]] static Result<LineSocket> Connect(const std::string& directory, const std::string& name);
  /// Sends a line and returns the answer, both without the line feed. Errors: kUnavailable if the other side
  /// has gone, kDeadlineExceeded, kCorruption if the answer is longer than `limit`.
  [[nodiscard]] Result<std::string> Ask(const std::string& line, int timeout_ms, std::size_t limit);
  /// False once the other side has gone. Does not wait.
  [[nodiscard]] bool alive() const noexcept;

 private:
  explicit LineSocket(OwnedFd fd) noexcept : fd_(std::move(fd)) {}
  OwnedFd fd_;
};

}  // namespace luff
