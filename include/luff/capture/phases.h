#pragma once
#include "luff/format/layout.h"

/// What the calling thread does. Times are sums of each thread, read by sessions at the end of a step;
/// without a session nothing is kept but these sums. None of these makes a system call, but for the first of
/// a thread.
namespace luff::capture {

/// The thread is in this phase until LeavePhase; what is entered meanwhile counts instead. Beyond 15 phases
/// inside each other, the inner ones are not told apart.
void EnterPhase(format::Phase phase) noexcept;
/// Enters kDataWait, for this batch.
void EnterWait(format::WaitSubject subject) noexcept;
/// Leaves the phase that was entered last, with all that were entered inside it and never left. kOptimizer:
/// the one that was entered first, since nothing tells of an update that raised. Nothing happens in a thread
/// that is not in it.
void LeavePhase(format::Phase phase) noexcept;
/// In a forked child: forgets what the parent's thread was doing.
void ForgetPhases() noexcept;

}  // namespace luff::capture
