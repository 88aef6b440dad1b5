#pragma once
#include <cerrno>

namespace luff {

/// Makes a system call again until no signal interrupts it. Not for close(2), which has closed by then.
template <typename Call>
auto Uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace luff
