#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/collector.h"
#include "device/testing/loaded_double.h"

/// A collector on the driver double, for its tests.
namespace luff::device::testing {

inline constexpr std::chrono::seconds kLong{120};

inline Layout Dense(DType dtype, std::vector<std::int64_t> dims) { return *Layout::Contiguous(dtype, dims); }

inline Arrival Await(const Ticket& ticket) {
  const auto until = std::chrono::steady_clock::now() + kLong;
  while (ticket.arrival() == Arrival::kWaits && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return ticket.arrival();
}

inline Arrival AwaitRest(const Ticket& ticket) {
  if (Await(ticket) != Arrival::kHere) return ticket.arrival();
  const auto until = std::chrono::steady_clock::now() + kLong;
  while (ticket.rest() == Arrival::kWaits && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return ticket.rest();
}

inline std::vector<float> Random(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& v : values) v = random() % 8 == 0 ? 0 : static_cast<float>(random()) / 1e9F - 2;
  return values;
}

/// The value of an input, of its parts.
inline std::vector<std::byte> ValueOf(const Ticket& ticket, std::size_t i, std::uint64_t bytes,
                                      std::size_t headroom) {
  std::vector<std::byte> out;
  for (std::size_t part = 0; out.size() < bytes; ++part) {
    const std::byte* at = ticket.part(i, part);
    if (at == nullptr) return {};
    const std::uint64_t size = std::min<std::uint64_t>(kPartBytes, bytes - out.size());
    out.insert(out.end(), at + headroom, at + headroom + size);
  }
  return out;
}

struct CollectorFixture : ::testing::Test {
  const Controls* driver = nullptr;
  std::shared_ptr<Collector> collector;

  void Begin(const Faults& faults, const CollectorOptions& options = {}) {
    driver = &BeginDouble(faults);
    collector = Collector::Make(options);
  }
  /// Ends the collector; nothing is left on the device if its work ended.
  void TearDown() override {
    if (collector == nullptr) return;
    collector->Close(kLong);
    EXPECT_STREQ(driver->misuse(), "");
  }
  std::string Error() const {
    DeviceError error;
    return collector->TakeError(&error) ? error.where + ": " + error.what + (error.sticky ? " sticky" : "")
                                        : "";
  }
};

}  // namespace luff::device::testing
