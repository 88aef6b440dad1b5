#pragma once
#include <mutex>

/// Clang's thread-safety annotations. They are empty for other compilers.
#if defined(__clang__)
#define LUFF_THREAD_ANNOTATION_(x) __attribute__((x))
#else
#define LUFF_THREAD_ANNOTATION_(x)
#endif
#define LUFF_CAPABILITY(x) LUFF_THREAD_ANNOTATION_(capability(x))
#define LUFF_SCOPED_CAPABILITY LUFF_THREAD_ANNOTATION_(scoped_lockable)
#define LUFF_GUARDED_BY(x) LUFF_THREAD_ANNOTATION_(guarded_by(x))
#define LUFF_NO_THREAD_SAFETY_ANALYSIS LUFF_THREAD_ANNOTATION_(no_thread_safety_analysis)
#define LUFF_REQUIRES(...) LUFF_THREAD_ANNOTATION_(requires_capability(__VA_ARGS__))
#define LUFF_EXCLUDES(...) LUFF_THREAD_ANNOTATION_(locks_excluded(__VA_ARGS__))
#define LUFF_ACQUIRE(...) LUFF_THREAD_ANNOTATION_(acquire_capability(__VA_ARGS__))
#define LUFF_TRY_ACQUIRE(...) LUFF_THREAD_ANNOTATION_(try_acquire_capability(__VA_ARGS__))
#define LUFF_RELEASE(...) LUFF_THREAD_ANNOTATION_(release_capability(__VA_ARGS__))

namespace luff {

/// **Thread-safe.** A std::mutex that Clang's analysis understands.
class LUFF_CAPABILITY("mutex") Mutex {
 public:
  void Lock() LUFF_ACQUIRE() { mutex_.lock(); }
  /// False if another thread holds it.
  [[nodiscard]] bool TryLock() LUFF_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void Unlock() LUFF_RELEASE() { mutex_.unlock(); }
  /// For std::condition_variable; the caller holds the lock.
  [[nodiscard]] std::mutex& native() noexcept { return mutex_; }

 private:
  std::mutex mutex_;
};

/// Holds a Mutex for a scope.
class LUFF_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) LUFF_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() LUFF_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace luff
