// Typed bodies of frames.
#include <algorithm>
#include <cstring>
#include <string>

#include "luff/base/bytes.h"
#include "luff/format/frames.h"
#include "luff/format/names.h"

namespace luff::format {
namespace {

bool Aligned(const std::byte* data) noexcept { return reinterpret_cast<std::uintptr_t>(data) % 8 == 0; }

template <typename T>
Result<std::span<const T>> Rows(std::span<const std::byte> body, const char* what) {
  if (!Aligned(body.data()))
    return InvalidArgument(std::string(what) + " in memory that is not 8-byte aligned");
  if (body.size() % sizeof(T) != 0) {
    return Corruption("found " + std::to_string(body.size()) + " bytes of " + what +
                      ", expected a multiple of " + std::to_string(sizeof(T)));
  }
  return std::span<const T>(reinterpret_cast<const T*>(body.data()), body.size() / sizeof(T));
}

template <typename T>
Result<T> One(std::span<const std::byte> body, const char* what) {
  T value;
  if (body.size() != sizeof(T)) {
    return Corruption("found " + std::to_string(body.size()) + " bytes of " + what + ", expected " +
                      std::to_string(sizeof(T)));
  }
  std::memcpy(&value, body.data(), sizeof(T));
  return value;
}

}  // namespace

Result<std::span<const SummaryRow>> ParseSummaryRowsUntrusted(std::span<const std::byte> body) {
  LUFF_ASSIGN_OR_RETURN(const auto rows, Rows<SummaryRow>(body, "summary rows"));
  for (const SummaryRow& row : rows) {
    if (!IsKnownDType(row.dtype))
      return Corruption("summary row of unknown dtype " + std::to_string(row.dtype));
  }
  return rows;
}

Result<std::span<const IndexRow>> ParseIndexRowsUntrusted(std::span<const std::byte> body) {
  LUFF_ASSIGN_OR_RETURN(const auto rows, Rows<IndexRow>(body, "index rows"));
  for (const IndexRow& row : rows) {
    if (!IsKnownDType(row.dtype))
      return Corruption("index row of unknown dtype " + std::to_string(row.dtype));
    if (row.codec > static_cast<std::uint8_t>(Codec::kConstant)) {
      return Corruption("index row of unknown codec " + std::to_string(row.codec));
    }
    if (row.parts == 0 || row.part >= row.parts) {
      return Corruption("index row with part " + std::to_string(row.part) + " of " +
                        std::to_string(row.parts));
    }
    if (row.offset % kChunkAlign != 0) return Corruption("index row with an offset that no chunk can have");
  }
  return rows;
}

Result<std::span<const FormRow>> ParseFormRowsUntrusted(std::span<const std::byte> body) {
  return Rows<FormRow>(body, "form rows");
}
Result<std::span<const ScalarRow>> ParseScalarRowsUntrusted(std::span<const std::byte> body) {
  return Rows<ScalarRow>(body, "scalar rows");
}
Result<std::span<const EventRow>> ParseEventRowsUntrusted(std::span<const std::byte> body) {
  return Rows<EventRow>(body, "event rows");
}
Result<std::span<const GapRow>> ParseGapRowsUntrusted(std::span<const std::byte> body) {
  return Rows<GapRow>(body, "gap rows");
}
Result<std::span<const AckRow>> ParseAckRowsUntrusted(std::span<const std::byte> body) {
  return Rows<AckRow>(body, "acknowledgements");
}
Result<std::span<const RelocateRow>> ParseRelocateRowsUntrusted(std::span<const std::byte> body) {
  return Rows<RelocateRow>(body, "relocations");
}
Result<std::span<const RetireRow>> ParseRetireRowsUntrusted(std::span<const std::byte> body) {
  return Rows<RetireRow>(body, "retirements");
}

Result<PhasesView> ParsePhasesUntrusted(std::span<const std::byte> body) {
  if (body.size() < sizeof(PhasesHead)) {
    return Corruption("found " + std::to_string(body.size()) + " bytes of phases, expected at least " +
                      std::to_string(sizeof(PhasesHead)));
  }
  PhasesView view;
  LUFF_ASSIGN_OR_RETURN(view.head, One<PhasesHead>(body.first(sizeof(PhasesHead)), "a step's phases"));
  LUFF_ASSIGN_OR_RETURN(view.rows, Rows<PhaseRow>(body.subspan(sizeof(PhasesHead)), "phase rows"));
  if (view.rows.size() != view.head.rows || view.rows.size() > kMaxPhaseRows) {
    return Corruption("found " + std::to_string(view.rows.size()) + " phase rows, expected " +
                      std::to_string(view.head.rows) + ", at most " + std::to_string(kMaxPhaseRows));
  }
  const PhasesHead& head = view.head;
  for (const std::int64_t ns : {head.cpu_ns, head.run_queue_ns, head.device_ns}) {
    if (ns < -1 || ns > kMaxPhaseNs) return Corruption("phases with a time of " + std::to_string(ns) + " ns");
  }
  if (head.steps == 0 || head.wall_ns < 0 || head.wall_ns > kMaxPhaseNs) {
    return Corruption("phases of " + std::to_string(head.steps) + " steps that took " +
                      std::to_string(head.wall_ns) + " ns");
  }
  std::int64_t left = head.wall_ns;
  for (const PhaseRow& row : view.rows) {
    if (row.duration_ns < 0 || row.duration_ns > (row.clock == 0 ? left : kMaxPhaseNs)) {
      return Corruption("phases that do not fit into their step");
    }
    if (row.clock == 0) left -= row.duration_ns;
  }
  if (left != 0) return Corruption("phases that lack " + std::to_string(left) + " ns of their step");
  return view;
}

Result<ModuleTimesView> ParseModuleTimesUntrusted(std::span<const std::byte> body) {
  if (body.size() < sizeof(ModuleTimesHead)) {
    return Corruption("found " + std::to_string(body.size()) + " bytes of module times, expected at least " +
                      std::to_string(sizeof(ModuleTimesHead)));
  }
  ModuleTimesView view;
  LUFF_ASSIGN_OR_RETURN(view.head,
                        One<ModuleTimesHead>(body.first(sizeof(ModuleTimesHead)), "a step's module times"));
  LUFF_ASSIGN_OR_RETURN(view.rows,
                        Rows<ModuleTimeRow>(body.subspan(sizeof(ModuleTimesHead)), "module times"));
  if (view.rows.size() != view.head.rows || view.rows.size() > kMaxModuleRows) {
    return Corruption("found " + std::to_string(view.rows.size()) + " rows of module times, expected " +
                      std::to_string(view.head.rows) + ", at most " + std::to_string(kMaxModuleRows));
  }
  if (view.head.steps == 0) return Corruption("module times of no step");
  for (const ModuleTimeRow& row : view.rows) {
    const std::int64_t all[] = {row.forward_ns, row.forward_self_ns, row.backward_ns, row.backward_self_ns};
    for (const std::int64_t ns : all) {
      if (ns < -1 || ns > kMaxPhaseNs) return Corruption("a module that took " + std::to_string(ns) + " ns");
    }
    if (row.forward_self_ns < 0 || row.calls == 0)
      return Corruption("a module with " + std::to_string(row.calls) + " calls in " +
                        std::to_string(row.forward_self_ns) + " ns");
  }
  return view;
}

Result<StepMark> ParseStepMarkUntrusted(std::span<const std::byte> body) {
  LUFF_ASSIGN_OR_RETURN(const StepMark mark, One<StepMark>(body, "a step mark"));
  if (mark.mode < static_cast<std::uint8_t>(Mode::kTrain) ||
      mark.mode > static_cast<std::uint8_t>(Mode::kGlobal)) {
    return Corruption("step mark of unknown mode " + std::to_string(mark.mode));
  }
  return mark;
}
Result<EndMark> ParseEndMarkUntrusted(std::span<const std::byte> body) {
  return One<EndMark>(body, "an end mark");
}
Result<std::int64_t> ParseHeartbeatUntrusted(std::span<const std::byte> body) {
  return One<std::int64_t>(body, "a heartbeat");
}

// ---- Definitions ----

namespace {

struct TensorDefHead {
  std::uint32_t id;
  std::uint16_t role;
  std::uint16_t collections;
  std::uint16_t name_bytes, path_bytes, type_bytes;
  std::uint16_t reserved;
};
static_assert(sizeof(TensorDefHead) == 16);

struct LayoutDefHead {
  std::uint32_t id;
  std::uint8_t dtype, rank;
  std::uint8_t shard;  // 1: global shape and offset follow
  std::uint8_t reserved;
};
static_assert(sizeof(LayoutDefHead) == 8);

struct UnitHead {
  std::uint32_t tensor, units;
  std::uint64_t values_per_unit;
  std::uint32_t bytes;  // of what follows
  std::uint8_t axis;
  std::uint8_t reserved[3];
};
static_assert(sizeof(UnitHead) == 24);

std::string_view Cut(std::string_view text) noexcept { return text.substr(0, kMaxNameBytes); }

}  // namespace

void PutTensorDef(const TensorDefView& def, FrameBuffer* to) {
  TensorDefHead head{};
  head.id = def.id;
  head.role = static_cast<std::uint16_t>(def.role);
  const auto collections = def.collections.first(std::min<std::size_t>(def.collections.size(), 0xFFFF));
  head.collections = static_cast<std::uint16_t>(collections.size());
  const std::string_view texts[3] = {Cut(def.name), Cut(def.module_path), Cut(def.module_type)};
  head.name_bytes = static_cast<std::uint16_t>(texts[0].size());
  head.path_bytes = static_cast<std::uint16_t>(texts[1].size());
  head.type_bytes = static_cast<std::uint16_t>(texts[2].size());
  to->PutValue(head);
  to->PutRows(collections);
  for (const auto text : texts) to->Put(text.data(), text.size());
  to->PutZeros(AlignUp(to->body_bytes(), 8) - to->body_bytes());
}

Result<std::vector<TensorDefView>> ParseTensorDefsUntrusted(std::span<const std::byte> body) {
  if (!Aligned(body.data())) return InvalidArgument("definitions in memory that is not 8-byte aligned");
  std::vector<TensorDefView> defs;
  ByteCursor cursor(body);
  while (!cursor.at_end()) {
    TensorDefHead head;
    TensorDefView def;
    std::span<const std::byte> collections;
    if (!cursor.Read(&head) || !cursor.ReadBytes(head.collections * std::uint64_t{4}, &collections) ||
        !cursor.ReadText(head.name_bytes, &def.name) || !cursor.ReadText(head.path_bytes, &def.module_path) ||
        !cursor.ReadText(head.type_bytes, &def.module_type) || !cursor.Align(8)) {
      return Corruption("definition of a tensor is longer than its frame");
    }
    if (std::max({head.name_bytes, head.path_bytes, head.type_bytes}) > kMaxNameBytes) {
      return Corruption("definition of a tensor with a text of " +
                        std::to_string(std::max({head.name_bytes, head.path_bytes, head.type_bytes})) +
                        " bytes, expected at most " + std::to_string(kMaxNameBytes));
    }
    def.id = head.id;
    def.role = head.role < kRoleNames.size() ? static_cast<Role>(head.role) : Role::kOther;
    def.collections = {reinterpret_cast<const std::uint32_t*>(collections.data()), head.collections};
    defs.push_back(def);
  }
  return defs;
}

void PutLayoutDef(const LayoutDefView& def, FrameBuffer* to) {
  LayoutDefHead head{};
  head.id = def.id;
  head.dtype = static_cast<std::uint8_t>(def.layout.dtype);
  head.rank = def.layout.rank;
  head.shard = def.global_shape.size() == def.layout.rank && def.global_offset.size() == def.layout.rank &&
               def.layout.rank > 0;
  to->PutValue(head);
  to->PutRows(def.layout.shape());
  if (head.shard != 0) {
    to->PutRows(def.global_shape);
    to->PutRows(def.global_offset);
  }
}

Result<std::vector<LayoutDefView>> ParseLayoutDefsUntrusted(std::span<const std::byte> body) {
  if (!Aligned(body.data())) return InvalidArgument("definitions in memory that is not 8-byte aligned");
  std::vector<LayoutDefView> defs;
  ByteCursor cursor(body);
  while (!cursor.at_end()) {
    LayoutDefHead head;
    LayoutDefView def;
    if (!cursor.Read(&head)) return Corruption("definition of a layout is longer than its frame");
    if (!IsKnownDType(head.dtype) || head.rank > kMaxRank || head.shard > 1) {
      return Corruption("layout of unknown dtype " + std::to_string(head.dtype) + " or rank " +
                        std::to_string(head.rank) + ", expected a rank of at most 8");
    }
    std::span<const std::byte> dims;
    const std::uint64_t row = head.rank * std::uint64_t{8};
    if (!cursor.ReadBytes(row * (head.shard != 0 ? 3 : 1), &dims)) {
      return Corruption("definition of a layout is longer than its frame");
    }
    const auto* first = reinterpret_cast<const std::int64_t*>(dims.data());
    LUFF_ASSIGN_OR_RETURN(def.layout, Layout::Contiguous(static_cast<DType>(head.dtype), {first, head.rank}));
    def.id = head.id;
    if (head.shard != 0) {
      def.global_shape = {first + head.rank, head.rank};
      def.global_offset = {first + std::size_t{2} * head.rank, head.rank};
    }
    defs.push_back(def);
  }
  return defs;
}

void PutDocument(std::string_view name, std::string_view json, FrameBuffer* to) {
  name = Cut(name);
  to->PutValue(static_cast<std::uint16_t>(name.size()));
  to->Put(name.data(), name.size());
  to->Put(json.data(), json.size());
}

Result<DocumentView> ParseDocumentUntrusted(std::span<const std::byte> body) {
  ByteCursor cursor(body);
  std::uint16_t name_bytes = 0;
  DocumentView view;
  if (!cursor.Read(&name_bytes) || !cursor.ReadText(name_bytes, &view.name) ||
      !cursor.ReadText(cursor.remaining(), &view.json)) {
    return Corruption("name of a document is longer than its frame");
  }
  return view;
}

// ---- Histograms and units ----

void PutHistogram(std::uint32_t tensor, std::span<const HistogramBin> bins, FrameBuffer* to) {
  to->PutValue(tensor);
  to->PutValue(static_cast<std::uint32_t>(bins.size()));
  std::uint64_t previous = 0;
  for (const HistogramBin& bin : bins) {
    to->PutVarint(bin.bin - previous);
    to->PutVarint(bin.count);
    previous = bin.bin;
  }
}

Result<std::vector<HistogramView>> ParseHistogramsUntrusted(std::span<const std::byte> body) {
  std::vector<HistogramView> views;
  ByteCursor cursor(body);
  while (!cursor.at_end()) {
    HistogramView view;
    if (!cursor.Read(&view.tensor) || !cursor.Read(&view.bin_count) || view.bin_count > kHistogramBins) {
      return Corruption("histogram with more bins than there are, or cut off");
    }
    const std::size_t begin = cursor.position();
    std::uint64_t value = 0;
    for (std::uint32_t i = 0; i < view.bin_count * 2; ++i) {
      if (!cursor.ReadVarint(&value)) return Corruption("histogram is longer than its frame");
    }
    view.varints = body.subspan(begin, cursor.position() - begin);
    views.push_back(view);
  }
  return views;
}

Status DecodeHistogramUntrusted(const HistogramView& view, SparseHistogram* out) {
  out->clear();
  ByteCursor cursor(view.varints);
  std::uint64_t bin = 0;
  for (std::uint32_t i = 0; i < view.bin_count; ++i) {
    std::uint64_t delta = 0;
    std::uint64_t count = 0;
    if (!cursor.ReadVarint(&delta) || !cursor.ReadVarint(&count)) return Corruption("histogram is cut off");
    if (delta >= kHistogramBins || (i > 0 && delta == 0)) return Corruption("histogram with unsorted bins");
    bin += delta;
    if (bin >= kHistogramBins) return Corruption("histogram with a bin beyond 4095");
    out->push_back({static_cast<std::uint16_t>(bin), count});
  }
  return Status::Ok();
}

void PutUnits(std::uint32_t tensor, const UnitCounts& units, FrameBuffer* to) {
  UnitHead head{};
  head.tensor = tensor;
  head.units = static_cast<std::uint32_t>(units.positive.size());
  head.values_per_unit = units.values_per_unit;
  head.axis = static_cast<std::uint8_t>(units.axis);
  std::uint64_t bytes = units.positive.size() * 4;
  const auto varint_bytes = [](std::uint64_t value) {
    std::uint64_t n = 1;
    while (value >= 0x80) {
      value >>= 7;
      ++n;
    }
    return n;
  };
  for (const auto value : units.positive) bytes += varint_bytes(value);
  for (const auto value : units.zero) bytes += varint_bytes(value);
  head.bytes = static_cast<std::uint32_t>(bytes);
  to->PutValue(head);
  for (const auto value : units.positive) to->PutVarint(value);
  for (const auto value : units.zero) to->PutVarint(value);
  for (const auto value : units.sum) to->PutValue(static_cast<float>(value));
}

Result<std::vector<UnitsView>> ParseUnitsUntrusted(std::span<const std::byte> body) {
  std::vector<UnitsView> views;
  ByteCursor cursor(body);
  while (!cursor.at_end()) {
    UnitHead head;
    UnitsView view;
    if (!cursor.Read(&head) || !cursor.ReadBytes(head.bytes, &view.bytes)) {
      return Corruption("unit counts are longer than their frame");
    }
    // A unit has two varints and a float: six bytes at least. So the count is bounded by the bytes.
    if (head.units > head.bytes / 6 || head.axis > static_cast<std::uint8_t>(UnitAxis::kAllButFirst)) {
      return Corruption("found " + std::to_string(head.units) + " units in " + std::to_string(head.bytes) +
                        " bytes");
    }
    view.tensor = head.tensor;
    view.axis = static_cast<UnitAxis>(head.axis);
    view.unit_count = head.units;
    view.values_per_unit = head.values_per_unit;
    views.push_back(view);
  }
  return views;
}

Status DecodeUnitsUntrusted(const UnitsView& view, UnitCounts* out) {
  ByteCursor cursor(view.bytes);
  if (view.unit_count > view.bytes.size() / 6) return Corruption("more units than bytes");
  out->axis = view.axis;
  out->values_per_unit = view.values_per_unit;
  out->positive.resize(view.unit_count);
  out->zero.resize(view.unit_count);
  out->sum.resize(view.unit_count);
  for (auto& value : out->positive) {
    if (!cursor.ReadVarint(&value)) return Corruption("unit counts are cut off");
  }
  for (auto& value : out->zero) {
    if (!cursor.ReadVarint(&value)) return Corruption("unit counts are cut off");
  }
  for (auto& value : out->sum) {
    float sum = 0;
    if (!cursor.Read(&sum)) return Corruption("unit counts are cut off");
    value = static_cast<double>(sum);
  }
  return Status::Ok();
}

}  // namespace luff::format
