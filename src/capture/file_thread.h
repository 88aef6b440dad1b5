#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <thread>

#include "luff/base/mutex.h"

namespace luff::capture {

/// The only thread of a session that touches files. It has its own descriptor table (base/file_table.h), so
/// the training cannot affect our descriptors and its children do not inherit them. It handles no signals of
/// the process.
class FileThread {
 public:
  /// Null if no thread can be started.
  [[nodiscard]] static std::unique_ptr<FileThread> Start() noexcept;
  /// Ends the thread after its current task, without waiting.
  ~FileThread();
  FileThread(const FileThread&) = delete;
  FileThread& operator=(const FileThread&) = delete;

  /// Runs `task` on the thread. Returns false if it does not end in time; it then continues, and what it
  /// refers to must outlive it.
  [[nodiscard]] bool Run(std::function<void()> task, std::chrono::milliseconds deadline);
  /// Makes `body` the thread's last task, and returns the thread.
  [[nodiscard]] std::thread Become(std::function<void()> body);

 private:
  struct Shared {
    Mutex mutex;
    std::condition_variable changed;
    std::function<void()> task LUFF_GUARDED_BY(mutex);
    bool last LUFF_GUARDED_BY(mutex) = false;
    bool done LUFF_GUARDED_BY(mutex) = true;
  };
  FileThread() = default;
  static void Loop(Shared* shared);
  void Give(std::function<void()> task, bool last);

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::thread thread_;
};

}  // namespace luff::capture
