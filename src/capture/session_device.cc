// The part of a session that is about memory of accelerators.
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "capture/session_impl.h"

namespace luff::capture {
namespace {

constexpr std::size_t kMostRanges = 256, kMostKeptReads = 16;  // of memory of a device, for the caller

}  // namespace

void SessionImpl::CaptureOnDevice(std::span<const TensorRef> refs, const DevicePlace& place,
                                  double factor) noexcept {
  if (core_->step.due.load(std::memory_order_relaxed) == 0 || !Accepts()) return;
  Timed("CaptureOnDevice", [&] { ThisThread()->CaptureOnDevice(refs, place, factor); });
}

void SessionImpl::ScalarOnDevice(const DeviceScalar& scalar, const DevicePlace& place) noexcept {
  if (scalar.id == format::kNoId || !Accepts()) return;
  Timed("ScalarOnDevice", [&] { ThisThread()->ScalarOnDevice(scalar, place); });
}

std::uint64_t SessionImpl::HashOnDevice(std::uint64_t seed, std::span<const DeviceRange> ranges,
                                        const DevicePlace& place) noexcept {
  if (!Accepts() || !core_->plans.now().config().events) return 0;
  std::uint64_t token = 0;
  Timed("HashOnDevice", [&] { token = ThisThread()->HashOnDevice(seed, ranges, place); });
  return token;
}

std::uint64_t SessionImpl::ReadOnDevice(std::span<const DeviceRange> ranges,
                                        const DevicePlace& place) noexcept {
  if (!reads_accelerators_ || ranges.empty() || ranges.size() > kMostRanges || !Accepts()) return 0;
  std::uint64_t number = 0;
  Timed("ReadOnDevice", [&] {
    std::vector<device::Piece> pieces;
    std::uint64_t bytes = 0;
    for (const DeviceRange& range : ranges) {
      if (range.bytes > device::kMaxPieceBytes) return;
      bytes += range.bytes;
      pieces.push_back({range.data, static_cast<std::uint32_t>(range.bytes)});
    }
    if (bytes > device::kMaxPieceBytes) return;
    {
      MutexLock lock(mutex_);
      if (reads_.size() >= kMostKeptReads) return;
    }
    Read read;
    read.ranges = pieces.size();
    // Without the lock: the driver may be slow, and other threads need it.
    if (core_->device->Read(place.device, place.stream, {}, pieces, &read.ticket) != device::Refusal::kNone)
      return;
    MutexLock lock(mutex_);
    if (!Accepts()) return;  // closed meanwhile
    read.number = ++last_read_;
    reads_.push_back(std::move(read));
    number = last_read_;
  });
  return number;
}

LateRead SessionImpl::TakeRead(std::uint64_t read, std::string* bytes) noexcept {
  bytes->clear();
  if (!Accepts()) return LateRead::kLost;
  LateRead found = LateRead::kLost;
  Timed("TakeRead", [&] {
    MutexLock lock(mutex_);
    const auto one = std::ranges::find(reads_, read, &Read::number);
    if (one == reads_.end()) return;
    const device::Arrival arrival = one->ticket->arrival();
    if (arrival == device::Arrival::kWaits) {
      found = LateRead::kWaits;
      return;
    }
    if (arrival == device::Arrival::kHere) {
      for (std::size_t i = 0; i < one->ranges; ++i) {
        const std::span<const std::byte> piece = one->ticket->piece(i);
        bytes->append(reinterpret_cast<const char*>(piece.data()), piece.size());
      }
      found = LateRead::kHere;
    }
    reads_.erase(one);
  });
  return found;
}

void SessionImpl::BeginPhaseOnDevice(format::Phase phase, const DevicePlace& place) noexcept {
  if (!reads_accelerators_ || !Accepts() || core_->plans.now().config().profile == Profile::kOff) return;
  if (static_cast<std::size_t>(phase) >= format::kPhaseCount) return;
  Timed("BeginPhaseOnDevice",
        [&] { core_->device->BeginPhase(place.device, place.stream, static_cast<std::uint8_t>(phase)); });
}

void SessionImpl::EndStepOnDevice(const DevicePlace& place) noexcept {
  if (!reads_accelerators_ || !Accepts() || core_->plans.now().config().profile == Profile::kOff) return;
  Timed("EndStepOnDevice", [&] { passed_ = core_->device->EndStep(place.device, place.stream); });
}

}  // namespace luff::capture
