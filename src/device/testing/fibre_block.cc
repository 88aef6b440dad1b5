#include "device/testing/fibre_block.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

// The sanitizers must know which stack a thread is on.
#if defined(__SANITIZE_ADDRESS__)
#define LUFF_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LUFF_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define LUFF_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LUFF_TSAN 1
#endif
#endif
#ifdef LUFF_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef LUFF_TSAN
#include <sanitizer/tsan_interface.h>
#endif

// void luff_fibre_switch(void** save, void* to): stores the callee-saved registers on this stack and its
// pointer in *save, and goes on from `to`. swapcontext() would make two system calls each time.
#if defined(__x86_64__)
asm(R"(
.text
.globl luff_fibre_switch
.hidden luff_fibre_switch
.type luff_fibre_switch, @function
luff_fibre_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size luff_fibre_switch, .-luff_fibre_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl luff_fibre_switch
.hidden luff_fibre_switch
.type luff_fibre_switch, %function
luff_fibre_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size luff_fibre_switch, .-luff_fibre_switch
)");
#endif
#if defined(__x86_64__) || defined(__aarch64__)
extern "C" void luff_fibre_switch(void** save, void* to);
#endif

namespace luff::device::testing {
namespace {

constexpr std::size_t kStackBytes = std::size_t{64} << 10;

enum class State : std::uint8_t { kReady, kWaiting, kDone };

struct Fibre {
  std::unique_ptr<std::byte[]> stack = std::make_unique<std::byte[]>(kStackBytes);
  State state = State::kReady;
#if defined(__x86_64__) || defined(__aarch64__)
  void* context = nullptr;
#else
  ucontext_t context{};
#endif
#ifdef LUFF_ASAN
  void* fake_stack = nullptr;
#endif
#ifdef LUFF_TSAN
  void* tsan = __tsan_create_fiber(0);
  ~Fibre() { __tsan_destroy_fiber(tsan); }
  Fibre() = default;
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;
#endif
};

/// The fibres of one operating system thread.
class Fibres {
 public:
  void Run(unsigned threads, ThreadOrder order, const std::function<void(unsigned)>& body) {
    body_ = &body;
    while (fibres_.size() < threads) {
      fibres_.push_back(std::make_unique<Fibre>());
      Prepare(*fibres_.back());
    }
    std::vector<unsigned> turn(threads);
    for (unsigned i = 0; i < threads; ++i) turn[i] = order == ThreadOrder::kBackwards ? threads - 1 - i : i;
    std::minstd_rand random(threads);
    for (unsigned done = 0; done < threads;) {
      if (order == ThreadOrder::kMixed) std::shuffle(turn.begin(), turn.end(), random);
      for (const unsigned i : turn) {
        fibres_[i]->state = State::kReady;
        Enter(i);
        done += fibres_[i]->state == State::kDone ? 1 : 0;
      }
      if (done != 0 && done != threads) {
        std::fprintf(stderr, "fibre_block: %u of %u threads ended, the others wait at a barrier\n", done,
                     threads);
        std::abort();
      }
    }
  }

  void Wait() {
    fibres_[current_]->state = State::kWaiting;
    Leave(*fibres_[current_]);
  }

  /// The first function on each fibre's stack.
  [[noreturn]] void Main() {
#ifdef LUFF_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &home_stack_, &home_size_);
#endif
    for (;;) {  // a fibre lives as long as its thread, and serves one block after another
      if (body_ == nullptr) std::abort();
      (*body_)(current_);
      fibres_[current_]->state = State::kDone;
      Leave(*fibres_[current_]);
    }
  }

 private:
  void Prepare(Fibre& fibre);

  void Enter(unsigned index) {
    current_ = index;
    Fibre& fibre = *fibres_[index];
#ifdef LUFF_TSAN
    home_tsan_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fibre.tsan, 0);
#endif
#ifdef LUFF_ASAN
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, fibre.stack.get(), kStackBytes);
#endif
#if defined(__x86_64__) || defined(__aarch64__)
    luff_fibre_switch(&home_, fibre.context);
#else
    swapcontext(&home_, &fibre.context);
#endif
#ifdef LUFF_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  }

  void Leave(Fibre& fibre) {
#ifdef LUFF_TSAN
    __tsan_switch_to_fiber(home_tsan_, 0);
#endif
#ifdef LUFF_ASAN
    __sanitizer_start_switch_fiber(&fibre.fake_stack, home_stack_, home_size_);
#endif
#if defined(__x86_64__) || defined(__aarch64__)
    luff_fibre_switch(&fibre.context, home_);
#else
    swapcontext(&fibre.context, &home_);
#endif
#ifdef LUFF_ASAN
    __sanitizer_finish_switch_fiber(fibre.fake_stack, &home_stack_, &home_size_);
#endif
  }

  std::vector<std::unique_ptr<Fibre>> fibres_;
  const std::function<void(unsigned)>* body_ = nullptr;
  unsigned current_ = 0;
#if defined(__x86_64__) || defined(__aarch64__)
  void* home_ = nullptr;
#else
  ucontext_t home_{};
#endif
#ifdef LUFF_ASAN
  const void* home_stack_ = nullptr;
  std::size_t home_size_ = 0;
#endif
#ifdef LUFF_TSAN
  void* home_tsan_ = nullptr;
#endif
};

Fibres& Mine() {
  thread_local Fibres fibres;
  return fibres;
}

void FibreMain() { Mine().Main(); }

void Fibres::Prepare(Fibre& fibre) {
#if defined(__x86_64__)
  // What luff_fibre_switch pops: six registers, then the address that it returns to. At its entry, a function
  // expects the stack to be 8 bytes off a multiple of 16.
  auto* top = reinterpret_cast<void**>(fibre.stack.get() + kStackBytes - 8);
  *top = nullptr;
  *--top = reinterpret_cast<void*>(&FibreMain);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fibre.context = static_cast<void*>(top);
#elif defined(__aarch64__)
  std::byte* frame = fibre.stack.get() + kStackBytes - 160;
  std::fill(frame, frame + 160, std::byte{0});
  *reinterpret_cast<void**>(frame + 88) = reinterpret_cast<void*>(&FibreMain);  // x30
  fibre.context = frame;
#else
  getcontext(&fibre.context);
  fibre.context.uc_stack.ss_sp = fibre.stack.get();
  fibre.context.uc_stack.ss_size = kStackBytes;
  fibre.context.uc_link = nullptr;
  makecontext(&fibre.context, &FibreMain, 0);
#endif
}

}  // namespace

void RunBlock(unsigned threads, ThreadOrder order, const std::function<void(unsigned)>& body) {
  Mine().Run(threads, order, body);
}

void Barrier() { Mine().Wait(); }

}  // namespace luff::device::testing
