#pragma once
// A block of CUDA threads on the CPU: each is a fibre, and a barrier is where fibres wait for each other.

#include <cstdint>
#include <functional>

namespace luff::device::testing {

/// In which order the threads of a block run between two barriers. Results must not depend on it.
enum class ThreadOrder : std::uint8_t { kForwards, kBackwards, kMixed };

/// Runs `body` once for each of `threads` threads, on the calling thread. `body(i)` may call Barrier().
/// Aborts with a message if some threads wait at a barrier that others never reach: on a GPU they would hang.
/// Not reentrant. Each calling thread keeps its stacks (64 KiB a fibre) until it ends.
void RunBlock(unsigned threads, ThreadOrder order, const std::function<void(unsigned)>& body);

/// Waits until every thread of the block has called it. Call it within RunBlock only.
void Barrier();

}  // namespace luff::device::testing
