#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/collector.h"
#include "device/driver.h"

/// Events at the borders of a step's phases, on one device.
namespace luff::device {

/// The borders of one step: one event where it begins, one where each phase begins, one where it ends, all in
/// one stream. Used again when its times are known and nobody needs them any more.
struct StepBorders {
  KnownContext context;
  Stream stream = nullptr;
  std::vector<Event> events;         // the first `used` are recorded
  std::vector<std::uint8_t> phases;  // that begin at events 1, 2, ...
  std::size_t used = 0;
  bool partly = false;    // it had begun before its first event: no time is known
  bool between = true;    // all borders between begin and end are there
  bool was_idle = false;  // all of the step before was done when the first phase began
  std::vector<Stretch> stretches;
  std::int64_t total_ns = 0;
  std::atomic<Arrival> arrival{Arrival::kHere};
  std::atomic<bool> held{false};  // by whoever waits for its times

  [[nodiscard]] bool is_free() const noexcept {
    return !held.load(std::memory_order_acquire) &&
           arrival.load(std::memory_order_acquire) != Arrival::kWaits;
  }
  /// Fills in the times, once the last event has come. False if the driver does not tell them.
  [[nodiscard]] bool Measure(const Driver& driver) noexcept;
};

/// The steps of one device whose borders are on their way, at most 64. **Thread-compatible**: its owner holds
/// a lock. The context is current in every call.
class BorderRing {
 public:
  BorderRing(std::shared_ptr<const Driver> driver, const KnownContext& context)
      : driver_(std::move(driver)),
        context_(context) {}

  /// A phase begins. On an error `doing` says at what.
  [[nodiscard]] Code Begin(Stream stream, std::uint8_t phase, const char** doing);
  /// The step ends, and the next one begins. `ended` stays null where no time will be known.
  [[nodiscard]] Code End(Stream stream, std::shared_ptr<StepBorders>* ended, const char** doing);
  /// A border was left out: the times of the step's phases will not be known; nor, if it was the step's end,
  /// those of the step.
  void Miss(bool of_step) noexcept;
  /// Gives back the events of steps that are not on their way.
  void GiveBack() noexcept;

 private:
  [[nodiscard]] std::shared_ptr<StepBorders> Free();
  /// Records the next event of a step.
  [[nodiscard]] Code Record(StepBorders* step, const char** doing);
  [[nodiscard]] Code BeginStep(Stream stream, bool partly, const char** doing);

  const std::shared_ptr<const Driver> driver_;
  const KnownContext context_;
  std::vector<std::shared_ptr<StepBorders>> ring_;
  std::shared_ptr<StepBorders> now_;  // the step in progress; null: its begin was missed
  Event before_ = nullptr;            // behind the last phase of the step before, one of its; null: not known
};

}  // namespace luff::device
