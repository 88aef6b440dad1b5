#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "base/owned_fd.h"

namespace luff::capture {

/// Reads memory of this process, or of a child that it forked, through the kernel (/proc/PID/mem): an address
/// that is not mapped, or is given back meanwhile, is an error instead of a crash. What is read may be half
/// of a change. Holds a descriptor while it lives: one object for each look, by the thread that looks.
class ProcessMemory {
 public:
  explicit ProcessMemory(pid_t process);
  /// Fills the beginning of `to`. Returns how many bytes could be read.
  [[nodiscard]] std::size_t Read(std::uint64_t address, std::span<std::byte> to) noexcept;
  /// Reads one value; nothing if it is not mapped.
  template <typename T>
  [[nodiscard]] std::optional<T> Get(std::uint64_t address) noexcept {
    T value;
    std::span<std::byte> bytes = std::as_writable_bytes(std::span(&value, 1));
    if (Read(address, bytes) != sizeof value) return std::nullopt;
    return value;
  }
  /// True if the memory could not be opened: no stack of this process can be had.
  [[nodiscard]] bool refused() const noexcept { return !file_.valid(); }

 private:
  OwnedFd file_;
};

}  // namespace luff::capture
