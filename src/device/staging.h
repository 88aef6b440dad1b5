#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/driver.h"
#include "luff/base/mutex.h"

namespace luff::device {

struct Use;

/// Memory of one device in which values stay until they are copied to the host, within a budget: a fixed one,
/// and 2 % of the memory that was free when nothing was held. **Thread-safe.** In calls that may ask the
/// driver, which the comments name, the device's context is current.
class Staging {
 public:
  struct Block {
    DevicePointer at = 0;
    std::uint64_t bytes = 0;
    bool busy = true;
    bool lasts = false;  // until the run ends
    std::chrono::steady_clock::time_point idle_since;
  };

  /// Blocks come from `pool`, and are freed on `freeing`, a stream without other work.
  Staging(std::shared_ptr<const Driver> driver, MemoryPool pool, Stream freeing, std::uint64_t most,
          Use* use);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Bytes that Take would find now. Asks the driver.
  [[nodiscard]] std::uint64_t Room() LUFF_EXCLUDES(mutex_);
  /// Waits until there is room for so many bytes, or, if they are more, for half of the budget, or for all
  /// that does not last. False if there was at once.
  [[nodiscard]] bool WaitForRoom(std::uint64_t bytes, std::chrono::steady_clock::time_point until)
      LUFF_EXCLUDES(mutex_);
  /// A block for work of the stream; null if there is no room. After kOutOfMemory, which also gives back all
  /// that is idle, there is none for a while. One that `lasts` is no larger than asked. Asks the driver.
  [[nodiscard]] Code Take(std::uint64_t bytes, Stream stream, std::shared_ptr<Block>* block,
                          bool lasts = false) LUFF_EXCLUDES(mutex_);
  /// The block may be used anew. No work of the device uses it any more.
  void Return(const std::shared_ptr<Block>& block) noexcept LUFF_EXCLUDES(mutex_);
  /// Gives back blocks that have been idle for so long. Asks the driver.
  void GiveBack(std::chrono::milliseconds idle) noexcept LUFF_EXCLUDES(mutex_);
  [[nodiscard]] bool empty() LUFF_EXCLUDES(mutex_);

 private:
  /// The same; none that began to be idle after `since`, and no more than `bytes`, if that suffices.
  void Free(std::chrono::steady_clock::time_point since, std::uint64_t bytes) noexcept LUFF_EXCLUDES(mutex_);
  [[nodiscard]] std::uint64_t RoomLocked() const LUFF_REQUIRES(mutex_);

  const std::shared_ptr<const Driver> driver_;
  const MemoryPool pool_;
  const Stream freeing_;
  const std::uint64_t most_;
  Use* const use_;
  Mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::shared_ptr<Block>> blocks_ LUFF_GUARDED_BY(mutex_);
  std::uint64_t budget_ LUFF_GUARDED_BY(mutex_) = 0;
  std::uint64_t held_ LUFF_GUARDED_BY(mutex_) = 0, busy_ LUFF_GUARDED_BY(mutex_) = 0,
                      lasting_ LUFF_GUARDED_BY(mutex_) = 0;
  int hungry_ LUFF_GUARDED_BY(mutex_) = 0;      // requests until memory is asked for again
  bool freed_ LUFF_GUARDED_BY(mutex_) = false;  // since the pool was last told to keep nothing
};

}  // namespace luff::device
