#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "base/testing/forwarding_env.h"

namespace luff::capture::testing {

/// Real files whose writes fail, tear, hang or run out of memory when the test asks for it. **Thread-safe.**
class FaultyEnv final : public ForwardingEnv {
 public:
  enum class Fault { kNone, kFull, kIo, kTorn, kNoMemory };
  std::atomic<Fault> fault{Fault::kNone};

  /// Makes writes wait until GoOn is called.
  void Hang() {
    const std::lock_guard lock(mutex_);
    hangs_ = true;
  }
  void GoOn() {
    {
      const std::lock_guard lock(mutex_);
      hangs_ = false;
    }
    changed_.notify_all();
  }

  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    if (mode != OpenMode::kRead) LUFF_RETURN_IF_ERROR(Refusal());
    if (mode == OpenMode::kWriteDirect) return InvalidArgument("open: no direct I/O here");
    auto file = Real().Open(path, mode);
    if (!file.ok()) return file;
    return std::unique_ptr<File>(new FaultyFile(*this, std::move(file).value()));
  }
  /// Advances by a minute with each call, so that nothing is delayed for long.
  std::int64_t NowMonotonicNs() noexcept override { return now_ns_ += 60'000'000'000; }

 private:
  class FaultyFile final : public ForwardingFile {
   public:
    FaultyFile(FaultyEnv& env, std::unique_ptr<File> file) : ForwardingFile(std::move(file)), env_(env) {}
    Status WriteAt(std::span<const std::byte> bytes, std::uint64_t offset) override {
      env_.Wait();
      if (env_.fault == Fault::kTorn) (void)ForwardingFile::WriteAt(bytes.first(bytes.size() / 2), offset);
      LUFF_RETURN_IF_ERROR(env_.Refusal());
      return ForwardingFile::WriteAt(bytes, offset);
    }
    Status Truncate(std::uint64_t size) override {
      LUFF_RETURN_IF_ERROR(env_.Refusal());
      return ForwardingFile::Truncate(size);
    }
    Status Sync() override { return env_.Refusal(); }
    Status Reserve(std::uint64_t offset, std::uint64_t bytes) override {
      LUFF_RETURN_IF_ERROR(env_.Refusal());
      return ForwardingFile::Reserve(offset, bytes);
    }

   private:
    FaultyEnv& env_;
  };

  [[nodiscard]] Status Refusal() const {
    switch (fault) {
      case Fault::kNone: return Status::Ok();
      case Fault::kFull: return ResourceExhausted("write: No space left on device");
      case Fault::kIo:
      case Fault::kTorn: return IoError("write: Input/output error");
      case Fault::kNoMemory: throw std::bad_alloc();
    }
    return Status::Ok();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !hangs_; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool hangs_ = false;
  std::atomic<std::int64_t> now_ns_{1'000'000'000};
};

}  // namespace luff::capture::testing
