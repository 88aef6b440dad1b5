#pragma once
#include <sys/types.h>

#include <functional>
#include <vector>

/// Who runs below a process, from /proc. With PR_SET_CHILD_SUBREAPER nobody can leave.
namespace luff {

struct BelowProcess {
  pid_t pid = 0;
  bool stopped = false;  // by a signal
};

/// Living processes below `top`, parents first; those that `skip` names are left out with all that is below
/// them.
[[nodiscard]] std::vector<BelowProcess> ProcessesBelow(pid_t top,
                                                       const std::function<bool(pid_t)>& skip = {});

/// A process, its parent, the parent's parent and so on.
[[nodiscard]] std::vector<pid_t> ProcessesAbove(pid_t bottom);

/// Kills all below `top`, until nobody is left there or only those that do not die (a dead disk). False: some
/// are.
bool KillBelow(pid_t top, const std::function<bool(pid_t)>& skip = {}) noexcept;

}  // namespace luff
