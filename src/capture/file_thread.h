#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <thread>

#include "luff/base/mutex.h"

namespace luff::capture {

/// The one thread of a session that touches files. It has a table of descriptors of its own
/// (base/file_table.h), so that whatever the training does to its descriptors it can't meet ours, nor its
/// children inherit them; and it takes no signal of the process.
class FileThread {
 public:
  /// Null when no thread can be started.
  [[nodiscard]] static std::unique_ptr<FileThread> Start() noexcept;
  /// Ends the thread after what it is doing; waits for nothing.
  ~FileThread();
  FileThread(const FileThread&) = delete;
  FileThread& operator=(const FileThread&) = delete;

  /// Runs `task` there. False when it isn't done in time: then it goes on, and what it holds has to outlive
  /// it.
  [[nodiscard]] bool Run(std::function<void()> task, std::chrono::milliseconds deadline);
  /// The last thing that the thread does is `body`.
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
