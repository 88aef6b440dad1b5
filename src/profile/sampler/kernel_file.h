#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Files of the kernel that are read again and again.
namespace luff::profile {

enum class SourceState : std::uint8_t { kUnread, kRead, kAbsent, kDenied, kFailed };
[[nodiscard]] const char* SourceStateName(SourceState state) noexcept;
/// How an errno looks to whoever wants to read: absent (no such file, no such device), denied, or failed.
[[nodiscard]] SourceState StateOfError(int error) noexcept;

/// Keeps the file open, since opening costs more than reading. A file that could not be read is tried again
/// once in 600 reads. **Thread-compatible.**
class KernelFile {
 public:
  KernelFile() = default;
  explicit KernelFile(std::string path) : path_(std::move(path)) {}
  KernelFile(KernelFile&& other) noexcept;
  KernelFile& operator=(KernelFile&& other) noexcept;
  ~KernelFile();

  /// The text now, at most 1 MiB of it; "" if it cannot be read. Lives until the next Read() of any file in
  /// this thread.
  [[nodiscard]] std::string_view Read();
  /// Gives the descriptor back; the next Read() opens the file again.
  void Close() noexcept;
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] SourceState state() const noexcept { return state_; }
  [[nodiscard]] int error() const noexcept { return error_; }  // errno, of kAbsent, kDenied and kFailed

 private:
  void Fail(int error) noexcept;
  std::string path_;
  int fd_ = -1;
  int wait_ = 0;  // reads until the next try
  SourceState state_ = SourceState::kUnread;
  int error_ = 0;
};

/// Length of the kernel's clock tick, in which it counts time of processes and cores.
[[nodiscard]] std::int64_t ClockTickNs() noexcept;

/// Names in a folder, at most `limit`; none if it cannot be read.
[[nodiscard]] std::vector<std::string> NamesIn(const std::string& folder, std::size_t limit);

}  // namespace luff::profile
