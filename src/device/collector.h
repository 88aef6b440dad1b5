#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "luff/tensor/summary.h"
#include "luff/tensor/view.h"

/// Reads tensors in the memory of accelerators: enqueues kernels and copies behind the training's own work,
/// and says later when the results are there. Never waits for a device.
namespace luff::device {

/// Why nothing was enqueued.
enum class Refusal : std::uint8_t {
  kNone = 0,
  kNoDevice,  // no driver, no such device, or no context on it
  kOff,       // an error has turned the path off for this device: Collector::TakeError
  kCaptured,  // the stream captures a graph: what is enqueued would become part of it
  kBusy,      // too many results are on their way
};

// What is read of an input besides its statistics.
inline constexpr std::uint8_t kWantValue = 1;  // its elements, in row-major order
inline constexpr std::uint8_t kWantHistogram = 2;
inline constexpr std::uint8_t kWantUnits = 4;
inline constexpr std::uint8_t kWantDifference = 8;  // from what was read last with the same key

/// A tensor to summarise. `layout` must live as long as the collector. One without elements has a summary,
/// and nothing else is read of it.
struct Input {
  std::uint64_t data = 0;  // device address of the first element
  const Layout* layout = nullptr;
  std::uint8_t wants = 0;
  UnitAxis axis = UnitAxis::kChannel;  // kWantUnits
  std::uint64_t key = 0;               // kWantDifference
  friend bool operator==(const Input&, const Input&) = default;
};

/// Memory to copy to the host.
struct Piece {
  std::uint64_t data = 0;  // device address
  std::uint32_t bytes = 0;
};

/// Most bytes that one call copies to the host.
inline constexpr std::size_t kMaxPieceBytes = 64U << 10;

/// A value comes in parts of at most so many bytes.
inline constexpr std::uint64_t kPartBytes = 8ULL << 20;

enum class Arrival : std::uint8_t { kWaits, kHere, kLost };

/// Results of one call of Collector::Read. Kept by whoever waits for them; dropped when it goes.
/// **Thread-safe.**
class Ticket {
 public:
  virtual ~Ticket() = default;
  /// Of summaries, differences and pieces. kLost: an error has broken the device's context or turned the path
  /// off.
  [[nodiscard]] virtual Arrival arrival() const noexcept = 0;
  /// Of values, histograms and units, which take a longer way, once arrival() is kHere. kHere where none was
  /// wanted. kLost: there was no memory for them on the host, or as above.
  [[nodiscard]] virtual Arrival rest() const noexcept = 0;
  /// What was wanted of input `i` and found no room on the device. Only when kHere.
  [[nodiscard]] virtual std::uint8_t refused(std::size_t i) const noexcept = 0;
  /// Of input `i`. Only when kHere.
  [[nodiscard]] virtual Summary summary(std::size_t i) const noexcept = 0;
  /// Of piece `i`. Only when kHere; lives as long as the ticket.
  [[nodiscard]] virtual std::span<const std::byte> piece(std::size_t i) const noexcept = 0;
  /// Of input `i`. False if there was no earlier value, or its difference was refused. Only when kHere.
  [[nodiscard]] virtual bool difference(std::size_t i, Difference* out) const noexcept = 0;
  /// kHistogramBins counters of input `i`; empty if refused. Only when rest() is kHere.
  [[nodiscard]] virtual std::span<const std::uint64_t> histogram(std::size_t i) const noexcept = 0;
  /// False if refused. Only when rest() is kHere.
  [[nodiscard]] virtual bool units(std::size_t i, UnitCounts* out) const = 0;
  /// Part `part` of the value of input `i`, behind the collector's headroom, which the caller may write to as
  /// to the part; null if refused. Lives as long as the ticket. Only when rest() is kHere.
  [[nodiscard]] virtual std::byte* part(std::size_t i, std::size_t part) const noexcept = 0;
};

/// A phase that begins with a step, before any other.
inline constexpr std::uint8_t kNoPhase = 0;

/// A part of a step on a device, from the border where its phase began to the next one: the device worked, or
/// had nothing to do.
struct Stretch {
  std::uint8_t phase = kNoPhase;
  std::int64_t ns = 0;
};

/// When a device has passed the borders of one step. Kept by whoever waits for it. **Thread-safe.**
class StepPassed {
 public:
  virtual ~StepPassed() = default;
  /// kLost: no time will be known.
  [[nodiscard]] virtual Arrival arrival() const noexcept = 0;
  /// Of the whole step. Only when kHere, as what follows.
  [[nodiscard]] virtual std::int64_t total_ns() const noexcept = 0;
  /// Its parts, in their order, which add up to the total; empty if a border between them is not known.
  [[nodiscard]] virtual std::span<const Stretch> stretches() const noexcept = 0;
  /// The device had done all phases of the step before when the first phase of this one began. False also
  /// where the step before had no phase that ended, or its borders are not all known.
  [[nodiscard]] virtual bool was_idle() const noexcept = 0;
};

/// An error that turned the path off for a device.
struct DeviceError {
  int device = 0;
  std::string what;     // e.g. "CUDA_ERROR_ILLEGAL_ADDRESS (700)" or what the driver lacks
  std::string where;    // what Luff was doing, e.g. "a launch"; "" for an error of the training's own work
  bool sticky = false;  // the context is broken: nothing more runs on this device in this process
};

struct CollectorCounts {
  std::uint64_t reads = 0, tables_built = 0, refused = 0, errors = 0;
  std::uint64_t device_bytes = 0, pinned_bytes = 0;  // held, for all but values
  std::uint64_t staging_bytes = 0, host_bytes = 0;   // held for values, on devices and on the host
  std::uint64_t slots = 0;
  std::uint64_t values = 0, waits = 0;  // values that found room; reads that waited for it
};

struct CollectorOptions {
  std::size_t headroom = 0;  // bytes before each part of a value, which is then padded to 64
  /// Most memory for values on their way: of each device, where it is at most 2 % of what is free as well,
  /// and of the host.
  std::uint64_t staging_bytes = 512ULL << 20, host_bytes = 512ULL << 20;
  std::chrono::milliseconds idle{5000};  // unused for so long, staging memory is given back
};

/// The reader of all devices of a process. **Thread-safe.** Its own thread (`luff-device`), which begins with
/// the first read, asks the driver what has arrived; the threads of the training only enqueue. Never call it
/// in a forked child.
class Collector {
 public:
  [[nodiscard]] static std::shared_ptr<Collector> Make(const CollectorOptions& options = {});
  virtual ~Collector() = default;

  /// Enqueues on a stream of a device: statistics of each input in one launch and a small second one, then a
  /// copy of each piece. Memory may be changed by later work of the same stream, and be freed as the
  /// framework's allocator frees it, that is in the order of the stream.
  ///
  /// Values are copied by the same launch into memory of Luff's own on the device, and go to the host on
  /// another stream, behind the training's back. Inputs that find no room there are refused, one by one; or
  /// the call waits for room, at most `*patience`, which becomes what is left of it.
  ///
  /// `stream` is the framework's handle: 0 is the default stream. On a refusal `ticket` is null.
  [[nodiscard]] virtual Refusal Read(int device, std::uint64_t stream, std::span<const Input> inputs,
                                     std::span<const Piece> pieces, std::shared_ptr<Ticket>* ticket,
                                     std::chrono::nanoseconds* patience = nullptr) noexcept = 0;
  /// Marks the place in a stream behind which a phase of the training begins: a number of the caller's, not
  /// kNoPhase unless it is what begins with a step. Does nothing on a device that was never read, nor where a
  /// graph is captured.
  virtual void BeginPhase(int device, std::uint64_t stream, std::uint8_t phase) noexcept = 0;
  /// Marks the end of a step, at which the next one begins. Null where no time will be known: of the first
  /// step, where more than 64 are on their way, and of one whose begin and end are in two streams.
  [[nodiscard]] virtual std::shared_ptr<StepPassed> EndStep(int device, std::uint64_t stream) noexcept = 0;
  /// Time that devices have spent on reads so far, in ns: what the training's own work waited for.
  [[nodiscard]] virtual std::uint64_t device_ns() const noexcept = 0;
  [[nodiscard]] virtual bool has_errors() const noexcept = 0;
  /// Moves the next error that nobody has taken to `error`; false if there is none.
  [[nodiscard]] virtual bool TakeError(DeviceError* error) noexcept = 0;
  [[nodiscard]] virtual CollectorCounts counts() const noexcept = 0;
  /// Ends the thread and gives all memory back; waits at most `patience`. What has not arrived is lost, and
  /// its memory stays until the process ends. Later reads are refused.
  virtual void Close(std::chrono::milliseconds patience) noexcept = 0;
};

}  // namespace luff::device
