#pragma once
#include <vector>

struct sock_filter;

namespace luff::rules {

/// Keeps a child process, and everything it starts, from sending signals to this process, to its ancestors up
/// to the first process of the machine, to their process groups, and to all processes at once. It is a kernel
/// filter (seccomp), which any user may install and nobody can remove. Signals to itself and to its own
/// children still work.
class SignalShield {
 public:
  /// Builds the filter, for children that this process forks from now on.
  SignalShield();
  ~SignalShield();
  SignalShield(const SignalShield&) = delete;
  SignalShield& operator=(const SignalShield&) = delete;

  /// Installs the filter. For the child between fork and exec: makes only calls that are safe there. Returns
  /// 0, or the errno if the kernel does not allow it.
  [[nodiscard]] int PutOn() const noexcept;

 private:
  std::vector<sock_filter> filter_;
};

}  // namespace luff::rules
