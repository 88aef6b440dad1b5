#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/owned_fd.h"

namespace luff::cli {

/// One stream of the job: its file, which the job appends to, and where it is shown.
struct LogStream {
  OwnedFd file;
  std::string path;
  int to = -1;
  std::atomic<std::uint64_t> shown{0};    // the first byte that is not shown yet
  std::atomic<std::uint64_t> dropped{0};  // the first byte that is left on disk
};

/// The size of a file that is open; 0 if it cannot be told.
[[nodiscard]] std::uint64_t SizeOf(int fd) noexcept;

/// Copies what is appended to files to where they are shown, in a thread of its own, since a terminal may be
/// stopped. Several streams that are shown in one place are copied in the order in which they were written,
/// as far as the kernel tells it. If the job cuts a file (it opens /dev/stdout for writing), the rest is
/// shown.
class LogCopier {
 public:
  /// Borrows the streams.
  explicit LogCopier(std::vector<LogStream*> streams);
  /// Copies what is there, and ends.
  void Finish();

 private:
  void Run();
  /// Copies up to where the file ends now.
  void Copy(LogStream* stream);
  void Write(int to, std::string_view bytes);

  const std::vector<LogStream*> streams_;
  std::vector<char> buffer_;
  bool gone_ = false;
  std::atomic<bool> finishing_{false};
  std::thread thread_;
};

}  // namespace luff::cli
