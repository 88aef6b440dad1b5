#include "capture/file_thread.h"

#include <sys/prctl.h>

#include <exception>
#include <mutex>
#include <utility>

#include "base/signals_blocked.h"
#include "luff/base/file_table.h"

namespace luff::capture {
namespace {

/// Touches the thread-local variables of this library (the file table) and of the C++ library (exceptions in
/// flight) now. The loader allocates them at their first use, and ends the process if malloc then fails.
void BeginWriterThread() {
  static_cast<void>(prctl(PR_SET_NAME, "luff-writer"));
  static_cast<void>(TakeOwnFileTable());
  [[maybe_unused]] const volatile int in_flight = std::uncaught_exceptions();
}

}  // namespace

std::unique_ptr<FileThread> FileThread::Start() noexcept {
  try {
    std::unique_ptr<FileThread> made(new FileThread());
    // A signal handler of the training may write to descriptors that this thread does not have.
    const SignalsBlocked quiet;
    made->thread_ = std::thread([shared = made->shared_] {
      BeginWriterThread();
      Loop(shared.get());
    });
    return made;
  } catch (const std::exception&) {
    return nullptr;
  }
}

void FileThread::Loop(Shared* shared) {
  for (bool last = false; !last;) {
    std::function<void()> task;
    {
      MutexLock lock(shared->mutex);
      std::unique_lock<std::mutex> native(shared->mutex.native(), std::adopt_lock);
      while (shared->done && !shared->last) shared->changed.wait(native);
      task.swap(shared->task);
      native.release();
    }
    if (task) task();
    task = nullptr;  // destroys what the task holds, files included, on this thread
    {
      MutexLock lock(shared->mutex);
      shared->done = true;
      last = shared->last && !shared->task;
    }
    shared->changed.notify_all();
  }
}

void FileThread::Give(std::function<void()> task, bool last) {
  {
    MutexLock lock(shared_->mutex);
    shared_->task = std::move(task);
    shared_->last = last;
    shared_->done = false;
  }
  shared_->changed.notify_all();
}

bool FileThread::Run(std::function<void()> task, std::chrono::milliseconds deadline) {
  const auto until = std::chrono::steady_clock::now() + deadline;
  Give(std::move(task), false);
  MutexLock lock(shared_->mutex);
  std::unique_lock<std::mutex> native(shared_->mutex.native(), std::adopt_lock);
  while (!shared_->done && shared_->changed.wait_until(native, until) != std::cv_status::timeout) {
  }
  const bool done = shared_->done;
  native.release();
  return done;
}

std::thread FileThread::Become(std::function<void()> body) {
  Give(std::move(body), true);
  return std::move(thread_);
}

FileThread::~FileThread() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(shared_->mutex);
    shared_->last = true;
  }
  shared_->changed.notify_all();
  thread_.detach();
}

}  // namespace luff::capture
