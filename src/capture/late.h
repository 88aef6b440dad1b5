#pragma once
#include <cstdint>
#include <string>

#include "capture/work.h"
#include "device/collector.h"

/// Values of accelerators, which come after the step that they belong to.
namespace luff::capture {

/// Largest value that an accelerator copies to the host on the training's stream; larger ones go through
/// staging memory.
inline constexpr std::uint64_t kMaxPiece = 4096;

/// Argument of an event that stands for a hash on its way.
[[nodiscard]] std::uint64_t NextHashToken() noexcept;

[[nodiscard]] format::SummaryRow SummaryRowOf(TensorId id, DType dtype, const Summary& summary) noexcept;

/// True if nothing of the step is on its way any more.
[[nodiscard]] bool HasArrived(const Work& work) noexcept;

/// What became of the late values of a step.
struct Settled {
  std::uint64_t here = 0, late = 0, lost = 0, nonfinite = 0, gaps = 0;
  std::uint64_t raw_values = 0, raw_bytes = 0;
};

/// Turns the late values of a step into rows and chunks of the work, and those that are not there into gaps
/// `device_late` or `device_error`. `next_serial` numbers raw values. Events whose hash did not come are
/// dropped.
[[nodiscard]] Settled Settle(Work* work, std::atomic<std::uint64_t>* next_serial);

/// Drops events that still stand for a hash on its way, and adds a gap (of no tensor, form hash) that counts
/// them. Returns how many.
std::uint64_t DropHashTokens(store::StepBatch* batch, format::GapReason reason);

/// Adds the times of a device to the phases of a step, if they have come and the step has phases.
void AddDeviceTimes(Work* work) noexcept;

/// The event that tells of an error.
[[nodiscard]] std::string EventOf(const device::DeviceError& error);

}  // namespace luff::capture
