#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "device/collector.h"
#include "device/driver.h"
#include "device/staging.h"

/// The way of values from a device's staging memory to the host.
namespace luff::device {

struct Use;

/// Bytes on the host from one part of a value to the next.
[[nodiscard]] constexpr std::uint64_t PartSpace(std::size_t headroom,
                                                std::uint64_t bytes = kPartBytes) noexcept {
  return (headroom + bytes + 63) / 64 * 64;
}

/// What one read has put into staging memory.
struct Fetch {
  struct Range {
    std::uint64_t from = 0, to = 0, bytes = 0;  // offsets in the block and in `host`
  };
  std::shared_ptr<Staging::Block> block;
  std::vector<Range> ranges;  // ascending by `from`
  std::uint64_t bytes = 0;    // of the block that are copied
  std::uint64_t host_bytes = 0;
  std::unique_ptr<std::byte[]> host;
  std::atomic<Arrival> arrival{Arrival::kWaits};
  std::atomic<bool> wanted{true};  // somebody waits for it
};

/// Copies what one device's staging memory holds, a few MiB at a time, through two pinned buffers and a
/// stream of its own. **Thread-compatible**: belongs to the collector's thread. Never waits; Go() is called
/// again and again. The device's context is current in Go() and GiveBack().
class Fetcher {
 public:
  Fetcher(std::shared_ptr<const Driver> driver, std::shared_ptr<Staging> staging, Use* use);
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;

  /// The kernels that write its block are done.
  void Add(std::shared_ptr<Fetch> fetch) { waiting_.push_back(std::move(fetch)); }
  [[nodiscard]] bool empty() const noexcept { return waiting_.empty() && in_flight_ == 0; }
  /// Goes on. True if anything was copied or given up. On an error of the driver `doing` says at what.
  [[nodiscard]] bool Go(Code* error, const char** doing) noexcept;
  /// Nothing comes any more.
  void Drop() noexcept;
  /// Gives back all that no copy on its way still uses.
  void GiveBack(std::chrono::steady_clock::time_point until) noexcept;

 private:
  struct Buffer {
    std::byte* pinned = nullptr;
    Event event = nullptr;
    std::shared_ptr<Fetch> fetch;  // whose bytes are on their way
    std::uint64_t from = 0, bytes = 0;
  };
  [[nodiscard]] Code Prepare(const char** doing) noexcept;
  void Scatter(const Buffer& buffer) noexcept;
  void Finish(const std::shared_ptr<Fetch>& fetch, Arrival arrival) noexcept;

  const std::shared_ptr<const Driver> driver_;
  const std::shared_ptr<Staging> staging_;
  Use* const use_;
  Stream stream_ = nullptr;
  std::array<Buffer, 2> buffers_;
  std::size_t oldest_ = 0, in_flight_ = 0;
  std::deque<std::shared_ptr<Fetch>> waiting_;
  std::uint64_t next_ = 0;  // of the first one
};

}  // namespace luff::device
