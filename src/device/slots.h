#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "device/collector.h"
#include "device/driver.h"
#include "device/fetcher.h"
#include "device/staging.h"
#include "device/tables.h"

/// Memory of reads that are on their way, on one device.
namespace luff::device {

/// What all devices of a collector hold.
struct Use {
  std::atomic<std::uint64_t> device_bytes{0}, pinned_bytes{0}, slots{0}, tables_built{0};
  std::atomic<std::uint64_t> staging_bytes{0}, host_bytes{0};  // for values
  std::atomic<std::uint64_t> device_ns{0}, values{0}, waits{0};
};

/// What a read makes of one input besides its statistics.
struct Extra {
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  std::uint8_t refused = 0;  // of Input::wants
  UnitAxis axis = UnitAxis::kChannel;
  std::uint64_t value = kNone, histogram = kNone, units = kNone;  // offsets in Fetch::host
  std::uint64_t unit_count = 0, values_per_unit = 0;
  std::uint32_t difference = 0;
  bool has_difference = false;
};

/// Memory of one read: tables, partial rows and results on the device; the same tables, the results and the
/// pieces in pinned memory. Used again when its results have arrived and nobody needs them any more.
struct Slot {
  KnownContext context;
  Event begin = nullptr, event = nullptr;  // around the work of the read
  std::atomic<Arrival> arrival{Arrival::kHere};
  std::atomic<bool> held{false};  // by a ticket

  std::vector<Input> inputs;  // whose tables are on the device
  std::vector<Extra> extras;  // one for each input, or none
  std::vector<std::uint32_t> piece_at, piece_bytes;
  std::uint32_t work = 0, forms_work = 0, joined = 0, units_work = 0, units_joined = 0;
  std::uint64_t rows_at = 0, loops_at = 0, units_rows_at = 0, units_work_at = 0, units_joined_at = 0,
                work_at = 0, forms_work_at = 0, joined_at = 0, upload_bytes = 0;  // offsets
  std::uint64_t results_at = 0, differences_at = 0, results_bytes = 0;  // there and in pinned memory
  std::uint64_t partials_at = 0, difference_partials_at = 0;            // on the device
  std::uint64_t pieces_at = 0;                                          // in pinned memory
  std::byte* pinned = nullptr;
  DevicePointer device = 0;
  std::uint64_t pinned_bytes = 0, device_bytes = 0;
  std::uint64_t used = 0;  // number of the read that used it last

  /// Results and pieces of the last read. The pinned memory itself goes with the device, if the training
  /// resets it.
  std::vector<std::byte> arrived;

  /// Takes them out of pinned memory, once they are there. False if the host has no memory.
  [[nodiscard]] bool Take() noexcept;
  /// Its tables are not to be used again: they may be unfinished, and what they name be freed.
  void ForgetTables() noexcept {
    inputs.clear();
    work = forms_work = joined = units_work = units_joined = 0;
  }
  [[nodiscard]] bool is_free() const noexcept {
    return !held.load(std::memory_order_acquire) && arrival.load(std::memory_order_acquire) == Arrival::kHere;
  }
  [[nodiscard]] Summary SummaryOf(std::size_t input) const noexcept;
  [[nodiscard]] bool DifferenceOf(std::size_t input, Difference* out) const noexcept;
  [[nodiscard]] std::span<const std::byte> PieceAt(std::size_t i) const noexcept {
    return {arrived.data() + (piece_at[i] - results_at), piece_bytes[i]};
  }
};

/// The slots of one device, its kernels, and the pool that their memory comes from. **Thread-compatible**:
/// its owner holds a lock. The context is current in every call.
class Slots {
 public:
  Slots(std::shared_ptr<const Driver> driver, const KnownContext& context, int device,
        const CollectorOptions& options, Use* use);
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  /// Loads the kernels and makes the pool. On an error `doing` says at what.
  [[nodiscard]] Code Load(const char** doing);
  /// Enqueues a read. `slot` stays null if too much is on its way. kOutOfMemory: there was no memory for a
  /// slot, and the next reads do not ask for any; or, with a slot, for a part of the work. It is free once
  /// its event has come. After an error of a capture likewise; without a slot, Rescue may find it later.
  /// `fetch`: what the read puts into staging memory, null if nothing.
  [[nodiscard]] Code Enqueue(Stream stream, std::span<const Input> inputs, std::span<const Piece> pieces,
                             std::shared_ptr<Slot>* slot, std::shared_ptr<Fetch>* fetch, const char** doing);
  /// Of a read whose work was cut off by a capture, on this stream: marks its end now, so that its memory can
  /// be used again. False if there is none, or a capture still forbids it.
  [[nodiscard]] bool Rescue(Stream stream, std::shared_ptr<Slot>* slot, std::shared_ptr<Fetch>* fetch);
  /// Gives back all that no work of the device can still use.
  void GiveBack() noexcept;

  [[nodiscard]] const Driver& driver() const noexcept { return *driver_; }
  [[nodiscard]] const std::shared_ptr<const Driver>& shared_driver() const noexcept { return driver_; }
  [[nodiscard]] const KnownContext& context() const noexcept { return context_; }
  [[nodiscard]] const std::shared_ptr<Staging>& staging() const noexcept { return staging_; }

 private:
  struct Previous {  // the last value of a tensor, for differences
    DevicePointer at = 0;
    const Layout* layout = nullptr;
    bool filled = false;
    std::uint64_t claimed = 0;   // read that would use it next, whether it then enqueues work or not
    std::uint64_t read = 0;      // whose work used it last,
    Stream stream = nullptr;     // on this stream,
    const Slot* slot = nullptr;  // with this slot
    /// Whether work of another stream may still use it.
    [[nodiscard]] bool is_used_apart_from(Stream other) const noexcept {
      return slot != nullptr && stream != other && slot->used == read &&
             slot->arrival.load(std::memory_order_acquire) != Arrival::kHere;
    }
  };
  struct Need {
    std::uint64_t pinned = 0, device = 0;
  };
  /// Decides what finds room of what the inputs want besides statistics, and where; fills in `extras_` and
  /// `placed_`. `zeroed`: bytes at the beginning of the block that the read must set to zero.
  [[nodiscard]] Code Place(std::span<const Input> inputs, Stream stream, std::shared_ptr<Fetch>* fetch,
                           std::uint64_t* zeroed, const char** doing);
  void PlaceInBlock(std::span<const Input> inputs, std::uint64_t room, std::uint64_t host_room, Fetch* fetch,
                    std::uint64_t* zeroed, std::uint64_t* block_bytes);
  [[nodiscard]] Code PlaceDifferences(std::span<const Input> inputs, Stream stream, const char** doing);
  /// Builds the tables of a read and finds a slot for them.
  [[nodiscard]] Code Build(std::span<const Input> inputs, std::uint64_t piece_bytes, Stream stream,
                           std::shared_ptr<Slot>* slot, const char** doing);
  [[nodiscard]] Code Launch(Function function, std::uint32_t blocks, void* arguments, Stream stream);
  [[nodiscard]] Code LaunchUnits(Slot* slot, Stream stream);
  [[nodiscard]] std::shared_ptr<Slot> FindSame(std::span<const Input> inputs,
                                               std::uint64_t piece_bytes) const;
  [[nodiscard]] Code FindRoom(const Need& need, Stream stream, std::shared_ptr<Slot>* slot,
                              const char** doing);
  [[nodiscard]] Code Grow(const Need& need, Stream stream, std::shared_ptr<Slot>* slot, const char** doing);
  [[nodiscard]] Code Submit(Slot* slot, Stream stream, std::span<const Piece> pieces, bool upload,
                            const char** doing);
  [[nodiscard]] Code SubmitKernels(Slot* slot, Stream stream, const char** doing);
  void Release(Slot* slot) noexcept;

  const std::shared_ptr<const Driver> driver_;
  const KnownContext context_;
  const int device_;
  const CollectorOptions options_;
  Use* const use_;
  Module module_ = nullptr;
  Function statistics_ = nullptr, reduce_ = nullptr;
  Function forms_ = nullptr, units_ = nullptr, reduce_units_ = nullptr;
  MemoryPool pool_ = nullptr;
  Stream side_ = nullptr;  // gives memory back, apart from the training's streams
  std::shared_ptr<Staging> staging_;
  std::vector<std::shared_ptr<Slot>> slots_;
  struct Stranded {
    std::shared_ptr<Slot> slot;
    std::shared_ptr<Fetch> fetch;
    Stream stream = nullptr;
  };
  std::vector<Stranded> stranded_;  // reads without an event behind their work
  Tables tables_;
  std::vector<Extra> extras_;  // of the read that is being enqueued
  std::vector<Placed> placed_;
  std::unordered_map<std::uint64_t, Previous> previous_;
  std::vector<std::shared_ptr<Staging::Block>> kept_;  // hold them
  std::uint64_t kept_bytes_ = 0;
  struct {
    DevicePointer at = 0;
    std::uint64_t bytes = 0;
  } fresh_;  // last values that the read in progress placed
  std::uint64_t reads_ = 0, hungry_until_ = 0;
  std::uint64_t held_bytes_ = 0;  // device and pinned memory
};

}  // namespace luff::device
