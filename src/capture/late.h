#pragma once
#include <cstdint>
#include <string>

#include "capture/work.h"
#include "device/collector.h"

/// Values of accelerators, which come after the step that they belong to.
namespace luff::capture {

/// Largest raw value that is read from an accelerator.
inline constexpr std::uint64_t kMaxPiece = 4096;

[[nodiscard]] format::SummaryRow SummaryRowOf(TensorId id, DType dtype, const Summary& summary) noexcept;

/// True if nothing of the step is on its way any more.
[[nodiscard]] bool HasArrived(const Work& work) noexcept;

/// What became of the late values of a step.
struct Settled {
  std::uint64_t here = 0, late = 0, lost = 0, nonfinite = 0;
};

/// Turns the late values of a step into rows and chunks of the work, and those that are not there into gaps
/// `device_late` or `device_error`. `next_serial` numbers raw values.
[[nodiscard]] Settled Settle(Work* work, std::atomic<std::uint64_t>* next_serial);

/// The event that tells of an error.
[[nodiscard]] std::string EventOf(const device::DeviceError& error);

}  // namespace luff::capture
