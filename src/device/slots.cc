#include "device/slots.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "device/kernels/image.h"

namespace luff::device {
namespace {

constexpr std::size_t kMaxSlots = 256;
constexpr std::size_t kOwnSlots = 8;               // before one is used for other tensors than before
constexpr std::uint64_t kMaxBytes = 256ULL << 20;  // of all slots of a device
constexpr std::uint64_t kLeast = 16U << 10;
constexpr std::uint64_t kHungry = 64;  // reads without asking for memory, after it was refused

std::uint64_t Up(std::uint64_t bytes, std::uint64_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

Summary Slot::SummaryOf(std::size_t input) const noexcept {
  return SummaryFrom(inputs[input], reinterpret_cast<const Statistics*>(pinned + results_at)[input]);
}

Slots::Slots(std::shared_ptr<const Driver> driver, Context context, int device, Use* use)
    : driver_(std::move(driver)),
      context_(context),
      device_(device),
      use_(use) {}

Code Slots::Load(const char** doing) {
  *doing = "loading the kernels";
  const std::span<const unsigned char> image = KernelImage();
  if (image.empty()) return kOutOfMemory;
  if (const Code error = driver_->ModuleLoadData(&module_, image.data()); error != kSuccess) return error;
  if (const Code error = driver_->ModuleGetFunction(&statistics_, module_, kStatisticsKernel);
      error != kSuccess)
    return error;
  if (const Code error = driver_->ModuleGetFunction(&reduce_, module_, kReduceKernel); error != kSuccess)
    return error;
  *doing = "making a memory pool";
  PoolProperties properties;
  properties.device = device_;
  if (const Code error = driver_->MemPoolCreate(&pool_, &properties); error != kSuccess) return error;
  *doing = "making a stream";
  return driver_->StreamCreate(&side_, kStreamNonBlocking);
}

std::shared_ptr<Slot> Slots::FindSame(std::span<const Input> inputs, std::uint64_t piece_bytes) const {
  for (const std::shared_ptr<Slot>& slot : slots_) {
    if (slot->inputs.size() == inputs.size() && slot->is_free() &&
        slot->pieces_at + piece_bytes <= slot->pinned_bytes &&
        std::equal(inputs.begin(), inputs.end(), slot->inputs.begin())) {
      return slot;
    }
  }
  return nullptr;
}

Code Slots::FindRoom(const Need& need, Stream stream, std::shared_ptr<Slot>* slot, const char** doing) {
  const auto fits = [&](const Slot& s) {
    return s.is_free() && s.pinned_bytes >= need.pinned && s.device_bytes >= need.device;
  };
  if (slots_.size() >= kOwnSlots || held_bytes_ + need.pinned + need.device > kMaxBytes ||
      reads_ < hungry_until_) {
    for (const std::shared_ptr<Slot>& s : slots_) {
      if (fits(*s) && (*slot == nullptr || s->used < (*slot)->used)) *slot = s;
    }
    if (*slot != nullptr) return kSuccess;
  }
  if (reads_ < hungry_until_) return kOutOfMemory;
  return Grow(need, stream, slot, doing);
}

Code Slots::Grow(const Need& need, Stream stream, std::shared_ptr<Slot>* slot, const char** doing) {
  // What is too small stays: to free pinned memory may wait for the device.
  if (slots_.size() >= kMaxSlots || held_bytes_ + need.pinned + need.device > kMaxBytes) return kSuccess;
  auto made = std::make_shared<Slot>();
  slots_.reserve(slots_.size() + 1);
  made->context = context_;
  made->pinned_bytes = need.pinned;
  made->device_bytes = need.device;
  void* pinned = nullptr;
  *doing = "taking pinned memory";
  Code error = driver_->MemHostAlloc(&pinned, need.pinned, kHostPortable);
  made->pinned = static_cast<std::byte*>(pinned);
  if (error == kSuccess) {
    *doing = "taking device memory";
    error = driver_->MemAllocFromPoolAsync(&made->device, need.device, pool_, stream);
  }
  if (error == kSuccess) {
    *doing = "making an event";
    error = driver_->EventCreate(&made->event, kEventWithoutTiming);
  }
  if (error != kSuccess) {
    if (made->device != 0) static_cast<void>(driver_->MemFreeAsync(made->device, stream));
    if (pinned != nullptr) static_cast<void>(driver_->MemFreeHost(pinned));
    if (error == kOutOfMemory) hungry_until_ = reads_ + kHungry;
    return error;
  }
  held_bytes_ += need.pinned + need.device;
  use_->pinned_bytes.fetch_add(need.pinned, std::memory_order_relaxed);
  use_->device_bytes.fetch_add(need.device, std::memory_order_relaxed);
  use_->slots.fetch_add(1, std::memory_order_relaxed);
  slots_.push_back(made);
  *slot = std::move(made);
  return kSuccess;
}

Code Slots::Enqueue(Stream stream, std::span<const Input> inputs, std::span<const Piece> pieces,
                    std::shared_ptr<Slot>* slot, const char** doing) {
  ++reads_;
  std::uint64_t piece_bytes = 0;
  for (const Piece& piece : pieces) piece_bytes += Up(piece.bytes, 16);
  if (piece_bytes > kMaxPieceBytes) return kSuccess;
  std::shared_ptr<Slot> found = FindSame(inputs, piece_bytes);
  const bool upload = found == nullptr;
  if (upload) {
    BuildTables(inputs, &tables_);
    use_->tables_built.fetch_add(1, std::memory_order_relaxed);
    const std::uint64_t rows_bytes = tables_.rows.size() * sizeof(Row),
                        loops_bytes = tables_.loops.size() * sizeof(Loops),
                        work_bytes = tables_.work.size() * sizeof(Work),
                        joined_bytes = tables_.joined.size() * sizeof(U32);
    const std::uint64_t upload_bytes = Up(rows_bytes + loops_bytes + work_bytes + joined_bytes, 256);
    const std::uint64_t results_bytes = Up(inputs.size() * sizeof(Statistics), 256);
    const std::uint64_t tables_and_results = upload_bytes + results_bytes;
    const Need need{
        std::bit_ceil(std::max(tables_and_results + piece_bytes, kLeast)),
        std::bit_ceil(std::max(tables_and_results + tables_.partials * sizeof(Statistics), kLeast))};
    if (const Code error = FindRoom(need, stream, &found, doing); error != kSuccess) return error;
    if (found == nullptr) return kSuccess;
    Slot& s = *found;
    s.inputs.clear();  // until its tables are there
    s.rows = static_cast<std::uint32_t>(tables_.rows.size());
    s.work = static_cast<std::uint32_t>(tables_.work.size());
    s.joined = static_cast<std::uint32_t>(tables_.joined.size());
    s.rows_at = 0;
    s.loops_at = rows_bytes;
    s.work_at = s.loops_at + loops_bytes;
    s.joined_at = s.work_at + work_bytes;
    s.upload_bytes = upload_bytes;
    s.device_results_at = upload_bytes;
    s.partials_at = upload_bytes + results_bytes;
    s.results_at = upload_bytes;
    s.pieces_at = upload_bytes + results_bytes;
    const auto put = [&](std::uint64_t at, const void* from, std::uint64_t bytes) {
      if (bytes != 0) std::memcpy(s.pinned + at, from, bytes);
    };
    put(s.rows_at, tables_.rows.data(), rows_bytes);
    put(s.loops_at, tables_.loops.data(), loops_bytes);
    put(s.work_at, tables_.work.data(), work_bytes);
    put(s.joined_at, tables_.joined.data(), joined_bytes);
    s.inputs.assign(inputs.begin(), inputs.end());
  }
  found->piece_at.resize(pieces.size());
  found->piece_bytes.resize(pieces.size());
  found->used = reads_;
  found->arrival.store(Arrival::kWaits, std::memory_order_relaxed);
  found->held.store(true, std::memory_order_relaxed);
  const Code error = Submit(found.get(), stream, pieces, upload, doing);
  if (error != kSuccess) {
    found->inputs.clear();
    found->held.store(false, std::memory_order_relaxed);
    // Nothing is recorded where a graph is being captured. Then the slot is not used again.
    if (error != kOutOfMemory || driver_->EventRecord(found->event, stream) != kSuccess) return error;
  }
  *slot = std::move(found);
  return error;
}

Code Slots::Submit(Slot* slot, Stream stream, std::span<const Piece> pieces, bool upload,
                   const char** doing) {
  const Driver& driver = *driver_;
  if (slot->work != 0) {
    if (upload) {
      *doing = "copying a table to the device";
      if (const Code error = driver.MemcpyHtoDAsync(slot->device, slot->pinned, slot->upload_bytes, stream);
          error != kSuccess)
        return error;
    }
    *doing = "launching a kernel";
    StatisticsArguments statistics{};
    statistics.rows = slot->device + slot->rows_at;
    statistics.loops = slot->device + slot->loops_at;
    statistics.work = slot->device + slot->work_at;
    statistics.partials = slot->device + slot->partials_at;
    statistics.results = slot->device + slot->device_results_at;
    std::array<void*, 1> parameters = {&statistics};
    if (const Code error = driver.LaunchKernel(statistics_, slot->work, 1, 1, kBlockThreads, 1, 1, 0, stream,
                                               parameters.data(), nullptr);
        error != kSuccess)
      return error;
    if (slot->joined != 0) {
      ReduceArguments reduce{};
      reduce.rows = statistics.rows;
      reduce.joined = slot->device + slot->joined_at;
      reduce.partials = statistics.partials;
      reduce.results = statistics.results;
      parameters = {&reduce};
      if (const Code error = driver.LaunchKernel(reduce_, slot->joined, 1, 1, kBlockThreads, 1, 1, 0, stream,
                                                 parameters.data(), nullptr);
          error != kSuccess)
        return error;
    }
    *doing = "copying results to the host";
    if (const Code error =
            driver.MemcpyDtoHAsync(slot->pinned + slot->results_at, slot->device + slot->device_results_at,
                                   slot->inputs.size() * sizeof(Statistics), stream);
        error != kSuccess)
      return error;
  }
  *doing = "copying values to the host";
  std::uint64_t at = slot->pieces_at;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    slot->piece_at[i] = static_cast<std::uint32_t>(at);
    slot->piece_bytes[i] = pieces[i].bytes;
    if (pieces[i].bytes != 0) {
      if (const Code error =
              driver.MemcpyDtoHAsync(slot->pinned + at, pieces[i].data, pieces[i].bytes, stream);
          error != kSuccess)
        return error;
    }
    at += Up(pieces[i].bytes, 16);
  }
  *doing = "recording an event";
  return driver.EventRecord(slot->event, stream);
}

void Slots::Release(Slot* slot) noexcept {
  static_cast<void>(driver_->EventDestroy(slot->event));
  static_cast<void>(driver_->MemFreeAsync(slot->device, side_));
  static_cast<void>(driver_->MemFreeHost(slot->pinned));
  held_bytes_ -= slot->pinned_bytes + slot->device_bytes;
  use_->pinned_bytes.fetch_sub(slot->pinned_bytes, std::memory_order_relaxed);
  use_->device_bytes.fetch_sub(slot->device_bytes, std::memory_order_relaxed);
  use_->slots.fetch_sub(1, std::memory_order_relaxed);
}

void Slots::GiveBack() noexcept {
  std::erase_if(slots_, [this](const std::shared_ptr<Slot>& slot) {
    if (!slot->is_free()) return false;
    Release(slot.get());
    return true;
  });
  if (!slots_.empty()) return;  // work that never ended may still use the rest
  if (side_ != nullptr) static_cast<void>(driver_->StreamDestroy(side_));
  if (pool_ != nullptr) static_cast<void>(driver_->MemPoolDestroy(pool_));
  if (module_ != nullptr) static_cast<void>(driver_->ModuleUnload(module_));
  side_ = nullptr;
  pool_ = nullptr;
  module_ = nullptr;
}

}  // namespace luff::device
