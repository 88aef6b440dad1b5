#pragma once
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace luff {

/// Repeats a system call until no signal interrupts it. Not for close(2), which closes the descriptor even
/// when it is interrupted.
template <typename Call>
auto Uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// Writes all bytes. Returns false on an error, with errno set.
inline bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = Uninterrupted([&] { return write(fd, bytes.data(), bytes.size()); });
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace luff
