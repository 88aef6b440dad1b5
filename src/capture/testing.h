#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capture/session_impl.h"
#include "luff/base/mutex.h"
#include "luff/format/chunk.h"
#include "luff/store/writer.h"

/// A store in memory and small helpers for tests of capture.
namespace luff::capture::testing {

/// What a WorkerWriter received. Shared by the writer, which the session owns, and the test. **Thread-safe.**
struct Disk {
  struct Step {
    store::StepBatch batch;
  };
  Mutex mutex;
  std::vector<Step> steps LUFF_GUARDED_BY(mutex);
  std::vector<Step> loose LUFF_GUARDED_BY(mutex);
  std::vector<std::byte> payload LUFF_GUARDED_BY(mutex);
  std::uint64_t retired_before LUFF_GUARDED_BY(mutex) = 0;  // offsets below are gone
  bool fail_appends LUFF_GUARDED_BY(mutex) = false;
  bool fail_publish LUFF_GUARDED_BY(mutex) = false;
  std::function<void()> on_append;   // called before each append, without the lock
  std::function<void()> on_publish;  // before each step is published
  int closed LUFF_GUARDED_BY(mutex) = 0;
  format::EndReason reason LUFF_GUARDED_BY(mutex) = format::EndReason::kFailed;

  /// Returns a row's value, decoded and verified. kCorruption if row and chunk differ.
  Result<std::vector<std::byte>> Value(const format::IndexRow& row) {
    MutexLock lock(mutex);
    LUFF_ASSIGN_OR_RETURN(const format::ChunkView chunk, format::ParseChunkUntrusted(payload, row.offset));
    std::vector<std::byte> out(chunk.header.raw_bytes);
    if (chunk.header.raw_bytes != row.raw_bytes || chunk.header.content_hash != row.content_hash) {
      return Corruption("row and chunk differ");
    }
    LUFF_RETURN_IF_ERROR(format::DecodeChunkUntrusted(chunk, out));
    return out;
  }
  std::vector<Step> Steps() {
    MutexLock lock(mutex);
    return steps;
  }
  std::vector<Step> Loose() {
    MutexLock lock(mutex);
    return loose;
  }
};

class FakeWriter final : public store::WorkerWriter {
 public:
  explicit FakeWriter(std::shared_ptr<Disk> disk) : disk_(std::move(disk)) {}
  Status AppendChunks(std::span<const store::ChunkRef> chunks, store::Retention, std::int64_t,
                      std::vector<store::Place>* places) override {
    if (disk_->on_append) disk_->on_append();
    MutexLock lock(disk_->mutex);
    if (disk_->fail_appends) return ResourceExhausted("no space left");
    places->clear();
    for (const store::ChunkRef& chunk : chunks) {
      places->push_back({1, disk_->payload.size()});
      disk_->payload.insert(disk_->payload.end(), chunk.data, chunk.data + chunk.bytes);
    }
    return Status::Ok();
  }
  Status PublishStep(store::StepBatch& batch) override {
    if (disk_->on_publish) disk_->on_publish();
    MutexLock lock(disk_->mutex);
    if (disk_->fail_publish) return IoError("disk is gone");
    disk_->steps.push_back({batch});
    return Status::Ok();
  }
  Status PublishLoose(store::StepBatch& batch) override {
    MutexLock lock(disk_->mutex);
    disk_->loose.push_back({batch});
    return Status::Ok();
  }
  void Heartbeat() override {}
  Status Close(format::EndReason reason) override {
    MutexLock lock(disk_->mutex);
    ++disk_->closed;
    disk_->reason = reason;
    return Status::Ok();
  }
  bool payload_budget_exhausted() const noexcept override { return false; }
  bool ChunkIsKept(store::Place place) const noexcept override {
    MutexLock lock(disk_->mutex);
    return place.offset >= disk_->retired_before;
  }
  store::Place Resolve(store::Place place) const noexcept override { return place; }
  std::uint32_t epoch() const noexcept override { return 1; }
  std::uint64_t next_ordinal() const noexcept override {
    MutexLock lock(disk_->mutex);
    return disk_->steps.size();
  }
  std::uint64_t bytes_written() const noexcept override { return 0; }

 private:
  std::shared_ptr<Disk> disk_;
};

/// A session that writes to `disk`; control records come from `read`.
inline std::unique_ptr<Session> StartSession(const std::shared_ptr<Disk>& disk, std::string_view config,
                                             bool writer_thread = true, ControlPoll::Read read = {},
                                             std::string control_directory = "/", bool accelerators = true) {
  Result<Config> parsed = ParseConfigUntrusted(config);
  if (!parsed.ok()) {
    ADD_FAILURE() << parsed.status().ToString();
    return nullptr;
  }
  parsed->accelerators = accelerators;
  if (!read) read = [](std::uint64_t) { return std::vector<store::ControlRecord>{}; };
  auto session = SessionImpl::Start(*parsed, std::make_unique<FakeWriter>(disk), 0,
                                    writer_thread ? FileThread::Start() : nullptr,
                                    std::move(control_directory), 0, std::move(read));
  return session.ok() ? std::move(session).value() : nullptr;
}

template <typename T>
const std::byte* Bytes(const std::vector<T>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

inline Layout MakeLayout(DType dtype, std::vector<std::int64_t> dims) {
  return *Layout::Contiguous(dtype, dims);
}

}  // namespace luff::capture::testing
