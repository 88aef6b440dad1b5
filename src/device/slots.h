#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/collector.h"
#include "device/driver.h"
#include "device/tables.h"

/// Memory of reads that are on their way, on one device.
namespace luff::device {

/// What all devices of a collector hold.
struct Use {
  std::atomic<std::uint64_t> device_bytes{0}, pinned_bytes{0}, slots{0}, tables_built{0};
};

/// Memory of one read: tables, partial rows and results on the device; the same tables, the results and the
/// pieces in pinned memory. Used again when its results have arrived and nobody needs them any more.
struct Slot {
  Context context = nullptr;
  Event event = nullptr;
  std::atomic<Arrival> arrival{Arrival::kHere};
  std::atomic<bool> held{false};  // by a ticket

  std::vector<Input> inputs;  // whose tables are on the device
  std::vector<std::uint32_t> piece_at, piece_bytes;
  std::uint32_t rows = 0, work = 0, joined = 0;
  std::uint64_t rows_at = 0, loops_at = 0, work_at = 0, joined_at = 0, upload_bytes = 0;  // offsets
  std::uint64_t partials_at = 0, device_results_at = 0;                                   // on the device
  std::uint64_t results_at = 0, pieces_at = 0;                                            // in pinned memory
  std::byte* pinned = nullptr;
  DevicePointer device = 0;
  std::uint64_t pinned_bytes = 0, device_bytes = 0;
  std::uint64_t used = 0;  // number of the read that used it last

  [[nodiscard]] bool is_free() const noexcept {
    return !held.load(std::memory_order_acquire) && arrival.load(std::memory_order_acquire) == Arrival::kHere;
  }
  [[nodiscard]] Summary SummaryOf(std::size_t input) const noexcept;
  [[nodiscard]] std::span<const std::byte> PieceAt(std::size_t i) const noexcept {
    return {pinned + piece_at[i], piece_bytes[i]};
  }
};

/// The slots of one device, its kernels, and the pool that their memory comes from. **Thread-compatible**:
/// its owner holds a lock. The context is current in every call.
class Slots {
 public:
  Slots(std::shared_ptr<const Driver> driver, Context context, int device, Use* use);
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  /// Loads the kernels and makes the pool. On an error `doing` says at what.
  [[nodiscard]] Code Load(const char** doing);
  /// Enqueues a read. `slot` stays null if too much is on its way. kOutOfMemory: there was no memory for a
  /// slot, and the next reads do not ask for any; or, with a slot, for a part of the work. It is free once
  /// its event has come.
  [[nodiscard]] Code Enqueue(Stream stream, std::span<const Input> inputs, std::span<const Piece> pieces,
                             std::shared_ptr<Slot>* slot, const char** doing);
  /// Gives back all that no work of the device can still use.
  void GiveBack() noexcept;

  [[nodiscard]] const Driver& driver() const noexcept { return *driver_; }
  [[nodiscard]] Context context() const noexcept { return context_; }

 private:
  struct Need {
    std::uint64_t pinned = 0, device = 0;
  };
  [[nodiscard]] std::shared_ptr<Slot> FindSame(std::span<const Input> inputs,
                                               std::uint64_t piece_bytes) const;
  [[nodiscard]] Code FindRoom(const Need& need, Stream stream, std::shared_ptr<Slot>* slot,
                              const char** doing);
  [[nodiscard]] Code Grow(const Need& need, Stream stream, std::shared_ptr<Slot>* slot, const char** doing);
  [[nodiscard]] Code Submit(Slot* slot, Stream stream, std::span<const Piece> pieces, bool upload,
                            const char** doing);
  void Release(Slot* slot) noexcept;

  const std::shared_ptr<const Driver> driver_;
  const Context context_;
  const int device_;
  Use* const use_;
  Module module_ = nullptr;
  Function statistics_ = nullptr, reduce_ = nullptr;
  MemoryPool pool_ = nullptr;
  Stream side_ = nullptr;  // gives memory back, apart from the training's streams
  std::vector<std::shared_ptr<Slot>> slots_;
  Tables tables_;
  std::uint64_t reads_ = 0, hungry_until_ = 0;
  std::uint64_t held_bytes_ = 0;  // device and pinned memory
};

}  // namespace luff::device
