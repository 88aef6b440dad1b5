#include "base/start_apart.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <exception>

#include "base/interrupted.h"
#include "luff/base/process.h"

namespace luff {
namespace {

constexpr std::size_t kStackBytes = std::size_t{64} << 10U;

struct Start {
  char* const* argv;
  char* const* environment;
  char* second_stack;  // its end
  bool begun;
};

/// The program, before it begins. Shares memory with a process whose threads run: system calls only.
int Last(void* argument) {
  const Start& start = *static_cast<const Start*>(argument);
  setsid();
  struct sigaction usual{};
  usual.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) sigaction(number, &usual, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
#ifdef SYS_close_range
  syscall(SYS_close_range, 0U, ~0U, 0U);
#else
  for (int fd = 0; fd < 1024; ++fd) close(fd);
#endif
  for (int fd = 0; fd >= 0 && fd < 2;) fd = open("/dev/null", O_RDWR);
  static_cast<void>(!chdir("/"));
  execve(start.argv[0], start.argv, start.environment);
  _exit(127);
}

/// The process between us and the program: it ends at once, and the program is an orphan.
int Middle(void* argument) {
  auto* start = static_cast<Start*>(argument);
  start->begun = clone(Last, start->second_stack, CLONE_VM | CLONE_VFORK | SIGCHLD, start) > 0;
  return 0;
}

/// True if orphans become children of this process: in a container without an init, a training is process 1.
bool AdoptsOrphans() noexcept {
  int reaps = 0;
  return getpid() == 1 || (prctl(PR_GET_CHILD_SUBREAPER, &reaps) == 0 && reaps != 0);
}

}  // namespace

bool StartApart(const std::vector<std::string>& argv, const std::vector<std::string>& environment) noexcept {
  if (argv.empty() || AdoptsOrphans() || access(argv.front().c_str(), X_OK) != 0) return false;
  void* stacks = MAP_FAILED;
  try {
    const ExecTexts words(argv);
    const ExecTexts variables(environment);
    stacks = mmap(nullptr, 2 * kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK,
                  -1, 0);
    if (stacks == MAP_FAILED) return false;
    char* const begin = static_cast<char*>(stacks);
    Start start{words.get(), variables.get(), begin + 2 * kStackBytes, false};
    // Without a signal for its parent, so that wait() does not see it (clone(2), __WCLONE).
    const int middle = clone(Middle, begin + kStackBytes, CLONE_VM | CLONE_VFORK, &start);
    if (middle > 0) Uninterrupted([&] { return waitpid(middle, nullptr, __WCLONE); });
    munmap(stacks, 2 * kStackBytes);
    return middle > 0 && start.begun;
  } catch (const std::exception&) {
    if (stacks != MAP_FAILED) munmap(stacks, 2 * kStackBytes);
    return false;
  }
}

}  // namespace luff
