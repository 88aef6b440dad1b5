#pragma once
#include <string>
#include <vector>

namespace luff {

/// Starts a program that is nobody's child here: the process's own `wait()` never meets it, no SIGCHLD comes
/// from it, and it has no terminal, no open descriptors, no signals ignored and "/" as its directory. For
/// processes with threads: nothing is copied, and the calling thread waits only until the program begins
/// (about a millisecond). Its parent is whoever adopts orphans. Returns false if it could not be started, as
/// where this process is the one that adopts them (process 1 of a container).
///
/// `argv[0]` is a path. Call it with signals blocked.
[[nodiscard]] bool StartApart(const std::vector<std::string>& argv,
                              const std::vector<std::string>& environment) noexcept;

}  // namespace luff
