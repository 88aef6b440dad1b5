// The part of Producer that reads accelerators.
#include <bit>
#include <utility>

#include "capture/producer.h"

namespace luff::capture {
namespace {

using format::Form;
using format::GapReason;

constexpr std::uint32_t kReadable = Bit(Form::kSummary) | Bit(Form::kRaw);

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
  const format::Mode mode = context_.step->mode.load(std::memory_order_relaxed);
  const std::uint64_t step_due = context_.step->due.load(std::memory_order_acquire);
  // NOLINTNEXTLINE(clang-diagnostic-float-equal): exactly one means no factor
  const bool scaled = factor != 1.0 || place.divisor != 0;
  inputs_.clear();
  pieces_.clear();
  Late late;
  std::uint64_t piece_bytes = 0;
  for (const TensorRef& ref : refs) {
    TensorState* tensor = context_.registry->tensor(ref.id);
    if (tensor == nullptr) continue;
    const std::uint64_t due = step_due & tensor->collections.load(std::memory_order_relaxed);
    if (due == 0 || !Plan::RoleSavedIn(tensor->role, mode)) continue;
    std::uint32_t forms = context_.plans->now().FormsOf(due);
    const LayoutState* layout = context_.registry->layout(ref.layout);
    if (layout == nullptr || (ref.data == nullptr && layout->bytes != 0)) {
      AddGap(ref.id, format::kNoId, GapReason::kUnsupported, forms, layout == nullptr ? 0 : layout->bytes);
      continue;
    }
    if (!HasRoom(sizeof(format::SummaryRow), forms)) continue;
    context_.counters->captured.fetch_add(1, std::memory_order_relaxed);
    LateRow row;
    row.tensor = ref.id;
    row.layout = ref.layout;
    row.dtype = row.read_as = layout->layout.dtype;
    row.factor = factor;
    row.chunk.tensor = ref.id;
    row.chunk.layout = ref.layout;
    row.chunk.dtype = row.dtype;
    row.chunk.raw_bytes = layout->bytes;
    std::uint32_t unread = forms & ~kReadable;
    if ((forms & Bit(Form::kRaw)) != 0) {
      const bool possible = !scaled && layout->bytes <= kMaxPiece && layout->layout.is_contiguous() &&
                            piece_bytes + layout->bytes <= device::kMaxPieceBytes / 2;
      Policy policy = Policy::kDegrade;
      if (!possible) {
        unread |= Bit(Form::kRaw);
      } else if (ChooseCollection(due, &row.chunk, &policy)) {
        row.is_piece = true;
        row.forms |= Bit(Form::kRaw);
      }
    }
    if (unread != 0) AddGap(ref.id, format::kNoId, GapReason::kUnsupported, unread, layout->bytes);
    row.forms |= forms & Bit(Form::kSummary);
    if (row.forms == 0) continue;
    const auto data = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(ref.data));
    if (row.is_piece) {
      row.at = static_cast<std::uint32_t>(pieces_.size());
      pieces_.push_back({data, static_cast<std::uint32_t>(layout->bytes)});
      piece_bytes += layout->bytes + 16;
    } else {
      row.at = static_cast<std::uint32_t>(inputs_.size());
      inputs_.push_back({data, &layout->layout});
    }
    late.rows.push_back(row);
  }
  if (late.rows.empty()) return;
  if (place.divisor != 0) {
    late.has_divisor = true;
    late.divisor = static_cast<std::uint32_t>(pieces_.size());
    pieces_.push_back({place.divisor, 4});
  }
  Enqueue(place, std::move(late));
}

void Producer::ScalarOnDevice(const DeviceScalar& scalar, const DevicePlace& place) {
  MutexLock lock(mutex_);
  if (!HasRoom(sizeof(format::ScalarRow), 0)) return;
  inputs_.clear();
  pieces_.clear();
  LateRow row;
  row.tensor = scalar.id;
  row.layout = scalar.layout;
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
    row.forms = forms & Bit(Form::kSummary);
    row.chunk.tensor = scalar.id;
    row.chunk.layout = scalar.layout;
    row.chunk.dtype = row.dtype;
    row.chunk.raw_bytes = layout->bytes;
    Policy policy = Policy::kDegrade;
    if ((forms & Bit(Form::kRaw)) != 0 && ChooseCollection(due, &row.chunk, &policy))
      row.forms |= Bit(Form::kRaw);
    if ((forms & ~kReadable) != 0)
      AddGap(scalar.id, format::kNoId, GapReason::kUnsupported, forms & ~kReadable, layout->bytes);
  }
  pieces_.push_back({scalar.data, static_cast<std::uint32_t>(DTypeSize(scalar.dtype))});
  Late late;
  late.rows.push_back(row);
  Enqueue(place, std::move(late));
}

void Producer::Enqueue(const DevicePlace& place, Late late) {
  const device::Refusal refusal =
      context_.device == nullptr
          ? device::Refusal::kNoDevice
          : context_.device->Read(place.device, place.stream, inputs_, pieces_, &late.ticket);
  if (refusal == device::Refusal::kNone) {
    late_.push_back(std::move(late));
    return;
  }
  for (const LateRow& row : late.rows)
    AddGap(row.tensor, format::kNoId, ReasonOf(refusal), row.forms, row.chunk.raw_bytes);
}

}  // namespace luff::capture
