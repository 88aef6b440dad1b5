#include "device/slots.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>
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
  return SummaryFrom(inputs[input], reinterpret_cast<const Statistics*>(arrived.data())[input]);
}

bool Slot::Take() noexcept {
  try {
    std::uint64_t end = results_at + results_bytes;
    for (std::size_t i = 0; i < piece_at.size(); ++i)
      end = std::max<std::uint64_t>(end, std::uint64_t{piece_at[i]} + piece_bytes[i]);
    arrived.assign(pinned + results_at, pinned + std::max(end, results_at));
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool Slot::DifferenceOf(std::size_t input, Difference* out) const noexcept {
  if (extras.empty() || !extras[input].has_difference) return false;
  const Differences& d = reinterpret_cast<const Differences*>(
      arrived.data() + (differences_at - results_at))[extras[input].difference];
  *out = {d.l1, d.sum_sq, d.max, d.changed, d.previous_l1, d.previous_sum_sq};
  return true;
}

Slots::Slots(std::shared_ptr<const Driver> driver, const KnownContext& context, int device,
             const CollectorOptions& options, Use* use)
    : driver_(std::move(driver)),
      context_(context),
      device_(device),
      options_(options),
      use_(use) {}

Code Slots::Load(const char** doing) {
  *doing = "loading the kernels";
  const std::span<const unsigned char> image = KernelImage();
  if (image.empty()) return kOutOfMemory;
  if (const Code error = driver_->ModuleLoadData(&module_, image.data()); error != kSuccess) return error;
  // All of them now: a driver that loads kernels when they are first asked for may wait for the device.
  for (const auto& [function, name] :
       {std::pair{&statistics_, kStatisticsKernel}, std::pair{&reduce_, kReduceKernel},
        std::pair{&forms_, kFormsKernel}, std::pair{&units_, kUnitsKernel},
        std::pair{&reduce_units_, kReduceUnitsKernel}}) {
    if (const Code error = driver_->ModuleGetFunction(function, module_, name); error != kSuccess)
      return error;
  }
  *doing = "making a memory pool";
  PoolProperties properties;
  properties.device = device_;
  if (const Code error = driver_->MemPoolCreate(&pool_, &properties); error != kSuccess) return error;
  *doing = "making a stream";
  if (const Code error = driver_->StreamCreate(&side_, kStreamNonBlocking); error != kSuccess) return error;
  staging_ = std::make_shared<Staging>(driver_, pool_, side_, options_.staging_bytes, use_);
  return kSuccess;
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
    error = driver_->EventCreate(&made->event, kEventWithTiming);
  }
  if (error == kSuccess) error = driver_->EventCreate(&made->begin, kEventWithTiming);
  if (error != kSuccess) {
    if (made->event != nullptr) static_cast<void>(driver_->EventDestroy(made->event));
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

// ---- What goes through staging memory ----

Code Slots::Place(std::span<const Input> inputs, Stream stream, std::shared_ptr<Fetch>* fetch,
                  std::uint64_t* zeroed, const char** doing) {
  extras_.assign(inputs.size(), {});
  placed_.assign(inputs.size(), {});
  *doing = "taking memory for values";
  if (const Code error = PlaceDifferences(inputs, stream, doing); error != kSuccess) return error;
  const std::uint64_t host = use_->host_bytes.load(std::memory_order_relaxed);
  auto made = std::make_shared<Fetch>();
  std::uint64_t block_bytes = 0;
  PlaceInBlock(inputs, staging_->Room(), options_.host_bytes - std::min(host, options_.host_bytes),
               made.get(), zeroed, &block_bytes);
  if (block_bytes == 0) return kSuccess;
  const Code error = staging_->Take(block_bytes, stream, &made->block);
  if (error != kSuccess && error != kOutOfMemory) return error;
  if (made->block == nullptr) {
    *zeroed = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Extra& extra = extras_[i];
      if ((inputs[i].wants & kWantValue) != 0) extra.refused |= kWantValue;
      if ((inputs[i].wants & kWantHistogram) != 0) extra.refused |= kWantHistogram;
      if ((inputs[i].wants & kWantUnits) != 0) extra.refused |= kWantUnits;
      extra.value = extra.histogram = extra.units = Extra::kNone;
      placed_[i].value = placed_[i].histogram = placed_[i].units = placed_[i].unit_partials = 0;
    }
    return kSuccess;
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {  // from offsets to addresses
    Placed& placed = placed_[i];
    if (extras_[i].histogram != Extra::kNone) placed.histogram += made->block->at;
    if (extras_[i].units != Extra::kNone) {
      placed.units += made->block->at;
      if (placed.unit_partials != 0) placed.unit_partials += made->block->at;
    }
    if (extras_[i].value == Extra::kNone) continue;
    placed.value += made->block->at;
    use_->values.fetch_add(1, std::memory_order_relaxed);
  }
  *fetch = std::move(made);
  return kSuccess;
}

// Histograms first, since they are zeroed together, then units, then values; behind what is copied to the
// host the partial sums of units.
void Slots::PlaceInBlock(std::span<const Input> inputs, std::uint64_t room, std::uint64_t host_room,
                         Fetch* fetch, std::uint64_t* zeroed, std::uint64_t* block_bytes) {
  constexpr std::uint64_t kHistogramBytes = kHistogramCounters * sizeof(U64);
  std::uint64_t at = 0, to = 0, partials = 0;  // in the block, on the host
  const auto fits = [&](std::uint64_t bytes, std::uint64_t host_bytes, std::uint64_t partial_bytes) {
    return Up(at, 16) + 16 + bytes + partials + partial_bytes + 64 <= room && to + host_bytes <= host_room;
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if ((inputs[i].wants & kWantHistogram) == 0) continue;
    if (inputs[i].layout->element_count() == 0 || !fits(kHistogramBytes, kHistogramBytes, 0)) {
      extras_[i].refused |= kWantHistogram;
      continue;
    }
    placed_[i].histogram = at;
    extras_[i].histogram = to;
    fetch->ranges.push_back({at, to, kHistogramBytes});
    at += kHistogramBytes;
    to += kHistogramBytes;
  }
  *zeroed = at;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if ((inputs[i].wants & kWantUnits) == 0) continue;
    const std::uint64_t count = inputs[i].layout->element_count();
    const UnitsPlan plan = count == 0 ? UnitsPlan{} : PlanUnits(*inputs[i].layout, inputs[i].axis);
    const std::uint64_t bytes = plan.units * sizeof(UnitCount),
                        partial_bytes = plan.partials() * sizeof(UnitCount);
    if (count == 0 || !fits(bytes, bytes, partial_bytes)) {
      extras_[i].refused |= kWantUnits;
      continue;
    }
    at = Up(at, 16);
    to = Up(to, 16);
    placed_[i].units = at;
    placed_[i].unit_partials = partial_bytes == 0 ? 0 : partials + 1;  // an offset, made right below
    extras_[i].units = to;
    extras_[i].unit_count = plan.units;
    extras_[i].values_per_unit = count / plan.units;
    extras_[i].axis = inputs[i].axis;
    fetch->ranges.push_back({at, to, bytes});
    at += bytes;
    to += bytes;
    partials += partial_bytes;
  }
  const std::uint64_t space = PartSpace(options_.headroom);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if ((inputs[i].wants & kWantValue) == 0) continue;
    const std::uint64_t bytes = inputs[i].layout->byte_count();
    const std::uint64_t parts = (bytes + kPartBytes - 1) / kPartBytes;
    const std::uint64_t host_bytes =
        bytes == 0 ? 0 : (parts - 1) * space + PartSpace(options_.headroom, bytes - (parts - 1) * kPartBytes);
    if (bytes == 0 || bytes > room || !fits(bytes, 64 + host_bytes, 0)) {
      extras_[i].refused |= kWantValue;
      continue;
    }
    // As far from a border of vectors as the elements themselves: then they are copied in whole vectors.
    at = Up(at, 16) + inputs[i].data % kVectorBytes;
    to = Up(to, 64);
    placed_[i].value = at;
    extras_[i].value = to;
    for (std::uint64_t part = 0; part < parts; ++part) {
      const std::uint64_t size = std::min(kPartBytes, bytes - part * kPartBytes);
      fetch->ranges.push_back({at + part * kPartBytes, to + options_.headroom, size});
      to += PartSpace(options_.headroom, size);
    }
    at += bytes;
  }
  fetch->bytes = at;
  fetch->host_bytes = to;
  at = Up(at, 16);
  for (Placed& placed : placed_) {
    if (placed.unit_partials != 0) placed.unit_partials += at - 1;
  }
  *block_bytes = fetch->bytes == 0 ? 0 : at + partials;
}

Code Slots::PlaceDifferences(std::span<const Input> inputs, Stream stream, const char** doing) {
  std::uint64_t bytes = 0;
  std::vector<std::size_t> first;  // inputs that have no last value
  std::uint32_t differences = 0;
  const std::uint64_t room =
      std::any_of(inputs.begin(), inputs.end(),
                  [](const Input& input) { return (input.wants & kWantDifference) != 0; })
          ? staging_->Room()
          : 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = inputs[i];
    if ((input.wants & kWantDifference) == 0) continue;
    const auto known = previous_.find(input.key);
    if (known != previous_.end()) {
      Previous& previous = known->second;
      // One of another layout keeps its memory.
      if (previous.layout != input.layout || previous.claimed == reads_ ||
          previous.is_used_apart_from(stream)) {
        extras_[i].refused |= kWantDifference;
        continue;
      }
      placed_[i].previous = previous.at;
      placed_[i].difference = extras_[i].difference = differences++;
      extras_[i].has_difference = previous.filled;
      previous.claimed = reads_;
      continue;
    }
    const std::uint64_t own = Up(input.layout->byte_count(), 256);
    if (own == 0 || own > room ||
        kept_bytes_ + bytes + own > (room + kept_bytes_) / 2) {  // half is for values
      extras_[i].refused |= kWantDifference;
      continue;
    }
    previous_[input.key] = {bytes, input.layout, false, reads_};
    bytes += own;
    first.push_back(i);
  }
  if (first.empty()) return kSuccess;
  std::shared_ptr<Staging::Block> block;
  *doing = "taking memory for last values";
  const Code error = staging_->Take(bytes, stream, &block, /*lasts=*/true);
  if (block != nullptr) {
    kept_.push_back(block);
    kept_bytes_ += block->bytes;
  }
  for (const std::size_t i : first) {
    if (block == nullptr) {
      previous_.erase(inputs[i].key);
      extras_[i].refused |= kWantDifference;
      continue;
    }
    Previous& previous = previous_[inputs[i].key];
    previous.at += block->at;
    placed_[i].previous = previous.at;
    placed_[i].difference = extras_[i].difference = differences++;
  }
  if (block != nullptr) fresh_ = {block->at, bytes};
  return error == kOutOfMemory ? kSuccess : error;
}

// ---- A read ----

Code Slots::Build(std::span<const Input> inputs, std::uint64_t piece_bytes, Stream stream,
                  std::shared_ptr<Slot>* slot, const char** doing) {
  BuildTables(inputs, placed_, &tables_);
  use_->tables_built.fetch_add(1, std::memory_order_relaxed);
  std::uint64_t differences = 0;
  for (const Placed& placed : placed_) differences += placed.previous != 0 ? 1 : 0;
  const Tables& t = tables_;
  const std::uint64_t upload_bytes = Up(
      t.rows.size() * sizeof(Row) + t.loops.size() * sizeof(Loops) + t.units_rows.size() * sizeof(UnitsRow) +
          (t.units_work.size() + t.units_joined.size()) * sizeof(UnitsWork) +
          (t.work.size() + t.forms_work.size()) * sizeof(Work) + t.joined.size() * sizeof(U32),
      256);
  const std::uint64_t statistics_bytes = inputs.size() * sizeof(Statistics);
  const std::uint64_t results_bytes = Up(statistics_bytes + differences * sizeof(Differences), 256);
  const std::uint64_t tables_and_results = upload_bytes + results_bytes;
  const std::uint64_t partials_bytes = t.partials * sizeof(Statistics);
  const std::uint64_t difference_partials = differences == 0 ? 0 : t.partials * sizeof(Differences);
  const Need need{std::bit_ceil(std::max(tables_and_results + piece_bytes, kLeast)),
                  std::bit_ceil(std::max(tables_and_results + partials_bytes + difference_partials, kLeast))};
  if (const Code error = FindRoom(need, stream, slot, doing); error != kSuccess || *slot == nullptr)
    return error;
  Slot& s = **slot;
  s.ForgetTables();  // until its tables are there
  s.work = static_cast<std::uint32_t>(t.work.size());
  s.forms_work = static_cast<std::uint32_t>(t.forms_work.size());
  s.joined = static_cast<std::uint32_t>(t.joined.size());
  s.units_work = static_cast<std::uint32_t>(t.units_work.size());
  s.units_joined = static_cast<std::uint32_t>(t.units_joined.size());
  std::uint64_t at = 0;
  const auto put = [&](const auto& items, std::uint64_t* begin) {
    *begin = at;
    const std::uint64_t bytes = items.size() * sizeof(items[0]);
    if (bytes != 0) std::memcpy(s.pinned + at, items.data(), bytes);
    at += bytes;
  };
  put(t.rows, &s.rows_at);
  put(t.loops, &s.loops_at);
  put(t.units_rows, &s.units_rows_at);
  put(t.units_work, &s.units_work_at);
  put(t.units_joined, &s.units_joined_at);
  put(t.work, &s.work_at);
  put(t.forms_work, &s.forms_work_at);
  put(t.joined, &s.joined_at);
  s.upload_bytes = upload_bytes;
  s.results_at = upload_bytes;
  s.differences_at = upload_bytes + statistics_bytes;
  s.results_bytes = statistics_bytes + differences * sizeof(Differences);
  s.partials_at = s.pieces_at = tables_and_results;
  s.difference_partials_at = tables_and_results + partials_bytes;
  s.inputs.assign(inputs.begin(), inputs.end());
  s.extras = extras_;
  return kSuccess;
}

Code Slots::Enqueue(Stream stream, std::span<const Input> inputs, std::span<const Piece> pieces,
                    std::shared_ptr<Slot>* slot, std::shared_ptr<Fetch>* fetch, const char** doing) {
  ++reads_;
  std::uint64_t piece_bytes = 0;
  for (const Piece& piece : pieces) piece_bytes += Up(piece.bytes, 16);
  if (piece_bytes > kMaxPieceBytes) return kSuccess;
  extras_.clear();
  placed_.clear();
  fresh_ = {};
  std::uint64_t zeroed = 0;
  const bool plain =
      std::all_of(inputs.begin(), inputs.end(), [](const Input& input) { return input.wants == 0; });
  std::shared_ptr<Slot> found = plain ? FindSame(inputs, piece_bytes) : nullptr;
  const bool upload = found == nullptr;
  Code error = kSuccess;
  if (upload) {
    if (!plain) error = Place(inputs, stream, fetch, &zeroed, doing);
    if (error == kSuccess) error = Build(inputs, piece_bytes, stream, &found, doing);
    if (error != kSuccess || found == nullptr) {
      if (*fetch != nullptr) staging_->Return((*fetch)->block);  // no work of the device has seen it
      fetch->reset();
      return error;
    }
  }
  found->piece_at.resize(pieces.size());
  found->piece_bytes.resize(pieces.size());
  found->used = reads_;
  found->arrival.store(Arrival::kWaits, std::memory_order_relaxed);
  found->held.store(true, std::memory_order_relaxed);
  *doing = "recording an event";
  error = driver_->EventRecord(found->begin, stream);
  if (error != kSuccess) {  // no work has been enqueued
    if (*fetch != nullptr) staging_->Return((*fetch)->block);
    fetch->reset();
    found->ForgetTables();
    found->held.store(false, std::memory_order_relaxed);
    if (!IsSticky(error)) found->arrival.store(Arrival::kHere, std::memory_order_release);
    return error;
  }
  if (fresh_.bytes != 0) {  // the first difference is from zeros, and nobody reads it
    *doing = "setting last values to zero";
    error = driver_->MemsetD8Async(fresh_.at, 0, fresh_.bytes, stream);
  }
  if (error == kSuccess && zeroed != 0) {
    *doing = "setting histograms to zero";
    error = driver_->MemsetD8Async((*fetch)->block->at, 0, zeroed, stream);
  }
  if (error == kSuccess) error = Submit(found.get(), stream, pieces, upload, doing);
  for (std::size_t i = 0; i < placed_.size(); ++i) {  // also by what was enqueued before an error
    if (placed_[i].previous == 0) continue;
    Previous& previous = previous_[inputs[i].key];
    previous.filled = previous.filled || error == kSuccess;
    previous.read = reads_;
    previous.stream = stream;
    previous.slot = found.get();
  }
  if (error != kSuccess) {
    found->ForgetTables();
    found->held.store(false, std::memory_order_relaxed);
    if (error != kOutOfMemory && !IsOfCapture(error)) return error;
    if (driver_->EventRecord(found->event, stream) != kSuccess) {
      if (IsOfCapture(error)) stranded_.push_back({std::move(found), *fetch, stream});
      return error;
    }
  }
  *slot = std::move(found);
  return error;
}

bool Slots::Rescue(Stream stream, std::shared_ptr<Slot>* slot, std::shared_ptr<Fetch>* fetch) {
  const auto one = std::ranges::find(stranded_, stream, &Stranded::stream);
  if (one == stranded_.end() || driver_->EventRecord(one->slot->event, stream) != kSuccess) return false;
  *slot = std::move(one->slot);
  *fetch = std::move(one->fetch);
  stranded_.erase(one);
  return true;
}

Code Slots::Launch(Function function, std::uint32_t blocks, void* arguments, Stream stream) {
  std::array<void*, 1> parameters = {arguments};
  return driver_->LaunchKernel(function, blocks, 1, 1, kBlockThreads, 1, 1, 0, stream, parameters.data(),
                               nullptr);
}

Code Slots::LaunchUnits(Slot* slot, Stream stream) {
  UnitsArguments units{};
  units.rows = slot->device + slot->units_rows_at;
  units.loops = slot->device + slot->loops_at;
  units.work = slot->device + slot->units_work_at;
  if (const Code error = Launch(units_, slot->units_work, &units, stream);
      error != kSuccess || slot->units_joined == 0)
    return error;
  ReduceUnitsArguments reduce{};
  reduce.rows = units.rows;
  reduce.work = slot->device + slot->units_joined_at;
  return Launch(reduce_units_, slot->units_joined, &reduce, stream);
}

Code Slots::SubmitKernels(Slot* slot, Stream stream, const char** doing) {
  StatisticsArguments statistics{};
  statistics.rows = slot->device + slot->rows_at;
  statistics.loops = slot->device + slot->loops_at;
  statistics.work = slot->device + slot->work_at;
  statistics.partials = slot->device + slot->partials_at;
  statistics.results = slot->device + slot->results_at;
  statistics.difference_partials = slot->device + slot->difference_partials_at;
  statistics.differences = slot->device + slot->differences_at;
  *doing = "launching a kernel";
  if (slot->work != 0) {
    if (const Code error = Launch(statistics_, slot->work, &statistics, stream); error != kSuccess)
      return error;
  }
  if (slot->forms_work != 0) {
    StatisticsArguments forms = statistics;
    forms.work = slot->device + slot->forms_work_at;
    if (const Code error = Launch(forms_, slot->forms_work, &forms, stream); error != kSuccess) return error;
  }
  if (slot->joined != 0) {
    ReduceArguments reduce{};
    reduce.rows = statistics.rows;
    reduce.joined = slot->device + slot->joined_at;
    reduce.partials = statistics.partials;
    reduce.results = statistics.results;
    reduce.difference_partials = statistics.difference_partials;
    reduce.differences = statistics.differences;
    if (const Code error = Launch(reduce_, slot->joined, &reduce, stream); error != kSuccess) return error;
  }
  return slot->units_work == 0 ? kSuccess : LaunchUnits(slot, stream);
}

Code Slots::Submit(Slot* slot, Stream stream, std::span<const Piece> pieces, bool upload,
                   const char** doing) {
  const Driver& driver = *driver_;
  if (slot->work + slot->forms_work != 0) {
    if (upload) {
      *doing = "copying a table to the device";
      if (const Code error = driver.MemcpyHtoDAsync(slot->device, slot->pinned, slot->upload_bytes, stream);
          error != kSuccess)
        return error;
    }
    if (const Code error = SubmitKernels(slot, stream, doing); error != kSuccess) return error;
    *doing = "copying results to the host";
    if (const Code error = driver.MemcpyDtoHAsync(
            slot->pinned + slot->results_at, slot->device + slot->results_at, slot->results_bytes, stream);
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
  static_cast<void>(driver_->EventDestroy(slot->begin));
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
  if (!slots_.empty()) {  // work that never ended may still use the rest
    if (staging_ != nullptr) staging_->GiveBack(std::chrono::milliseconds(0));  // but not what is idle
    return;
  }
  if (staging_ != nullptr) {
    for (const std::shared_ptr<Staging::Block>& block : kept_) staging_->Return(block);
    kept_.clear();
    kept_bytes_ = 0;
    previous_.clear();
    staging_->GiveBack(std::chrono::milliseconds(0));
    if (!staging_->empty()) return;
  }
  if (side_ != nullptr) static_cast<void>(driver_->StreamDestroy(side_));
  if (pool_ != nullptr) static_cast<void>(driver_->MemPoolDestroy(pool_));
  if (module_ != nullptr) static_cast<void>(driver_->ModuleUnload(module_));
  side_ = nullptr;
  pool_ = nullptr;
  module_ = nullptr;
}

}  // namespace luff::device
