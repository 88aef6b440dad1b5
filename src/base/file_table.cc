#include "luff/base/file_table.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace luff {
namespace {

#ifndef SYS_close_range
constexpr long kCloseRange = 436;
#else
constexpr long kCloseRange = SYS_close_range;
#endif
constexpr unsigned kUnshare = 1U << 1;  // CLOSE_RANGE_UNSHARE
constexpr rlim_t kMostClosed = 1U << 16;

std::atomic<std::uint64_t> g_tables{0};
thread_local std::uint64_t t_table = 0;

bool Detach() noexcept {
  // Leaves the table without copying it, so that no file of the process is opened a second time or closed.
  if (syscall(kCloseRange, 0U, ~0U, kUnshare) == 0) return true;
  if (unshare(CLONE_FILES) != 0) return false;  // a copy, which is emptied
  rlimit limit{};
  const rlim_t end =
      getrlimit(RLIMIT_NOFILE, &limit) == 0 ? std::min(limit.rlim_cur, kMostClosed) : kMostClosed;
  for (rlim_t fd = 0; fd < end; ++fd) close(static_cast<int>(fd));
  return true;
}

}  // namespace

bool TakeOwnFileTable() noexcept {
  if (t_table != 0) return true;
  if (!Detach()) return false;
  t_table = g_tables.fetch_add(1, std::memory_order_relaxed) + 1;
  // Occupies 0, 1 and 2: output of a library to standard error must not end up in one of our files.
  while (true) {
    const int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd < 0 || fd >= 2) return true;
  }
}

std::uint64_t CurrentFileTable() noexcept { return t_table; }

}  // namespace luff
