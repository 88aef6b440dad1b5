#include "terminate.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "base/signals_blocked.h"

namespace luff::python {
namespace nb = nanobind;
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Deadlines, measured from the signal.
constexpr milliseconds kPythonBegins{150};  // for the main thread to reach Python code
constexpr milliseconds kPythonEnds{350};
constexpr milliseconds kSessionsEnd{450};
constexpr milliseconds kAll{500};  // a kernel timer, in case our thread does not get that far
constexpr std::size_t kStack = 256U << 10;

// Words that a signal handler may touch. Waits use futex, which is a plain system call.
using Word = std::atomic<std::uint32_t>;
enum Asked : std::uint32_t { kNothing, kTerminate, kLeave };
enum Python : std::uint32_t { kNotBegun, kBegun, kEnded };
Word g_asked{kNothing}, g_python{kNotBegun}, g_over{0};
std::atomic<PyObject*> g_function{nullptr};  // never released
std::atomic<pid_t> g_pid{0};
std::atomic<bool> g_has_timer{false};
timer_t g_timer{};

void Wait(Word* word, std::uint32_t while_it_is, milliseconds at_most) noexcept {
  const timespec limit{at_most.count() / 1000, at_most.count() % 1000 * 1'000'000};
  if (at_most.count() > 0)
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_it_is,
            at_most == milliseconds::max() ? nullptr : &limit, nullptr, 0);
}

void Set(Word* word, std::uint32_t value) noexcept {
  word->store(value);
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
}

milliseconds Until(Clock::time_point end) noexcept {
  return std::max(std::chrono::duration_cast<milliseconds>(end - Clock::now()), milliseconds(0));
}

/// Waits while `word` has the value, at most until `end`.
void WaitUntil(Word* word, std::uint32_t while_it_is, Clock::time_point end) noexcept {
  while (word->load() == while_it_is && Clock::now() < end)
    Wait(word, while_it_is, Until(end) + milliseconds(1));
}

void DieOfIt() noexcept {
  signal(SIGTERM, SIG_DFL);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, SIGTERM);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  raise(SIGTERM);
}

/// Runs in Python's main thread, as a pending call.
int EndInPython(void*) {
  if (getpid() != g_pid.load() || g_asked.load() != kTerminate) return 0;
  Set(&g_python, kBegun);
  PyObject* result = PyObject_CallNoArgs(g_function.load());
  Py_XDECREF(result);
  PyErr_Clear();
  Set(&g_python, kEnded);
  WaitUntil(&g_over, 0, Clock::now() + kAll);
  return 0;
}

/// Calls only async-signal-safe functions, and Py_AddPendingCall as CPython's own handler does: it takes a
/// lock, and if this thread already holds that lock, the timer ends the wait. It is called only in the main
/// thread, which runs the pending call at once, so that a training that kills itself runs no further line.
/// SA_RESETHAND: a second signal, or the timer's, gets the default action.
void OnTerminate(int) {
  const int error = errno;
  std::uint32_t nothing = kNothing;
  // Dies at once in a child that shares our memory (vfork) or was cloned without the C library, and of a
  // second signal that another handler has passed on.
  if (getpid() != g_pid.load() || !g_asked.compare_exchange_strong(nothing, kTerminate)) {
    DieOfIt();
    return;
  }
  if (g_has_timer.load()) {
    itimerspec once{};
    once.it_value.tv_nsec = std::chrono::nanoseconds(kAll).count();
    timer_settime(g_timer, 0, &once, nullptr);
  }
  Set(&g_asked, kTerminate);
  if (g_function.load() != nullptr && syscall(SYS_gettid) == getpid())
    Py_AddPendingCall(EndInPython, nullptr);
  errno = error;
}

class Terminator {
 public:
  static Terminator& Get() {
    static auto* one = new Terminator;  // never destroyed: the process may end while the thread runs
    return *one;
  }

  void Add(capture::Session* session) {
    const std::lock_guard lock(mutex_);
    sessions_.push_back(session);
    if (!installed_) Install();
  }

  void Remove(capture::Session* session) {
    const std::lock_guard lock(mutex_);
    std::erase(sessions_, session);
    if (installed_ && sessions_.empty()) Uninstall();
  }

  void Call(nb::object function) {
    // Pending calls run in the main interpreter, which must not touch objects of another interpreter.
    if (PyInterpreterState_Get() == PyInterpreterState_Main()) g_function = function.release().ptr();
  }

 private:
  Terminator() {
    pthread_atfork(nullptr, nullptr, [] { Get().AfterForkInChild(); });
  }

  static bool IsOurs(const struct sigaction& action) {
    return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == OnTerminate;
  }
  static bool IsDefault(const struct sigaction& action) {
    return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
  }

  void Install() {
    // The kernel drops a SIGTERM to a container's first process unless it has a handler: install none.
    if (getpid() == 1) return;
    struct sigaction now{};
    if (sigaction(SIGTERM, nullptr, &now) != 0 || !IsDefault(now)) return;
    g_asked = kNothing;
    g_over = 0;
    g_python = kNotBegun;
    g_pid = getpid();
    if (!StartThread()) return;
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGTERM;
    g_has_timer = timer_create(CLOCK_MONOTONIC, &event, &g_timer) == 0;
    struct sigaction ours{};
    ours.sa_handler = OnTerminate;
    ours.sa_flags = static_cast<int>(SA_RESTART | SA_NODEFER | SA_RESETHAND | SA_ONSTACK);
    sigaction(SIGTERM, &ours, nullptr);
    installed_ = true;
  }

  void Uninstall() {
    struct sigaction now{};
    if (sigaction(SIGTERM, nullptr, &now) == 0 && IsOurs(now)) signal(SIGTERM, SIG_DFL);
    std::uint32_t nothing = kNothing;
    if (!g_asked.compare_exchange_strong(nothing, kLeave)) return;  // the process is about to end
    Set(&g_asked, kLeave);
    pthread_join(thread_, nullptr);
    if (g_has_timer.exchange(false)) timer_delete(g_timer);
    installed_ = false;
  }

  bool StartThread() {
    const SignalsBlocked quiet;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, kStack);
    const bool started = pthread_create(
                             &thread_, &attributes,
                             [](void* self) -> void* {
                               static_cast<Terminator*>(self)->Serve();
                               return nullptr;
                             },
                             this) == 0;
    pthread_attr_destroy(&attributes);
    return started;
  }

  void Serve() noexcept {
    while (g_asked.load() == kNothing) Wait(&g_asked, kNothing, milliseconds::max());
    if (g_asked.load() == kLeave) return;
    const auto begin = Clock::now();
    if (g_function.load() != nullptr) {
      WaitUntil(&g_python, kNotBegun, begin + kPythonBegins);
      WaitUntil(&g_python, kBegun, begin + kPythonEnds);
    }
    EndSessions(begin + kSessionsEnd);
    struct sigaction now{};
    if (sigaction(SIGTERM, nullptr, &now) == 0 && IsDefault(now)) DieOfIt();
    // Another handler was installed in the meantime, or has passed the signal on to ours: that one decides.
    if (g_has_timer.exchange(false)) timer_delete(g_timer);
    Set(&g_over, 1);
    kill(getpid(), SIGTERM);
  }

  void EndSessions(Clock::time_point end) noexcept {
    const std::lock_guard lock(mutex_);
    for (capture::Session* session : sessions_) {
      const bool done = session->EndNow(format::EndReason::kSignal, Until(end));
      static_cast<void>(done);  // what is not in the run by then is lost with the process
    }
  }

  void AfterForkInChild() noexcept {
    new (&mutex_) std::mutex;
    sessions_.clear();
    struct sigaction now{};
    if (sigaction(SIGTERM, nullptr, &now) == 0 && IsOurs(now)) signal(SIGTERM, SIG_DFL);
    g_asked = kNothing;
    g_pid = 0;
    g_has_timer = false;  // timers are not inherited
    installed_ = false;
  }

  std::mutex mutex_;
  std::vector<capture::Session*> sessions_;
  pthread_t thread_{};
  bool installed_ = false;
};

}  // namespace

void EndAtTerminate(capture::Session* session) noexcept {
  try {
    Terminator::Get().Add(session);
  } catch (...) {  // NOLINT(bugprone-empty-catch): out of memory: SIGTERM ends the process as it always did
  }
}

void ForgetAtTerminate(capture::Session* session) noexcept {
  try {
    Terminator::Get().Remove(session);
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
}

void InitTerminate(nb::module_& m) {
  m.def(
      "on_terminate", [](nb::object function) { Terminator::Get().Call(std::move(function)); },
      nb::arg("function"),
      "What the main thread calls before SIGTERM ends the process, if it comes to Python code within 0.15 "
      "s.");
}

}  // namespace luff::python
