#pragma once
// What the files of the driver double share.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/testing/double.h"

namespace luff::device {

// What the driver's opaque types are here. `epoch` is the test that made it: what a thread of an earlier test
// gives back is nothing of this one's.
struct ContextTag {
  int device = 0;
  std::atomic<int> references{0};
  std::atomic<Code> broken{0};
  std::atomic<int> life{0};  // of resets of its device
};
struct EventTag {
  std::atomic<std::uint64_t> recorded{0}, completed{0};
  std::atomic<std::int64_t> at_ns{0};
  bool lost = false, timed = false;
  int epoch = 0;
  Context context = nullptr;
  int life = 0;
  [[nodiscard]] bool is_gone() const noexcept { return life != context->life.load(); }
};
struct ModuleTag {
  Context context;
  int epoch;
};
struct FunctionTag {
  const char* name;
  std::size_t argument_bytes;
};
struct MemoryPoolTag {
  Context context;
  int epoch;
  int life;
};
struct StreamTag {
  Context context = nullptr;
  int epoch = 0;
  int life = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool busy = false, ends = false;
  std::thread thread;
  std::mt19937_64 random;
};

namespace testing {

inline constexpr std::size_t kArena = std::size_t{64} << 30;  // of addresses
inline constexpr int kDevices = 4;
inline constexpr Code kInvalidValue = 1, kInvalidContext = 201, kInvalidHandle = 400, kNotFound = 500;

/// Device memory: one range of addresses, which the host may read and write only while it is open.
class Arena {
 public:
  Arena()
      : base_(static_cast<char*>(
            mmap(nullptr, kArena, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {}
  DevicePointer Take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::vector<DevicePointer>& freed = freed_[Rounded(bytes)];
    if (!freed.empty()) {
      const DevicePointer again = freed.back();
      freed.pop_back();
      return again;
    }
    const std::size_t at = used_;
    used_ += Rounded(bytes) + 512;
    if (used_ > kArena) std::abort();
    return reinterpret_cast<DevicePointer>(base_ + at);
  }
  void Give(DevicePointer at, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    freed_[Rounded(bytes)].push_back(at);
  }
  /// What was given back before is not taken again: threads of an earlier test may still use its addresses.
  void Forget() {
    const std::lock_guard lock(mutex_);
    freed_.clear();
    static_cast<void>(madvise(base_, used_, MADV_DONTNEED));  // many pages make Open and Close slow
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    if (open_++ == 0) Protect(PROT_READ | PROT_WRITE);
  }
  void Close() {
    const std::lock_guard lock(mutex_);
    if (--open_ == 0) Protect(PROT_NONE);
  }

 private:
  void Protect(int how) {
    if (mprotect(base_, kArena, how) != 0) std::abort();
  }
  static std::size_t Rounded(std::size_t bytes) { return (bytes + 511) / 512 * 512; }
  char* base_;
  std::mutex mutex_;
  std::map<std::size_t, std::vector<DevicePointer>> freed_;  // by size
  std::size_t used_ = 0;
  int open_ = 0;
};

struct State {
  std::mutex mutex;
  Faults faults;
  Counts counts;
  std::string misuse;
  std::array<ContextTag, kDevices> contexts;
  std::map<DevicePointer, std::size_t> allocations;
  std::map<const char*, std::size_t> pinned;
  std::vector<std::unique_ptr<StreamTag>> streams;
  std::array<Stream, kDevices> default_streams{};
  int fallible = 0, launches_run = 0, recordings = 0;
  std::atomic<int> epoch{0};  // of resets
  std::mt19937_64 random;
  pid_t process = getpid();
  bool adopts_all = false;  // for Python: all memory is the device's
};

/// Keeps what was made until the process ends: Luff leaves to the driver what work of a device may still use.
void Keep(void* made);
[[nodiscard]] Arena& Memory();
[[nodiscard]] State& All();
inline thread_local Context t_context = nullptr;
inline thread_local std::vector<Context> t_stack;
inline thread_local int t_capture_mode = 0;

/// Notes the first misuse.
void Misused(const std::string& how);
/// The begin of each function of the driver; what it returns if it is the one that is to fail.
[[nodiscard]] Code Called();
/// Bytes of the pages that hold so many.
[[nodiscard]] inline std::size_t PagesOf(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
/// What a call in the current context returns if it would otherwise succeed.
[[nodiscard]] Code Fate();
[[nodiscard]] bool IsPinned(const void* at, std::size_t bytes);
[[nodiscard]] bool IsDevice(DevicePointer at, std::size_t bytes);
[[nodiscard]] Stream MakeStream(Context context);
/// Gives a stream of the current context work; does it, where streams have no threads.
[[nodiscard]] Code Enqueue(Stream handle, std::function<void()> work);
/// Memory of the device.
[[nodiscard]] DevicePointer Allocate(std::size_t bytes);
[[nodiscard]] bool Release(DevicePointer at);  ///< False if it is not memory of this test.
/// A function of the driver by its name; null if it lacks it.
[[nodiscard]] void* FindFunction(const char* name);

}  // namespace testing
}  // namespace luff::device
