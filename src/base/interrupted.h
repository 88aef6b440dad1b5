#pragma once
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace luff {

/// Makes a system call again until no signal interrupts it. Not for close(2), which has closed by then.
template <typename Call>
auto Uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// Writes all bytes. False on an error; errno says which.
inline bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = Uninterrupted([&] { return write(fd, bytes.data(), bytes.size()); });
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace luff
