#include "capture/phase_clock.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <span>

#include "luff/base/env.h"

namespace luff::capture {
namespace {

using format::kPhaseCount;
using format::Phase;

constexpr std::size_t kDepth = 16;  // the lowest is kOther

struct PhaseClock {
  PhaseSums sums;
  PhaseSums at_begin;
  bool read = false;  // by any session
  std::array<std::int64_t, kPhaseCount> begun_ns{};
  std::array<Phase, kDepth> stack{};
  std::size_t depth = 0;      // of the innermost phase in `stack`
  std::size_t uncounted = 0;  // phases beyond those
  std::uint64_t serial = 0;
  std::int32_t thread = 0;

  [[nodiscard]] Phase now() const noexcept { return stack[depth]; }
  void Advance(std::int64_t ns) noexcept {
    sums.ns[static_cast<std::size_t>(now())] += ns - sums.at_ns;
    sums.at_ns = ns;
  }
};

// Static TLS, as in session.cc: a loader's own thread-locals end the process when malloc fails.
[[gnu::tls_model("initial-exec")]] constinit thread_local PhaseClock* t_clock = nullptr;
std::atomic<std::uint64_t> g_next_clock{1};

PhaseClock* BeginClock() noexcept {
  static const std::pair<int, pthread_key_t> made = [] {
    pthread_key_t key{};
    const int error = pthread_key_create(&key, [](void* clock) {
      t_clock = nullptr;
      std::free(clock);
    });
    return std::pair(error, key);
  }();
  void* memory = made.first == 0 ? std::malloc(sizeof(PhaseClock)) : nullptr;
  if (memory == nullptr) return nullptr;
  if (pthread_setspecific(made.second, memory) != 0) {
    std::free(memory);
    return nullptr;
  }
  auto* clock = new (memory) PhaseClock();
  clock->serial = g_next_clock.fetch_add(1, std::memory_order_relaxed);
  clock->thread = static_cast<std::int32_t>(syscall(SYS_gettid));
  clock->sums.at_ns = clock->at_begin.at_ns = Env::Real().NowMonotonicNs();
  t_clock = clock;
  return clock;
}

}  // namespace

void EnterPhase(Phase phase) noexcept {
  if (t_clock == nullptr && phase == Phase::kGc) return;  // the training may begin much later
  PhaseClock* clock = t_clock != nullptr ? t_clock : BeginClock();
  const auto number = static_cast<std::size_t>(phase);
  if (clock == nullptr || number >= kPhaseCount) return;
  if (clock->depth + 1 == kDepth) {
    ++clock->uncounted;
    return;
  }
  const std::int64_t now = Env::Real().NowMonotonicNs();
  clock->Advance(now);
  clock->stack[++clock->depth] = phase;
  clock->begun_ns[number] = now;
  ++clock->sums.begins[number];
}

void LeavePhase(Phase phase) noexcept {
  PhaseClock* clock = t_clock;
  if (clock == nullptr) return;
  if (clock->uncounted != 0) {
    --clock->uncounted;
    return;
  }
  std::size_t at = clock->depth;
  if (phase == Phase::kOptimizer) {
    at = 1;
    while (at <= clock->depth && clock->stack[at] != phase) ++at;
    if (at > clock->depth) return;
  } else {
    while (at != 0 && clock->stack[at] != phase) --at;
    if (at == 0) return;
  }
  clock->Advance(Env::Real().NowMonotonicNs());
  clock->depth = at - 1;
}

void ForgetPhases() noexcept {
  PhaseClock* clock = t_clock;
  if (clock == nullptr) return;
  const std::int64_t now = Env::Real().NowMonotonicNs();
  *clock = {};
  clock->serial = g_next_clock.fetch_add(1, std::memory_order_relaxed);
  clock->thread = static_cast<std::int32_t>(syscall(SYS_gettid));
  clock->sums.at_ns = clock->at_begin.at_ns = now;
}

void PhaseSteps::BeginOnce() noexcept {
  if (begun_) return;
  begun_ = true;
  PhaseClock* clock = t_clock;
  if (clock == nullptr || !clock->read) return;
  clock->Advance(Env::Real().NowMonotonicNs());
  clock_ = clock->serial;
  last_ = clock->sums;
}

PhasesEnd PhaseSteps::EndStep(store::StepPhases* out) noexcept {
  PhaseClock* clock = t_clock;
  if (clock == nullptr) return {};
  clock->Advance(Env::Real().NowMonotonicNs());
  if (clock_ != clock->serial) {
    clock_ = clock->serial;
    last_ = clock->at_begin;
  }
  const PhaseSums& sums = clock->sums;
  format::PhasesHead& head = out->head;
  head = {sums.at_ns - last_.at_ns, -1, -1, -1, 1, 0, format::kNoId, 0};
  for (std::size_t i = 0; i < kPhaseCount; ++i) {
    const std::int64_t took = sums.ns[i] - last_.ns[i];
    const std::uint32_t begins = sums.begins[i] - last_.begins[i];
    if (took == 0 && begins == 0) continue;
    const bool began = begins != 0;
    out->rows[head.rows++] = {static_cast<std::uint8_t>(i),
                              0,
                              static_cast<std::uint16_t>(std::min<std::uint32_t>(begins, 0xFFFF)),
                              format::kNoId,
                              began ? clock->begun_ns[i] - last_.at_ns : -1,
                              took};
  }
  last_ = sums;
  clock->read = true;
  return {sums.at_ns, clock->thread};
}

}  // namespace luff::capture
