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

constexpr std::size_t kWaits = store::StepPhases::kWaits;
constexpr std::size_t kDepth = 16;  // the lowest is kOther

/// What a thread tells others: one word that is stored whenever its phase changes. The places outlive the
/// threads, so whoever reads one may be late, but never reads memory that was given back.
struct Board {
  std::atomic<std::int32_t> thread{0};  // 0: nobody's
  std::atomic<std::uint64_t> pthread_id{0};
  std::atomic<std::uint64_t> now{0};  // time in ns without the lowest eight bits, which are the phase
};
constexpr std::size_t kBoards = 64;
std::array<Board, kBoards> g_boards;
Board g_unread;  // of the threads beyond those

Board* TakeBoard(std::int32_t thread) noexcept {
  for (Board& board : g_boards) {
    std::int32_t nobody = 0;
    if (!board.thread.compare_exchange_strong(nobody, -1, std::memory_order_relaxed)) continue;
    board.pthread_id.store(static_cast<std::uint64_t>(pthread_self()), std::memory_order_relaxed);
    board.thread.store(thread, std::memory_order_release);
    return &board;
  }
  return &g_unread;
}

struct PhaseClock {
  PhaseSums sums;
  Board* board = &g_unread;
  PhaseSums at_begin;
  bool read = false;  // by any session
  std::array<std::int64_t, kPhaseCount> begun_ns{};
  std::array<Phase, kDepth> stack{};
  std::size_t depth = 0;      // of the innermost phase in `stack`
  std::size_t uncounted = 0;  // phases beyond those
  std::uint64_t serial = 0;
  std::int32_t thread = 0;
  struct Wait {
    std::uint32_t subject = format::kNoId;
    std::int64_t ns = 0, begun_ns = 0;
  };
  std::array<Wait, kWaits> waits{};             // the last ones that began
  std::array<std::uint64_t, kDepth> wait_of{};  // number of the wait at each depth

  [[nodiscard]] Phase now() const noexcept { return stack[depth]; }
  void Advance(std::int64_t ns) noexcept {
    const std::int64_t took = ns - sums.at_ns;
    sums.ns[static_cast<std::size_t>(now())] += took;
    sums.at_ns = ns;
    if (now() == Phase::kDataWait && sums.waits - wait_of[depth] <= kWaits)
      waits[wait_of[depth] % kWaits].ns += took;
  }
  void Enter(Phase phase, std::uint32_t subject, std::int64_t ns) noexcept {
    Advance(ns);
    stack[++depth] = phase;
    if (phase == Phase::kDataWait) {
      waits[sums.waits % kWaits] = {subject, 0, ns};
      wait_of[depth] = sums.waits++;
    }
    begun_ns[static_cast<std::size_t>(phase)] = ns;
    ++sums.begins[static_cast<std::size_t>(phase)];
    Tell(ns);
  }
  void Leave(std::size_t at, std::int64_t ns) noexcept {
    Advance(ns);
    depth = at - 1;
    Tell(ns);
  }
  void Tell(std::int64_t ns) const noexcept {
    board->now.store(
        (static_cast<std::uint64_t>(ns) & ~std::uint64_t{0xFF}) | static_cast<std::uint64_t>(now()),
        std::memory_order_relaxed);
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
      if (Board* board = static_cast<PhaseClock*>(clock)->board; board != &g_unread)
        board->thread.store(0, std::memory_order_relaxed);
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
  clock->board = TakeBoard(clock->thread);
  clock->Tell(clock->sums.at_ns);
  t_clock = clock;
  return clock;
}

void Enter(Phase phase, std::uint32_t subject) noexcept {
  PhaseClock* clock = t_clock != nullptr ? t_clock : BeginClock();
  if (clock == nullptr || static_cast<std::size_t>(phase) >= kPhaseCount) return;
  if (clock->depth + 1 == kDepth) {
    ++clock->uncounted;
    return;
  }
  clock->Enter(phase, subject, Env::Real().NowMonotonicNs());
}

/// The depth of the innermost `phase`; 0 if the thread is not in it.
std::size_t Innermost(const PhaseClock& clock, Phase phase) noexcept {
  std::size_t at = clock.depth;
  while (at != 0 && clock.stack[at] != phase) --at;
  return at;
}

/// Appends a row, or adds to the one of the same subject.
void AddWait(std::size_t first, const format::PhaseRow& row, store::StepPhases* to) noexcept {
  for (std::size_t i = first; i < to->head.rows; ++i) {
    format::PhaseRow& other = to->rows[i];
    if (other.phase != row.phase || other.subject != row.subject) continue;
    other.duration_ns += row.duration_ns;
    other.count = static_cast<std::uint16_t>(std::min(other.count + row.count, 0xFFFF));
    other.start_ns = std::max(other.start_ns, row.start_ns);
    return;
  }
  to->rows[to->head.rows++] = row;
}

/// Divides the waits of a step among the batches that were waited for; what is left is for none that is
/// known.
void AddWaits(const PhaseClock& clock, const PhaseSums& last, std::int64_t took, std::uint32_t begins,
              store::StepPhases* to) noexcept {
  constexpr auto kPhase = static_cast<std::uint8_t>(Phase::kDataWait);
  const std::size_t first = to->head.rows;
  const std::uint64_t end = clock.sums.waits;
  for (std::uint64_t i = std::max(last.waits, end - std::min<std::uint64_t>(end, kWaits)); i < end; ++i) {
    const PhaseClock::Wait& wait = clock.waits[i % kWaits];
    AddWait(first, {kPhase, 0, 1, wait.subject, wait.begun_ns - last.at_ns, wait.ns}, to);
    took -= wait.ns;
    --begins;
  }
  if (took == 0 && begins == 0) return;
  AddWait(first,
          {kPhase, 0, static_cast<std::uint16_t>(std::min<std::uint32_t>(begins, 0xFFFF)), format::kNoId, -1,
           took},
          to);
}

}  // namespace

void EnterPhase(Phase phase) noexcept {
  // The training may begin much later.
  if (t_clock == nullptr && phase == Phase::kGc) return;
  Enter(phase, format::kNoId);
}
void EnterWait(format::WaitSubject subject) noexcept { Enter(Phase::kDataWait, subject.packed()); }

void LeavePhase(Phase phase) noexcept {
  PhaseClock* clock = t_clock;
  if (clock == nullptr) return;
  if (clock->uncounted != 0) {
    --clock->uncounted;
    return;
  }
  std::size_t at = Innermost(*clock, phase);
  if (at != 0 && phase == Phase::kOptimizer) {
    at = 1;
    while (clock->stack[at] != phase) ++at;
  }
  if (at != 0) clock->Leave(at, Env::Real().NowMonotonicNs());
}

void EnterLuff(std::int64_t now_ns) noexcept {
  PhaseClock* clock = t_clock;
  if (clock != nullptr && clock->depth + 1 < kDepth) clock->Enter(Phase::kLuff, format::kNoId, now_ns);
}
void LeaveLuff(std::int64_t now_ns) noexcept {
  PhaseClock* clock = t_clock;
  if (clock == nullptr || clock->now() != Phase::kLuff) return;
  clock->Leave(clock->depth, now_ns);
}

void ForgetPhases() noexcept {
  // No other thread of the parent is here, and this one has another number.
  for (Board& board : g_boards) board.thread.store(0, std::memory_order_relaxed);
  PhaseClock* clock = t_clock;
  if (clock == nullptr) return;
  const std::int64_t now = Env::Real().NowMonotonicNs();
  *clock = {};
  clock->serial = g_next_clock.fetch_add(1, std::memory_order_relaxed);
  clock->thread = static_cast<std::int32_t>(syscall(SYS_gettid));
  clock->sums.at_ns = clock->at_begin.at_ns = now;
  clock->board = TakeBoard(clock->thread);
  clock->Tell(now);
}

void BeganWithWait(Phase phase, std::int64_t ns, store::StepPhases* step) noexcept {
  if (ns <= 0 || step->head.rows == step->rows.size()) return;
  const std::span<format::PhaseRow> rows = std::span(step->rows).first(step->head.rows);
  const auto from = std::ranges::find(rows, static_cast<std::uint8_t>(phase), &format::PhaseRow::phase);
  if (from == rows.end()) return;
  const std::int64_t took = std::min(ns, from->duration_ns), begun = from->start_ns;
  from->duration_ns -= took;
  if (begun >= 0) from->start_ns += took;
  AddWait(0, {static_cast<std::uint8_t>(Phase::kDataWait), 0, 1, format::kNoId, begun, took}, step);
}

std::optional<ThreadNow> NowOf(std::int32_t thread) noexcept {
  if (thread <= 0) return std::nullopt;
  for (const Board& board : g_boards) {
    if (board.thread.load(std::memory_order_acquire) != thread) continue;
    const std::uint64_t now = board.now.load(std::memory_order_relaxed);
    return ThreadNow{board.pthread_id.load(std::memory_order_relaxed), static_cast<Phase>(now & 0xFFU),
                     static_cast<std::int64_t>(now & ~std::uint64_t{0xFF})};
  }
  return std::nullopt;
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
    if (i == static_cast<std::size_t>(Phase::kDataWait)) {
      AddWaits(*clock, last_, took, begins, out);
      continue;
    }
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
