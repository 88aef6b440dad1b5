// The part of Producer that reads accelerators.
#include <algorithm>
#include <bit>
#include <chrono>
#include <unordered_map>
#include <utility>

#include "capture/producer.h"

namespace luff::capture {
namespace {

using format::Form;
using format::GapReason;

constexpr std::uint32_t kOfValue = Bit(Form::kRaw) | Bit(Form::kHash) | Bit(Form::kExtra);
constexpr std::uint64_t kLargestOfDevice = device::kPartBytes;
constexpr std::chrono::nanoseconds kMaxDeviceWait{200'000'000};  // policy `block`, in one step
constexpr std::size_t kMostHashed = 16;                          // pieces
constexpr std::size_t kMostReads = 4096;                         // of one step

GapReason ReasonOf(device::Refusal refusal) {
  switch (refusal) {
    case device::Refusal::kCaptured: return GapReason::kCapturedGraph;
    case device::Refusal::kBusy: return GapReason::kDeviceLate;
    case device::Refusal::kOff: return GapReason::kDeviceError;
    case device::Refusal::kNone:
    case device::Refusal::kNoDevice: break;
  }
  return GapReason::kUnsupported;
}

}  // namespace

void Producer::CaptureOnDevice(std::span<const TensorRef> refs, const DevicePlace& place, double factor) {
  MutexLock lock(mutex_);
  inputs_.clear();
  pieces_.clear();
  device_pieces_bytes_ = 0;
  device_patient_ = false;
  Late late;
  // NOLINTNEXTLINE(clang-diagnostic-float-equal): exactly one means no factor
  const bool scaled = factor != 1.0 || place.divisor != 0;
  for (const TensorRef& ref : refs) {
    LateRow row;
    row.factor = factor;
    if (RowOnDevice(ref, scaled, &row)) late.rows.push_back(row);
  }
  if (late.rows.empty()) return;
  FindAliases(&late.rows);
  if (place.divisor != 0) {
    late.has_divisor = true;
    late.divisor = static_cast<std::uint32_t>(pieces_.size());
    pieces_.push_back({place.divisor, 4});
  }
  Enqueue(place, std::move(late));
}

bool Producer::RowOnDevice(const TensorRef& ref, bool scaled, LateRow* row) {
  TensorState* tensor = context_.registry->tensor(ref.id);
  if (tensor == nullptr) return false;
  const format::Mode mode = context_.step->mode.load(std::memory_order_relaxed);
  const std::uint64_t due = context_.step->due.load(std::memory_order_acquire) &
                            tensor->collections.load(std::memory_order_relaxed);
  if (due == 0 || !Plan::RoleSavedIn(tensor->role, mode)) return false;
  std::uint32_t forms = context_.plans->now().FormsOf(due);
  const LayoutState* layout = context_.registry->layout(ref.layout);
  if (layout == nullptr || (ref.data == nullptr && layout->bytes != 0)) {
    AddGap(ref.id, format::kNoId, GapReason::kUnsupported, forms, layout == nullptr ? 0 : layout->bytes);
    return false;
  }
  if (!HasRoom(sizeof(format::SummaryRow), forms)) return false;
  context_.counters->captured.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t bytes = layout->bytes;
  if ((ref.flags & kReplicaFlag) != 0 && (forms & Bit(Form::kRaw)) != 0 && bytes <= kLargestOfDevice) {
    forms = (forms & ~Bit(Form::kRaw)) | Bit(Form::kHash);
    context_.counters->replicas.fetch_add(1, std::memory_order_relaxed);
  }
  if ((forms & Bit(Form::kShape)) != 0) {
    format::FormRow shape{};
    shape.tensor = ref.id;
    shape.form = static_cast<std::uint16_t>(Form::kShape);
    shape.values[0] = static_cast<double>(ref.layout);
    rows_.forms.push_back(shape);
    forms &= ~Bit(Form::kShape);
  }
  if ((scaled || bytes == 0) && (forms & Bit(Form::kDifference)) != 0) {
    AddGap(ref.id, format::kNoId, GapReason::kUnsupported, Bit(Form::kDifference), bytes);
    forms &= ~Bit(Form::kDifference);
  }
  row->tensor = ref.id;
  row->dtype = row->read_as = layout->layout.dtype;
  row->layout = &layout->layout;
  row->chunk.tensor = ref.id;
  row->chunk.layout = ref.layout;
  row->chunk.dtype = row->dtype;
  row->chunk.raw_bytes = bytes;
  Policy policy = Policy::kDegrade;
  if ((forms & Bit(Form::kRaw)) != 0 && !ChooseCollection(due, &row->chunk, &policy))
    forms &= ~Bit(Form::kRaw);
  if (forms == 0) return false;
  row->forms = forms;
  row->axis = UnitAxisOf(due);
  const auto data = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(ref.data));
  const bool small = (forms & kOfValue) != 0 && (forms & Bit(Form::kDifference)) == 0 && bytes <= kMaxPiece &&
                     layout->layout.is_contiguous() &&
                     device_pieces_bytes_ + bytes <= device::kMaxPieceBytes / 2;
  if (small || bytes == 0) {
    row->is_piece = true;
    row->at = static_cast<std::uint32_t>(pieces_.size());
    pieces_.push_back({data, static_cast<std::uint32_t>(bytes)});
    device_pieces_bytes_ += bytes + 16;
    return true;
  }
  if (scaled && (forms & Bit(Form::kHistogram)) != 0) {  // the kernel counts what is in memory
    AddGap(ref.id, format::kNoId, GapReason::kUnsupported, Bit(Form::kHistogram), bytes);
    row->forms &= ~Bit(Form::kHistogram);
    if (row->forms == 0) return false;
  }
  row->at = static_cast<std::uint32_t>(inputs_.size());
  device::Input input{data, &layout->layout};
  if ((forms & kOfValue) != 0) input.wants |= device::kWantValue;
  if ((row->forms & Bit(Form::kHistogram)) != 0) input.wants |= device::kWantHistogram;
  if ((forms & Bit(Form::kUnits)) != 0) input.wants |= device::kWantUnits;
  if ((forms & Bit(Form::kDifference)) != 0) input.wants |= device::kWantDifference;
  if ((input.wants & device::kWantUnits) != 0) input.axis = row->axis;
  if ((input.wants & device::kWantDifference) != 0) input.key = ref.id;
  device_patient_ = device_patient_ || ((forms & Bit(Form::kRaw)) != 0 && policy == Policy::kBlock);
  inputs_.push_back(input);
  return true;
}

/// Values of the same memory are read once: all rows of a call are read at one place in the stream.
void Producer::FindAliases(std::vector<LateRow>* rows) {
  std::unordered_map<std::uint64_t, std::size_t> known;  // address -> row
  for (std::size_t i = 0; i < rows->size(); ++i) {
    LateRow& row = (*rows)[i];
    if (row.is_piece || (row.forms & kOfValue) != Bit(Form::kRaw) || row.chunk.raw_bytes > kLargestOfDevice)
      continue;
    const auto [first, added] = known.try_emplace(inputs_[row.at].data, i);
    const LateRow& other = (*rows)[first->second];
    if (added || other.chunk.layout != row.chunk.layout) continue;
    row.same_as = static_cast<std::int64_t>(first->second);
    inputs_[row.at].wants &= static_cast<std::uint8_t>(~device::kWantValue);
    context_.counters->aliases.fetch_add(1, std::memory_order_relaxed);
  }
}

void Producer::ScalarOnDevice(const DeviceScalar& scalar, const DevicePlace& place) {
  MutexLock lock(mutex_);
  if (!HasRoom(sizeof(format::ScalarRow), 0)) return;
  inputs_.clear();
  pieces_.clear();
  LateRow row;
  row.tensor = scalar.id;
  row.read_as = scalar.dtype;
  row.is_piece = row.is_scalar = true;
  row.factor = scalar.factor;
  const TensorState* tensor = context_.registry->tensor(scalar.id);
  const LayoutState* layout = context_.registry->layout(scalar.layout);
  const bool known = layout != nullptr && layout->layout.element_count() == 1 &&
                     (layout->layout.dtype == DType::kFloat32 || layout->layout.dtype == DType::kFloat64);
  row.dtype = known ? layout->layout.dtype : DType::kFloat32;
  if (tensor != nullptr && known) {
    const std::uint64_t due = context_.step->due.load(std::memory_order_acquire) &
                              tensor->collections.load(std::memory_order_relaxed);
    const std::uint32_t forms = due == 0 ? 0 : context_.plans->now().FormsOf(due);
    constexpr std::uint32_t kUnread = Bit(Form::kDifference) | Bit(Form::kShape);
    row.forms = forms & ~(kUnread | Bit(Form::kRaw));
    row.axis = UnitAxisOf(due);
    row.chunk.tensor = scalar.id;
    row.chunk.layout = scalar.layout;
    row.chunk.dtype = row.dtype;
    row.chunk.raw_bytes = layout->bytes;
    Policy policy = Policy::kDegrade;
    if ((forms & Bit(Form::kRaw)) != 0 && ChooseCollection(due, &row.chunk, &policy))
      row.forms |= Bit(Form::kRaw);
    if ((forms & kUnread) != 0)
      AddGap(scalar.id, format::kNoId, GapReason::kUnsupported, forms & kUnread, layout->bytes);
  }
  pieces_.push_back({scalar.data, static_cast<std::uint32_t>(DTypeSize(scalar.dtype))});
  Late late;
  late.rows.push_back(row);
  Enqueue(place, std::move(late));
}

std::uint64_t Producer::HashOnDevice(std::uint64_t seed, std::span<const DeviceRange> ranges,
                                     const DevicePlace& place) {
  MutexLock lock(mutex_);
  if (context_.device == nullptr || ranges.empty() || ranges.size() > kMostHashed) return 0;
  if (!HasRoom(sizeof(format::EventRow), 0)) return 0;  // counts it
  inputs_.clear();
  pieces_.clear();
  std::uint64_t bytes = 0;
  for (const DeviceRange& range : ranges) {
    bytes += range.bytes + 16;
    if (bytes > device::kMaxPieceBytes) return 0;
    pieces_.push_back({range.data, static_cast<std::uint32_t>(range.bytes)});
  }
  Late late;
  late.token = NextHashToken();
  late.seed = seed;
  late.hashed_pieces = static_cast<std::uint32_t>(pieces_.size());
  const std::uint64_t token = late.token;
  const device::Refusal refusal =
      late_.size() >= kMostReads
          ? device::Refusal::kBusy
          : context_.device->Read(place.device, place.stream, inputs_, pieces_, &late.ticket);
  if (refusal != device::Refusal::kNone) {
    AddGap(format::kNoId, format::kNoId, ReasonOf(refusal), Bit(Form::kHash), 0);
    return 0;
  }
  late_.push_back(std::move(late));
  context_.counters->late_hashes.fetch_add(1, std::memory_order_relaxed);
  return token;
}

void Producer::Enqueue(const DevicePlace& place, Late late) {
  std::chrono::nanoseconds patience = kMaxDeviceWait - std::chrono::nanoseconds(waited_ns_),
                           before = patience;
  const bool patient = device_patient_ && patience.count() > 0;
  const device::Refusal refusal = context_.device == nullptr
                                      ? device::Refusal::kNoDevice
                                      : context_.device->Read(place.device, place.stream, inputs_, pieces_,
                                                              &late.ticket, patient ? &patience : nullptr);
  device_patient_ = false;
  if (patience < before) {
    waited_ns_ += (before - patience).count();
    context_.counters->waits.fetch_add(1, std::memory_order_relaxed);
  }
  if (refusal == device::Refusal::kNone) {
    late_.push_back(std::move(late));
    return;
  }
  for (const LateRow& row : late.rows)
    AddGap(row.tensor, format::kNoId, ReasonOf(refusal), row.forms, row.chunk.raw_bytes);
}

}  // namespace luff::capture
