#pragma once
#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace luff::tensor {

/// The default floating-point environment for the life of the object: round to nearest, subnormals kept, no
/// traps. The training program may flush subnormals (`torch.set_flush_denormal`) or trap on invalid
/// operations. Summaries must not depend on the first or trigger the second, and must leave the exception
/// flags as they were.
class FloatEnvironment {
 public:
#if defined(__x86_64__)
  FloatEnvironment() noexcept : saved_(_mm_getcsr()) {
    constexpr unsigned kFlags = 0x3f;
    constexpr unsigned kDefault = 0x1f80;
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(kDefault | (saved_ & kFlags));
  }
  ~FloatEnvironment() {
    if (_mm_getcsr() != saved_) _mm_setcsr(saved_);
  }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FloatEnvironment() noexcept {
    asm volatile("mrs %0, fpcr" : "=r"(control_));
    asm volatile("mrs %0, fpsr" : "=r"(status_));
    if (control_ != 0) Set(0, status_);
  }
  ~FloatEnvironment() { Set(control_, status_); }

 private:
  static void Set(std::uint64_t control, std::uint64_t status) noexcept {
    asm volatile("msr fpcr, %0" : : "r"(control));
    asm volatile("msr fpsr, %0" : : "r"(status));
  }
  std::uint64_t control_ = 0;
  std::uint64_t status_ = 0;
#else
  FloatEnvironment() noexcept = default;
  ~FloatEnvironment() = default;
#endif

 public:
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;
};

}  // namespace luff::tensor
