#pragma once
#include <sys/types.h>

#include <functional>
#include <vector>

/// Finds and kills the descendants of a process, as /proc shows them. If the process has set
/// PR_SET_CHILD_SUBREAPER, no descendant can leave its tree.
namespace luff {

struct BelowProcess {
  pid_t pid = 0;
  bool stopped = false;  // by a signal
};

/// Returns the living descendants of `top`, parents first. Leaves out processes for which `skip` is true, and
/// their descendants.
[[nodiscard]] std::vector<BelowProcess> ProcessesBelow(pid_t top,
                                                       const std::function<bool(pid_t)>& skip = {});

/// Returns a process, its parent, the parent's parent and so on.
[[nodiscard]] std::vector<pid_t> ProcessesAbove(pid_t bottom);

/// Kills the descendants of `top` repeatedly until none is left. Returns false if some survive 50 rounds
/// (half a second), e.g. because they wait for a dead disk, or if memory runs out.
bool KillBelow(pid_t top, const std::function<bool(pid_t)>& skip = {}) noexcept;

}  // namespace luff
