#pragma once
#include <vector>

struct sock_filter;

namespace luff::rules {

/// Keeps a process, and whatever it starts, from sending signals to those above this process: to us, to who
/// has started us up to the first process of the machine, to their process groups, and to all processes at
/// once. It is a filter of the kernel's (seccomp), which any user may set for himself and nobody takes off.
/// Signals to itself and to its own children go as ever.
class SignalShield {
 public:
  /// For children that this process forks from now on.
  SignalShield();
  ~SignalShield();
  SignalShield(const SignalShield&) = delete;
  SignalShield& operator=(const SignalShield&) = delete;

  /// In the child, between fork and exec: calls that are safe there only. 0, or the error of a kernel without
  /// it.
  [[nodiscard]] int PutOn() const noexcept;

 private:
  std::vector<sock_filter> filter_;
};

}  // namespace luff::rules
