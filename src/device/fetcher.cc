#include "device/fetcher.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "device/slots.h"

namespace luff::device {
namespace {

constexpr std::uint64_t kBufferBytes = 4ULL << 20;

}  // namespace

Fetcher::Fetcher(std::shared_ptr<const Driver> driver, std::shared_ptr<Staging> staging, Use* use)
    : driver_(std::move(driver)),
      staging_(std::move(staging)),
      use_(use) {}

Code Fetcher::Prepare(const char** doing) noexcept {
  *doing = "making a stream";
  if (stream_ == nullptr) {
    if (const Code error = driver_->StreamCreate(&stream_, kStreamNonBlocking); error != kSuccess)
      return error;
  }
  for (Buffer& buffer : buffers_) {
    if (buffer.event == nullptr) {
      *doing = "making an event";
      if (const Code error = driver_->EventCreate(&buffer.event, kEventWithoutTiming); error != kSuccess)
        return error;
    }
    if (buffer.pinned != nullptr) continue;
    *doing = "taking pinned memory";
    void* pinned = nullptr;
    if (const Code error = driver_->MemHostAlloc(&pinned, kBufferBytes, kHostPortable); error != kSuccess)
      return error;
    buffer.pinned = static_cast<std::byte*>(pinned);
    use_->pinned_bytes.fetch_add(kBufferBytes, std::memory_order_relaxed);
  }
  return kSuccess;
}

bool Fetcher::Go(Code* error, const char** doing) noexcept {
  bool moved = false;
  while (in_flight_ != 0) {
    Buffer& buffer = buffers_[oldest_];
    *doing = "asking for values";
    *error = driver_->EventQuery(buffer.event);
    if (*error == kNotReady || IsOfCapture(*error)) {
      *error = kSuccess;
      break;
    }
    if (*error != kSuccess) return moved;
    Scatter(buffer);
    if (buffer.from + buffer.bytes == buffer.fetch->bytes) Finish(buffer.fetch, Arrival::kHere);
    buffer.fetch.reset();
    oldest_ ^= 1U;
    --in_flight_;
    moved = true;
  }
  while (in_flight_ != buffers_.size() && !waiting_.empty()) {
    const std::shared_ptr<Fetch>& fetch = waiting_.front();
    const auto give_up = [&] {
      Finish(fetch, Arrival::kLost);
      waiting_.pop_front();
      next_ = 0;
      moved = true;
    };
    if (!fetch->wanted.load(std::memory_order_acquire)) {
      if (next_ != 0 && in_flight_ != 0) break;  // a part of it is on its way
      give_up();
      continue;
    }
    if (fetch->host == nullptr) {
      fetch->host.reset(new (std::nothrow) std::byte[fetch->host_bytes]);
      if (fetch->host == nullptr) {
        give_up();
        continue;
      }
    }
    *error = Prepare(doing);
    if (*error == kOutOfMemory) {
      *error = kSuccess;
      give_up();
      continue;
    }
    if (*error != kSuccess) return moved;
    Buffer& buffer = buffers_[(oldest_ + in_flight_) % buffers_.size()];
    buffer.from = next_;
    buffer.bytes = std::min(kBufferBytes, fetch->bytes - next_);
    *doing = "copying values to the host";
    *error = driver_->MemcpyDtoHAsync(buffer.pinned, fetch->block->at + next_, buffer.bytes, stream_);
    if (*error == kSuccess) *error = driver_->EventRecord(buffer.event, stream_);
    if (*error != kSuccess) return moved;
    buffer.fetch = fetch;
    next_ += buffer.bytes;
    ++in_flight_;
    moved = true;
    if (next_ != fetch->bytes) continue;
    waiting_.pop_front();
    next_ = 0;
  }
  return moved;
}

void Fetcher::Scatter(const Buffer& buffer) noexcept {
  Fetch& fetch = *buffer.fetch;
  const std::uint64_t end = buffer.from + buffer.bytes;
  auto range = std::partition_point(fetch.ranges.begin(), fetch.ranges.end(),
                                    [&](const Fetch::Range& r) { return r.from + r.bytes <= buffer.from; });
  for (; range != fetch.ranges.end() && range->from < end; ++range) {
    const std::uint64_t first = std::max(range->from, buffer.from);
    const std::uint64_t last = std::min(range->from + range->bytes, end);
    std::memcpy(fetch.host.get() + range->to + (first - range->from), buffer.pinned + (first - buffer.from),
                last - first);
  }
}

void Fetcher::Finish(const std::shared_ptr<Fetch>& fetch, Arrival arrival) noexcept {
  staging_->Return(fetch->block);
  fetch->arrival.store(arrival, std::memory_order_release);
}

void Fetcher::Drop() noexcept {
  for (Buffer& buffer : buffers_) {
    if (buffer.fetch != nullptr) buffer.fetch->arrival.store(Arrival::kLost, std::memory_order_release);
  }
  for (const std::shared_ptr<Fetch>& fetch : waiting_) {
    if (in_flight_ == 0 || next_ == 0 || fetch != waiting_.front()) staging_->Return(fetch->block);
    fetch->arrival.store(Arrival::kLost, std::memory_order_release);
  }
  waiting_.clear();
  next_ = 0;
}

void Fetcher::GiveBack(std::chrono::steady_clock::time_point until) noexcept {
  const std::shared_ptr<Fetch> partial =
      in_flight_ != 0 && next_ != 0 && !waiting_.empty() ? waiting_.front() : nullptr;
  Drop();
  Code error = kSuccess;
  const char* doing = "";
  while (in_flight_ != 0 && error == kSuccess && std::chrono::steady_clock::now() < until) {
    if (!Go(&error, &doing)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (in_flight_ != 0) return;  // the device may still write into the buffers
  if (partial != nullptr) staging_->Return(partial->block);
  for (Buffer& buffer : buffers_) {
    if (buffer.event != nullptr) static_cast<void>(driver_->EventDestroy(buffer.event));
    if (buffer.pinned != nullptr) {
      static_cast<void>(driver_->MemFreeHost(buffer.pinned));
      use_->pinned_bytes.fetch_sub(kBufferBytes, std::memory_order_relaxed);
    }
    buffer = {};
  }
  if (stream_ != nullptr) static_cast<void>(driver_->StreamDestroy(stream_));
  stream_ = nullptr;
}

}  // namespace luff::device
