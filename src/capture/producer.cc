#include "capture/producer.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "capture/late.h"
#include "capture/pieces.h"
#include "capture/scale.h"
#include "luff/base/bytes.h"
#include "luff/base/env.h"
#include "luff/format/chunk.h"
#include "luff/store/loss.h"

namespace luff::capture {
namespace {

using format::Form;
using format::GapReason;

constexpr std::uint32_t kOtherForms =
    Bit(Form::kHash) | Bit(Form::kUnits) | Bit(Form::kDifference) | Bit(Form::kExtra) | Bit(Form::kShape);
constexpr std::uint64_t kLargestPart = kBlockHugeBytes;
constexpr std::uint64_t kUngoverned = 64;           // bytes; losses and other scalars are never left out
constexpr std::uint64_t kMaxScratch = 64ULL << 20;  // larger tensors are not scaled
constexpr std::int64_t kMaxWaitNs = 200'000'000;    // policy `block`, in one step
constexpr std::size_t kUsefulRest = 64U << 10;

// Converts a summary's minimum or maximum to the bits of Summary::min_bits. Values out of range become the
// nearest in range, NaN becomes 0.
std::uint64_t BitsOf(DType dtype, double value) {
  if (IsFloating(dtype) || IsComplex(dtype)) return std::bit_cast<std::uint64_t>(value);
  constexpr double kSigned = 9223372036854775808.0;  // 2^63
  if (!(value >= -kSigned)) value = value < 0 ? -kSigned : 0;
  if (IsSignedInteger(dtype)) {
    return value < kSigned ? static_cast<std::uint64_t>(static_cast<std::int64_t>(value))
                           : std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  }
  if (!(value > 0)) return 0;
  return value < 2 * kSigned ? static_cast<std::uint64_t>(value) : std::numeric_limits<std::uint64_t>::max();
}

}  // namespace

Producer::~Producer() {
  MutexLock lock(mutex_);
  DropBlock();
}

void Producer::Capture(std::span<const TensorRef> refs, double factor) {
  MutexLock lock(mutex_);
  for (const TensorRef& ref : refs) CaptureOne(ref, factor);
}

void Producer::CaptureSummary(TensorId id, LayoutId layout_id, const GivenSummary& given) {
  MutexLock lock(mutex_);
  TensorState* tensor = context_.registry->tensor(id);
  if (tensor == nullptr) return;
  const format::Mode mode = context_.step->mode.load(std::memory_order_relaxed);
  const std::uint64_t due = context_.step->due.load(std::memory_order_acquire) &
                            tensor->collections.load(std::memory_order_relaxed);
  if (due == 0 || !Plan::RoleSavedIn(tensor->role, mode)) return;
  std::uint32_t forms = context_.plans->now().FormsOf(due);
  const LayoutState* layout = context_.registry->layout(layout_id);
  const std::uint64_t count = layout == nullptr ? 0 : layout->layout.element_count();
  if (layout == nullptr || given.zero_count > count || given.nan_count > count - given.zero_count ||
      given.inf_count > count - given.zero_count - given.nan_count) {
    AddGap(id, format::kNoId, GapReason::kUnsupported, forms, layout == nullptr ? 0 : layout->bytes);
    return;
  }
  if (!HasRoom(sizeof(format::SummaryRow), forms)) return;
  context_.counters->captured.fetch_add(1, std::memory_order_relaxed);
  if ((forms & Bit(Form::kSummary)) != 0) {
    forms &= ~Bit(Form::kSummary);
    const DType dtype = layout->layout.dtype;
    Summary summary;
    summary.count = count;
    summary.sum = given.sum;
    summary.sum_sq = given.sum_sq;
    summary.abs_sum = given.abs_sum;
    summary.min_bits = BitsOf(dtype, given.min);
    summary.max_bits = BitsOf(dtype, given.max);
    summary.zero_count = given.zero_count;
    summary.nan_count = given.nan_count;
    summary.inf_count = given.inf_count;
    AddSummary(id, dtype, summary);
  }
  if (forms != 0) AddGap(id, format::kNoId, GapReason::kUnsupported, forms, layout->bytes);
}

void Producer::CaptureOne(const TensorRef& ref, double factor) {
  TensorState* tensor = context_.registry->tensor(ref.id);
  if (tensor == nullptr) return;
  const format::Mode mode = context_.step->mode.load(std::memory_order_relaxed);
  const std::uint64_t due = context_.step->due.load(std::memory_order_acquire) &
                            tensor->collections.load(std::memory_order_relaxed);
  if (due == 0 || !Plan::RoleSavedIn(tensor->role, mode)) return;
  std::uint32_t forms = context_.plans->now().FormsOf(due);
  const LayoutState* layout = context_.registry->layout(ref.layout);
  if (layout == nullptr || (ref.data == nullptr && layout->bytes != 0)) {
    AddGap(ref.id, format::kNoId, GapReason::kUnsupported, forms, layout == nullptr ? 0 : layout->bytes);
    return;
  }
  if (!HasRoom(sizeof(format::SummaryRow), forms)) return;
  context_.counters->captured.fetch_add(1, std::memory_order_relaxed);
  if ((ref.flags & kReplicaFlag) != 0 && (forms & Bit(Form::kRaw)) != 0 && layout->bytes <= kLargestPart) {
    forms = (forms & ~Bit(Form::kRaw)) | Bit(Form::kHash);
    context_.counters->replicas.fetch_add(1, std::memory_order_relaxed);
  }
  TensorView view{ref.data, layout->layout};
  std::uint64_t key = ref.storage_key;
  if (factor != 1.0) {  // NOLINT(clang-diagnostic-float-equal): exactly one means no factor
    if (layout->bytes > kMaxScratch) {
      AddGap(ref.id, format::kNoId, GapReason::kUnsupported, forms, layout->bytes);
      return;
    }
    if (scratch_.size() < layout->bytes) scratch_.resize(layout->bytes);
    CopyContiguous(view, scratch_.data());
    if (!ScaleInPlace(view.layout.dtype, scratch_.data(), view.layout.element_count(), factor)) {
      AddGap(ref.id, format::kNoId, GapReason::kUnsupported, forms, layout->bytes);
      return;
    }
    view.data = scratch_.data();
    std::int64_t stride = 1;
    for (std::size_t i = view.layout.rank; i-- > 0;) {
      view.layout.strides[i] = stride;
      stride *= view.layout.dims[i];
    }
    key = 0;
  }
  CaptureView(ref.id, ref.layout, tensor, view, layout->bytes, key, due, forms);
}

std::uint64_t Producer::TooSmallFor(std::uint64_t bytes, std::uint64_t collections) const {
  std::uint64_t found = 0;
  for (std::uint64_t rest = collections; rest != 0; rest &= rest - 1) {
    const int at = std::countr_zero(rest);
    const CollectionConfig& c = context_.plans->now().collection(at);
    // What retention keeps of other collections is bounded by it, and `max_bytes` does not apply.
    if (c.keep.kind == store::Retention::Kind::kAll && c.max_bytes != 0 && bytes > c.max_bytes) {
      found |= std::uint64_t{1} << at;
    }
  }
  return found;
}

bool Producer::ChooseCollection(std::uint64_t due, ChunkRecord* record, Policy* policy) {
  const std::uint64_t bytes = record->raw_bytes;
  const std::uint64_t wanted = due & context_.plans->now().raw_collections();
  std::uint64_t allowed = wanted;
  auto reason = static_cast<GapReason>(context_.step->deny_reason.load(std::memory_order_relaxed));
  if (bytes > kUngoverned) {
    allowed &= ~context_.step->raw_denied.load(std::memory_order_relaxed);
    const std::uint64_t roomy = allowed & ~TooSmallFor(bytes, allowed);
    if (roomy == 0 && allowed != 0) reason = GapReason::kByteBudget;
    allowed = roomy;
  }
  if (allowed == 0) {
    AddGap(format::kNoId, static_cast<std::uint32_t>(std::countr_zero(wanted)), reason, Bit(Form::kRaw),
           bytes);
    return false;
  }
  const int first = std::countr_zero(allowed);
  record->collection = static_cast<std::uint32_t>(first);
  record->keep = context_.plans->now().collection(first).keep;
  *policy = context_.plans->now().collection(first).policy;
  for (std::uint64_t rest = allowed & (allowed - 1); rest != 0; rest &= rest - 1) {  // keep the longest
    const store::Retention other = context_.plans->now().collection(std::countr_zero(rest)).keep;
    using Kind = store::Retention::Kind;
    if (record->keep.kind == Kind::kAll || other.kind == Kind::kAll) {
      record->keep = {};
    } else if (other.kind == Kind::kThin) {
      record->keep = other;
    } else if (record->keep.kind == Kind::kLast) {
      record->keep.last_steps = std::max(record->keep.last_steps, other.last_steps);
    }
  }
  return true;
}

void Producer::CaptureView(TensorId id, LayoutId layout_id, TensorState* tensor, const TensorView& view,
                           std::uint64_t bytes, std::uint64_t key, std::uint64_t due, std::uint32_t forms) {
  ChunkRecord record;
  record.tensor = id;
  record.layout = layout_id;
  record.dtype = view.layout.dtype;
  record.raw_bytes = bytes;
  Policy policy = Policy::kDegrade;
  bool raw = (forms & Bit(Form::kRaw)) != 0 && ChooseCollection(due, &record, &policy);
  const bool summarize = (forms & (Bit(Form::kSummary) | Bit(Form::kHistogram))) != 0;
  Seen* slot = nullptr;
  if (raw && key != 0 && bytes >= format::kChunkAlign && bytes <= kLargestPart) {
    slot = SlotFor(key, view.data, layout_id);
    if (slot->step_tag == step_tag_ && CaptureAlias(id, view, bytes, forms, *slot, record)) {
      OtherForms(id, layout_id, tensor, view, bytes, due, forms);
      return;
    }
  }
  Summary summary;
  if (raw && bytes > kLargestPart) {
    CaptureLarge(record, view, summarize, &summary);
    if ((forms & Bit(Form::kHistogram)) != 0) {
      dense_.resize(kHistogramBins);
      AddHistogram(view, dense_);
    }
  } else {
    std::byte* chunk = nullptr;
    if (raw && policy == Policy::kDegrade && context_.pool->under_pressure() &&
        CaptureDegraded(record, view, policy)) {
      raw = false;
    }
    if (raw) {
      chunk = Reserve(bytes, policy);
      if (chunk == nullptr) AddGap(id, record.collection, GapReason::kPoolFull, Bit(Form::kRaw), bytes);
    }
    std::byte* copy = chunk == nullptr ? nullptr : chunk + sizeof(format::ChunkHeader);
    if ((forms & Bit(Form::kHistogram)) != 0) {
      dense_.resize(kHistogramBins);
      SummarizeWithHistogram(view, &summary, dense_, copy);
    } else if (summarize) {
      Summarize(view, &summary, copy);
    } else if (copy != nullptr) {
      CopyContiguous(view, copy);
    }
    if (chunk != nullptr) {
      record.chunk = chunk;
      record.serial = context_.next_serial->fetch_add(1, std::memory_order_relaxed) + 1;
      // Without a summary, the writer thread looks at the values itself.
      record.try_codecs =
          !summarize || summary.zero_count * 8 > summary.count || summary.min_bits == summary.max_bits;
      if (slot != nullptr) {
        *slot = {key,         view.data, layout_id, step_tag_,         id,     record.serial, block_,
                 generation_, copy,      summarize, record.try_codecs, summary};
      }
      context_.counters->raw_values.fetch_add(1, std::memory_order_relaxed);
      context_.counters->raw_bytes.fetch_add(bytes, std::memory_order_relaxed);
      chunks_.push_back(record);
    }
  }
  if (summarize) AddSummary(id, view.layout.dtype, summary);
  if ((forms & Bit(Form::kHistogram)) != 0) {
    rows_.histograms.emplace_back(id, ToSparse(dense_));
    row_bytes_ += rows_.histograms.back().second.size() * sizeof(HistogramBin);
    std::fill(dense_.begin(), dense_.end(), 0);
  }
  if ((forms & kOtherForms) != 0) OtherForms(id, layout_id, tensor, view, bytes, due, forms);
}

bool Producer::CaptureAlias(TensorId id, const TensorView& view, std::uint64_t bytes, std::uint32_t forms,
                            const Seen& seen, const ChunkRecord& own) {
  const bool summarize = (forms & Bit(Form::kSummary)) != 0;
  if ((summarize && !seen.has_summary) || (forms & Bit(Form::kHistogram)) != 0) return false;
  if (!view.layout.is_contiguous() || !context_.pool->Pin(seen.block, seen.generation)) return false;
  const bool same = std::memcmp(seen.copy, view.data, bytes) == 0;
  context_.pool->Unpin(seen.block);
  if (!same) return false;  // changed in place since
  ChunkRecord record = own;
  record.alias = true;
  record.alias_tensor = seen.tensor;
  record.serial = seen.serial;
  chunks_.push_back(record);
  if (summarize) AddSummary(id, view.layout.dtype, seen.summary);
  context_.counters->aliases.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool Producer::CaptureDegraded(const ChunkRecord& base, const TensorView& view, Policy policy) {
  if (view.layout.dtype != DType::kFloat32 && view.layout.dtype != DType::kFloat64) return false;
  if (base.raw_bytes <= kUngoverned || base.raw_bytes > kLargestPart) return false;
  const std::uint64_t count = view.layout.element_count();
  LayoutState* full = context_.registry->layout(base.layout);
  LayoutId narrow = full->bfloat16.load(std::memory_order_acquire);
  if (narrow == format::kNoId) {
    Result<Layout> layout = Layout::Contiguous(DType::kBFloat16, view.layout.shape());
    if (!layout.ok()) return false;
    narrow = context_.registry->DefineLayout(*layout, {}, {});
    if (narrow == format::kNoId) return false;
    full->bfloat16.store(narrow, std::memory_order_release);
  }
  std::byte* chunk = Reserve(count * 2, policy);
  if (chunk == nullptr) return false;
  const std::byte* from = view.data;
  if (!view.layout.is_contiguous()) {
    if (scratch_.size() < base.raw_bytes) scratch_.resize(base.raw_bytes);
    CopyContiguous(view, scratch_.data());
    from = scratch_.data();
  }
  static_cast<void>(ToBFloat16(view.layout.dtype, from, count, chunk + sizeof(format::ChunkHeader)));
  ChunkRecord record = base;
  record.layout = narrow;
  record.dtype = DType::kBFloat16;
  record.lossy = true;
  record.raw_bytes = count * 2;
  record.chunk = chunk;
  record.serial = context_.next_serial->fetch_add(1, std::memory_order_relaxed) + 1;
  chunks_.push_back(record);
  context_.counters->degraded.fetch_add(1, std::memory_order_relaxed);
  AddGap(base.tensor, base.collection, GapReason::kPoolFull, Bit(Form::kRaw),
         base.raw_bytes - record.raw_bytes);
  return true;
}

void Producer::CaptureLarge(const ChunkRecord& base, const TensorView& view, bool summarize,
                            Summary* summary) {
  std::uint32_t parts = 0;
  ForEachPiece(view, kLargestPart, [&](const TensorView&) { ++parts; });
  const std::uint64_t serial = context_.next_serial->fetch_add(1, std::memory_order_relaxed) + 1;
  std::uint32_t part = 0;
  bool complete = true;
  bool any = false;
  const Policy policy = context_.plans->now().collection(static_cast<int>(base.collection)).policy;
  // The analysis does not see that the lambda runs with the lock that this function requires.
  ForEachPiece(view, kLargestPart, [&](const TensorView& piece) LUFF_NO_THREAD_SAFETY_ANALYSIS {
    const std::uint64_t bytes = piece.layout.byte_count();
    Summary one;
    std::byte* chunk = nullptr;
    if (complete) {
      chunk = Reserve(bytes, policy);
      complete = chunk != nullptr;
    }
    std::byte* copy = chunk == nullptr ? nullptr : chunk + sizeof(format::ChunkHeader);
    if (summarize) {
      Summarize(piece, &one, copy);
      if (any) {
        summary->Merge(one, piece.layout.dtype);
      } else {
        *summary = one;
      }
      any = true;
    } else if (copy != nullptr) {
      CopyContiguous(piece, copy);
    }
    if (chunk != nullptr) {
      ChunkRecord record = base;
      record.part = part;
      record.parts = parts;
      record.raw_bytes = bytes;
      record.chunk = chunk;
      record.serial = serial;
      record.try_codecs = !summarize || one.zero_count * 8 > one.count || one.min_bits == one.max_bits;
      chunks_.push_back(record);
    }
    ++part;
  });
  if (complete) {
    context_.counters->raw_values.fetch_add(1, std::memory_order_relaxed);
    context_.counters->raw_bytes.fetch_add(base.raw_bytes, std::memory_order_relaxed);
    return;
  }
  // Drops the parts that are still here; the writer thread drops values with missing parts.
  std::erase_if(chunks_, [&](const ChunkRecord& r) { return r.serial == serial && !r.alias; });
  AddGap(base.tensor, base.collection, GapReason::kPoolFull, Bit(Form::kRaw), base.raw_bytes);
}

void Producer::OtherForms(TensorId id, LayoutId layout_id, TensorState* tensor, const TensorView& view,
                          std::uint64_t bytes, std::uint64_t due, std::uint32_t forms) {
  if ((forms & kOtherForms) == 0) return;
  const auto add = [&](Form form, std::initializer_list<double> values) LUFF_REQUIRES(mutex_) {
    format::FormRow row{};
    row.tensor = id;
    row.form = static_cast<std::uint16_t>(form);
    std::copy(values.begin(), values.end(), row.values);
    rows_.forms.push_back(row);
  };
  if ((forms & Bit(Form::kShape)) != 0) add(Form::kShape, {static_cast<double>(layout_id)});
  if ((forms & Bit(Form::kHash)) != 0) add(Form::kHash, {std::bit_cast<double>(ContentHash(view))});
  if ((forms & Bit(Form::kExtra)) != 0) {
    ExtraReductions extra;
    ComputeExtra(view, &extra);
    add(Form::kExtra, {extra.abs_min, extra.prod, extra.abs_prod});
  }
  if ((forms & Bit(Form::kUnits)) != 0) {
    rows_.units.emplace_back(id, UnitCounts{});
    ComputeUnits(view, UnitAxisOf(due), &rows_.units.back().second);
    row_bytes_ += rows_.units.back().second.positive.size() * 24;
  }
  if ((forms & Bit(Form::kDifference)) != 0) TakeDifference(id, layout_id, tensor, view, bytes);
}

UnitAxis Producer::UnitAxisOf(std::uint64_t due) const {
  for (std::uint64_t rest = due; rest != 0; rest &= rest - 1) {
    const CollectionConfig& c = context_.plans->now().collection(std::countr_zero(rest));
    if ((c.forms & Bit(Form::kUnits)) != 0) return c.unit_axis;
  }
  return UnitAxis::kChannel;
}

void Producer::TakeDifference(TensorId id, LayoutId layout_id, TensorState* tensor, const TensorView& view,
                              std::uint64_t bytes) {
  Registry* registry = context_.registry;
  MutexLock lock(registry->difference_mutex);
  if (tensor->previous != nullptr && tensor->previous_layout == layout_id) {
    Difference d;
    ComputeDifference(view, tensor->previous.get(), true, &d);
    format::FormRow row{};
    row.tensor = id;
    row.form = static_cast<std::uint16_t>(Form::kDifference);
    const double values[] = {d.l1,          d.sum_sq,         d.max, static_cast<double>(d.changed_count),
                             d.previous_l1, d.previous_sum_sq};
    std::copy(std::begin(values), std::end(values), row.values);
    rows_.forms.push_back(row);
    return;
  }
  registry->difference_bytes -= tensor->previous_bytes;
  tensor->previous.reset();
  tensor->previous_bytes = 0;
  if (registry->difference_bytes + bytes > context_.difference_max_bytes) {
    AddGap(id, format::kNoId, GapReason::kTooMany, Bit(Form::kDifference), bytes);
    return;
  }
  tensor->previous = std::make_unique<std::byte[]>(bytes + 1);
  tensor->previous_bytes = bytes;
  tensor->previous_layout = layout_id;
  registry->difference_bytes += bytes;
  CopyContiguous(view, tensor->previous.get());
}

std::byte* Producer::Reserve(std::uint64_t bytes, Policy policy) {
  const std::uint64_t space = format::ChunkSpace(bytes);
  if (block_ == nullptr || used_ + space > kBlockBytes) {
    HandOver(context_.step->number.load(std::memory_order_relaxed));
    DropBlock();
    block_ = context_.pool->Acquire();
    if (block_ == nullptr && policy == Policy::kBlock && waited_ns_ < kMaxWaitNs) {
      context_.counters->waits.fetch_add(1, std::memory_order_relaxed);
      const std::int64_t start_ns = Env::Real().NowMonotonicNs();
      block_ = context_.pool->AcquireWithin(std::chrono::nanoseconds(kMaxWaitNs - waited_ns_));
      waited_ns_ += Env::Real().NowMonotonicNs() - start_ns;
    }
    begin_ = used_ = 0;
    if (block_ == nullptr) return nullptr;
    generation_ = context_.pool->Generation(block_);
  }
  std::byte* chunk = block_->data + used_;
  used_ += space;
  return chunk;
}

void Producer::HandOver(std::uint64_t step) {
  if (chunks_.empty() && used_ == begin_) return;
  std::unique_ptr<Work> work = context_.queue->Blank();
  work->kind = Work::Kind::kSlice;
  work->global_step = context_.step->expected_step.load(std::memory_order_relaxed);
  work->step = step;
  if (block_ != nullptr) {
    BlockPool::Reference(block_);
    work->block = block_;
    begin_ = used_ = AlignUp(used_, format::kPageBytes);
  }
  work->chunks.swap(chunks_);
  if (context_.queue->Push(work)) return;
  for (const ChunkRecord& r : work->chunks) {
    AddGap(r.tensor, r.collection, GapReason::kPoolFull, Bit(Form::kRaw), r.raw_bytes);
  }
  if (work->block != nullptr) context_.pool->Release(work->block);
  context_.queue->Recycle(std::move(work));
}

bool Producer::HasRoom(std::uint64_t bytes, std::uint32_t forms) {
  if (row_bytes_ <= kMaxStepBytes) {
    row_bytes_ += bytes;
    return true;
  }
  context_.counters->gaps.fetch_add(1, std::memory_order_relaxed);
  ++too_many_.count;
  too_many_.bytes += bytes;
  too_many_.forms = static_cast<std::uint16_t>(too_many_.forms | forms);
  return false;
}

void Producer::DropBlock() {
  if (block_ != nullptr) context_.pool->Release(block_);
  block_ = nullptr;
  begin_ = used_ = 0;
}

void Producer::AddSummary(TensorId id, DType dtype, const Summary& s) {
  if (s.nan_count + s.inf_count > 0) context_.counters->nonfinite.fetch_add(1, std::memory_order_relaxed);
  rows_.summaries.push_back(SummaryRowOf(id, dtype, s));
}

void Producer::AddGap(TensorId id, std::uint32_t collection, GapReason reason, std::uint32_t forms,
                      std::uint64_t bytes) {
  context_.counters->gaps.fetch_add(1, std::memory_order_relaxed);
  if (id == format::kNoId && !rows_.gaps.empty()) {
    format::GapRow& last = rows_.gaps.back();
    if (last.tensor == id && last.collection == collection &&
        last.reason == static_cast<std::uint16_t>(reason) && last.forms == forms) {
      ++last.count;
      last.bytes += bytes;
      return;
    }
  }
  format::GapRow row{};
  row.tensor = id;
  row.collection = collection;
  row.reason = static_cast<std::uint16_t>(reason);
  row.forms = static_cast<std::uint16_t>(forms);
  row.count = 1;
  row.bytes = bytes;
  row.first_step = row.last_step = -1;  // the writer thread fills them in
  rows_.gaps.push_back(row);
}

Producer::Seen* Producer::SlotFor(std::uint64_t key, const std::byte* address, LayoutId layout) {
  if (seen_count_ * 2 >= seen_.size()) {
    std::vector<Seen> old(std::max<std::size_t>(256, seen_.size() * 2));
    old.swap(seen_);
    seen_count_ = 0;
    for (const Seen& s : old) {
      if (s.step_tag == step_tag_) *SlotFor(s.key, s.address, s.layout) = s;
    }
  }
  const std::size_t mask = seen_.size() - 1;
  std::uint64_t hash = (key ^ reinterpret_cast<std::uintptr_t>(address) ^ std::uint64_t{layout} << 48U) *
                       0x9E3779B97F4A7C15ULL;
  for (std::size_t i = hash >> 32;; ++i) {
    Seen& slot = seen_[i & mask];
    if (slot.step_tag != step_tag_) {
      ++seen_count_;
      return &slot;
    }
    if (slot.key == key && slot.address == address && slot.layout == layout) return &slot;
  }
}

void Producer::EndStep(std::uint64_t step, store::StepBatch* batch, std::vector<Late>* late) {
  MutexLock lock(mutex_);
  HandOver(step);
  if (block_ != nullptr && kBlockBytes - used_ < kUsefulRest) DropBlock();
  const auto move = [](auto* from, auto* to) {
    if (to->empty()) {
      to->swap(*from);
    } else {
      to->insert(to->end(), std::make_move_iterator(from->begin()), std::make_move_iterator(from->end()));
    }
    from->clear();
  };
  move(&rows_.summaries, &batch->summaries);
  move(&rows_.histograms, &batch->histograms);
  move(&rows_.units, &batch->units);
  move(&rows_.forms, &batch->forms);
  move(&rows_.scalars, &batch->scalars);
  move(&rows_.events, &batch->events);
  move(&rows_.event_json, &batch->event_json);
  move(&rows_.gaps, &batch->gaps);
  if (!late_.empty()) move(&late_, late);
  if (too_many_.count != 0) {
    too_many_.tensor = too_many_.collection = format::kNoId;
    too_many_.reason = static_cast<std::uint16_t>(GapReason::kTooMany);
    too_many_.first_step = too_many_.last_step = -1;
    batch->gaps.push_back(std::exchange(too_many_, {}));
  }
  ++step_tag_;
  row_bytes_ = 0;
  seen_count_ = 0;
  waited_ns_ = 0;
}

void Producer::Abandon() {
  MutexLock lock(mutex_);
  chunks_.clear();
  used_ = begin_;
  rows_.summaries.clear();
  rows_.histograms.clear();
  rows_.units.clear();
  rows_.forms.clear();
  rows_.scalars.clear();
  rows_.gaps.clear();
  std::erase_if(late_, [](const Late& late) { return late.token == 0; });  // events are kept
  ++step_tag_;
  row_bytes_ = store::RowBytes(rows_);
  seen_count_ = 0;
  waited_ns_ = 0;
}

}  // namespace luff::capture
