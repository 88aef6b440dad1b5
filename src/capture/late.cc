#include "capture/late.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <utility>

#include "capture/json_text.h"
#include "capture/plan.h"
#include "capture/scale.h"
#include "luff/format/chunk.h"
#include "luff/tensor/hash.h"

namespace luff::capture {
namespace {

using format::Form;
using format::GapReason;

double InOwnWidth(DType dtype, double value) {
  return dtype == DType::kFloat64 || dtype == DType::kComplex128
             ? value
             : static_cast<double>(static_cast<float>(value));
}

/// Multiplies what the elements were by a factor that is not 0. False for integers.
bool Scale(DType dtype, double factor, Summary* summary) {
  if (!IsFloating(dtype) && !IsComplex(dtype)) return false;
  if (!std::isfinite(factor) || factor == 0) return false;
  summary->sum *= factor;
  summary->sum_sq *= factor * factor;
  summary->abs_sum *= std::abs(factor);
  double low = InOwnWidth(dtype, std::bit_cast<double>(summary->min_bits) * factor);
  double high = InOwnWidth(dtype, std::bit_cast<double>(summary->max_bits) * factor);
  if (factor < 0) std::swap(low, high);
  summary->min_bits = std::bit_cast<std::uint64_t>(low);
  summary->max_bits = std::bit_cast<std::uint64_t>(high);
  return true;
}

/// The first number of a piece; nothing for a dtype that is no real number.
std::optional<double> NumberIn(DType dtype, std::span<const std::byte> piece) {
  if (IsComplex(dtype) || piece.size() < DTypeSize(dtype) || piece.empty()) return std::nullopt;
  double value = 0;
  ToFloat64(dtype, piece.data(), 1, &value);
  return value;
}

constexpr std::uint64_t kTokenPrefix = 0x6c756666;  // "luff"
constexpr std::uint64_t kMostAtOnce = 64ULL << 20;  // bytes that forms of a value in parts are made of

bool IsHashToken(std::uint64_t argument) { return argument >> 32U == kTokenPrefix; }

Layout ContiguousOf(const Layout& layout) {
  Layout out = layout;
  std::int64_t stride = 1;
  for (std::size_t i = out.rank; i-- > 0;) {
    out.strides[i] = stride;
    stride *= out.dims[i];
  }
  return out;
}

class Settling {
 public:
  Settling(Work* work, std::atomic<std::uint64_t>* next_serial) : work_(work), next_serial_(next_serial) {}

  void One(const Late& late) {
    const device::Arrival arrival = late.ticket->arrival();
    if (late.token != 0) {
      if (arrival == device::Arrival::kHere) Hash(late);
      hash_lost_ = hash_lost_ || arrival == device::Arrival::kLost;
      return;
    }
    if (arrival != device::Arrival::kHere) {
      const bool lost = arrival == device::Arrival::kLost;
      (lost ? settled_.lost : settled_.late) += late.rows.size();
      for (const LateRow& row : late.rows)
        AddGap(row, row.forms, lost ? GapReason::kDeviceError : GapReason::kDeviceLate);
      return;
    }
    settled_.here += late.rows.size();
    double divisor = 1;
    if (late.has_divisor) divisor = NumberIn(DType::kFloat32, late.ticket->piece(late.divisor)).value_or(0);
    serials_.assign(late.rows.size(), 0);
    bool keeps = false;
    for (std::size_t i = 0; i < late.rows.size(); ++i) {
      const LateRow& row = late.rows[i];
      if (row.is_scalar) {
        Number(row, late.ticket->piece(row.at));
      } else if (row.is_piece) {
        Piece(row, late.ticket->piece(row.at), row.factor / divisor, i);
      } else {
        keeps = Input(late, row, row.factor / divisor, i) || keeps;
      }
    }
    if (keeps) work_->tickets.push_back(late.ticket);
  }

  /// Gives events their hashes.
  void Resolve() {
    for (format::EventRow& event : work_->batch.events) {
      if (event.kind != static_cast<std::uint16_t>(format::EventKind::kBatch)) continue;
      for (const auto& [token, hash] : hashes_) {
        if (event.argument == token) event.argument = hash;
      }
    }
    settled_.gaps +=
        DropHashTokens(&work_->batch, hash_lost_ ? GapReason::kDeviceError : GapReason::kDeviceLate);
  }
  [[nodiscard]] const Settled& settled() const noexcept { return settled_; }

 private:
  void Hash(const Late& late) {
    std::uint64_t hash = late.seed;
    for (std::uint32_t i = 0; i < late.hashed_pieces; ++i) {
      const std::span<const std::byte> piece = late.ticket->piece(i);
      const std::uint64_t own = HashBytes(piece.data(), piece.size());
      hash = late.hashed_pieces == 1 ? hash ^ own : hash * 31 + own;
    }
    if (IsHashToken(hash)) hash = ~hash;  // nobody could tell it from a token
    hashes_.emplace_back(late.token, hash);
  }

  void Number(const LateRow& row, std::span<const std::byte> piece) {
    const std::optional<double> read = NumberIn(row.read_as, piece);
    if (!read) {
      AddGap(row, row.forms, GapReason::kUnsupported);
      return;
    }
    std::array<std::byte, 8> number{};
    const double value = *read * row.factor;
    work_->batch.scalars.push_back({row.tensor, 0, value});
    const auto narrow = static_cast<float>(value);
    if (row.dtype == DType::kFloat64) {
      std::memcpy(number.data(), &value, sizeof value);
    } else {
      std::memcpy(number.data(), &narrow, sizeof narrow);
    }
    TensorView view{number.data(), {}};
    view.layout.dtype = row.dtype;
    FormsOf(row, row.forms, view);
    if ((row.forms & Bit(Form::kRaw)) != 0) Copy(row, std::span(number).first(DTypeSize(row.dtype)));
  }

  void Piece(const LateRow& row, std::span<const std::byte> piece, double factor, std::size_t i) {
    // NOLINTNEXTLINE(clang-diagnostic-float-equal): exactly one means no factor
    if (factor != 1) {
      scaled_.assign(piece.begin(), piece.end());
      if (!CanScale(factor) ||
          !ScaleInPlace(row.dtype, scaled_.data(), scaled_.size() / DTypeSize(row.dtype), factor)) {
        AddGap(row, row.forms, GapReason::kUnsupported);
        return;
      }
      piece = scaled_;
    }
    FormsOf(row, row.forms, {piece.data(), ContiguousOf(*row.layout)});
    if ((row.forms & Bit(Form::kRaw)) != 0) serials_[i] = Copy(row, piece);
  }

  /// True if chunks point to memory of the ticket.
  bool Input(const Late& late, const LateRow& row, double factor, std::size_t i) {
    const device::Ticket& ticket = *late.ticket;
    Summary summary = ticket.summary(row.at);
    const bool scaled = factor != 1;  // NOLINT(clang-diagnostic-float-equal): exactly one means no factor
    if (scaled && !Scale(row.dtype, factor, &summary)) {
      AddGap(row, row.forms, GapReason::kUnsupported);
      return false;
    }
    if ((row.forms & Bit(Form::kSummary)) != 0) AddSummary(row, summary);
    const std::uint8_t refused = ticket.refused(row.at);
    if ((row.forms & Bit(Form::kDifference)) != 0) {
      Difference d;
      if (ticket.difference(row.at, &d)) {
        AddForm(
            row, Form::kDifference,
            {d.l1, d.sum_sq, d.max, static_cast<double>(d.changed_count), d.previous_l1, d.previous_sum_sq});
      } else if ((refused & device::kWantDifference) != 0) {
        AddGap(row, Bit(Form::kDifference), GapReason::kTooMany);
      }
    }
    const std::uint32_t staged = row.forms & kStaged;
    if (staged == 0) return false;
    if (ticket.rest() != device::Arrival::kHere) {
      AddGap(row, staged, GapReason::kDeviceLate);
      return false;
    }
    if ((staged & Bit(Form::kHistogram)) != 0) {
      const std::span<const std::uint64_t> dense = ticket.histogram(row.at);
      if (dense.empty()) {
        AddGap(row, Bit(Form::kHistogram), GapReason::kDeviceLate);
      } else {
        work_->batch.histograms.emplace_back(row.tensor, ToSparse(dense));
      }
    }
    if ((staged & Bit(Form::kUnits)) != 0) {
      UnitCounts counts;
      if (factor > 0 && ticket.units(row.at, &counts)) {
        for (double& sum : counts.sum) sum *= factor;
        work_->batch.units.emplace_back(row.tensor, std::move(counts));
      } else {
        AddGap(row, Bit(Form::kUnits), factor > 0 ? GapReason::kDeviceLate : GapReason::kUnsupported);
      }
    }
    return (staged & kOfValue) != 0 && Value(late, row, summary, factor, i);
  }

  bool Value(const Late& late, const LateRow& row, const Summary& summary, double factor, std::size_t i) {
    const std::uint32_t forms = row.forms & kOfValue;
    if (row.same_as >= 0) {
      Alias(late, row);
      return false;
    }
    device::Ticket& ticket = *late.ticket;
    const std::uint64_t bytes = row.layout->byte_count(), width = DTypeSize(row.dtype);
    if (ticket.part(row.at, 0) == nullptr) {
      // As where the pool has no block left.
      AddGap(row, forms, GapReason::kPoolFull,
             (forms & Bit(Form::kRaw)) != 0 ? row.chunk.collection : format::kNoId);
      return false;
    }
    const auto parts = static_cast<std::uint32_t>((bytes + device::kPartBytes - 1) / device::kPartBytes);
    const auto size_of = [&](std::uint32_t part) {
      return std::min(device::kPartBytes, bytes - part * device::kPartBytes);
    };
    constexpr std::size_t kHead = sizeof(format::ChunkHeader);
    // NOLINTNEXTLINE(clang-diagnostic-float-equal): exactly one means no factor
    for (std::uint32_t part = 0; factor != 1 && part < parts; ++part) {
      if (!CanScale(factor) ||
          !ScaleInPlace(row.dtype, ticket.part(row.at, part) + kHead, size_of(part) / width, factor)) {
        AddGap(row, forms, GapReason::kUnsupported);
        return false;
      }
    }
    if ((forms & ~Bit(Form::kRaw)) != 0) {
      if (parts == 1) {
        FormsOf(row, forms, {ticket.part(row.at, 0) + kHead, ContiguousOf(*row.layout)});
      } else if (bytes <= kMostAtOnce) {
        whole_.resize(bytes);
        for (std::uint32_t part = 0; part < parts; ++part)
          std::memcpy(whole_.data() + part * device::kPartBytes, ticket.part(row.at, part) + kHead,
                      size_of(part));
        FormsOf(row, forms, {whole_.data(), ContiguousOf(*row.layout)});
      } else {
        AddGap(row, forms & ~Bit(Form::kRaw), GapReason::kUnsupported);
      }
    }
    if ((forms & Bit(Form::kRaw)) == 0) return false;
    ChunkRecord record = row.chunk;
    record.serial = serials_[i] = NextSerial();
    record.try_codecs = summary.zero_count * 8 > summary.count || summary.min_bits == summary.max_bits;
    record.parts = parts;
    for (std::uint32_t part = 0; part < parts; ++part) {
      record.part = part;
      record.raw_bytes = size_of(part);
      record.chunk = ticket.part(row.at, part);
      work_->chunks.push_back(record);
    }
    ++settled_.raw_values;
    settled_.raw_bytes += bytes;
    return true;
  }

  /// The same memory at the same place in the stream as an earlier row of the read.
  void Alias(const Late& late, const LateRow& row) {
    const auto other = static_cast<std::size_t>(row.same_as);
    if (serials_[other] == 0) {
      AddGap(row, Bit(Form::kRaw), GapReason::kPoolFull, row.chunk.collection);
      return;
    }
    ChunkRecord record = row.chunk;
    record.alias = true;
    record.alias_tensor = late.rows[other].tensor;
    record.serial = serials_[other];
    work_->chunks.push_back(record);
  }

  std::uint64_t NextSerial() { return next_serial_->fetch_add(1, std::memory_order_relaxed) + 1; }

  std::uint64_t Copy(const LateRow& row, std::span<const std::byte> bytes) {
    auto memory = std::make_unique<std::byte[]>(format::ChunkSpace(bytes.size()));
    if (!bytes.empty()) std::memcpy(memory.get() + sizeof(format::ChunkHeader), bytes.data(), bytes.size());
    ChunkRecord record = row.chunk;
    record.serial = NextSerial();
    record.chunk = memory.get();
    work_->values.push_back(std::move(memory));
    work_->chunks.push_back(record);
    ++settled_.raw_values;
    settled_.raw_bytes += bytes.size();
    return record.serial;
  }

  /// Forms that are made of the bytes on the host.
  void FormsOf(const LateRow& row, std::uint32_t forms, const TensorView& view) {
    if ((forms & Bit(Form::kSummary)) != 0 && (row.is_piece || row.is_scalar)) {
      Summary summary;
      Summarize(view, &summary);
      AddSummary(row, summary);
    }
    if ((forms & Bit(Form::kHistogram)) != 0) {
      std::vector<std::uint64_t> dense(kHistogramBins);
      AddHistogram(view, dense);
      work_->batch.histograms.emplace_back(row.tensor, ToSparse(dense));
    }
    if ((forms & Bit(Form::kUnits)) != 0) {
      work_->batch.units.emplace_back(row.tensor, UnitCounts{});
      ComputeUnits(view, row.axis, &work_->batch.units.back().second);
    }
    if ((forms & Bit(Form::kHash)) != 0)
      AddForm(row, Form::kHash, {std::bit_cast<double>(ContentHash(view))});
    if ((forms & Bit(Form::kExtra)) != 0) {
      ExtraReductions extra;
      ComputeExtra(view, &extra);
      AddForm(row, Form::kExtra, {extra.abs_min, extra.prod, extra.abs_prod});
    }
  }

  void AddForm(const LateRow& row, Form form, std::initializer_list<double> values) {
    format::FormRow out{};
    out.tensor = row.tensor;
    out.form = static_cast<std::uint16_t>(form);
    std::copy(values.begin(), values.end(), out.values);
    work_->batch.forms.push_back(out);
  }
  void AddSummary(const LateRow& row, const Summary& summary) {
    if (summary.nan_count + summary.inf_count > 0) ++settled_.nonfinite;
    work_->batch.summaries.push_back(SummaryRowOf(row.tensor, row.dtype, summary));
  }
  void AddGap(const LateRow& row, std::uint32_t forms, GapReason reason,
              std::uint32_t collection = format::kNoId) {
    format::GapRow gap{};
    gap.tensor = row.tensor;
    gap.collection = collection;
    gap.reason = static_cast<std::uint16_t>(reason);
    gap.forms = static_cast<std::uint16_t>(forms);
    gap.count = 1;
    gap.bytes = row.chunk.raw_bytes;
    gap.first_step = gap.last_step = -1;
    work_->batch.gaps.push_back(gap);
    ++settled_.gaps;
  }
  static bool CanScale(double factor) { return std::isfinite(factor) && factor != 0; }

  static constexpr std::uint32_t kOfValue = Bit(Form::kRaw) | Bit(Form::kHash) | Bit(Form::kExtra);
  static constexpr std::uint32_t kStaged = kOfValue | Bit(Form::kHistogram) | Bit(Form::kUnits);

  Work* const work_;
  std::atomic<std::uint64_t>* const next_serial_;
  Settled settled_;
  std::vector<std::uint64_t> serials_;                           // of raw values, by row; 0: none
  std::vector<std::pair<std::uint64_t, std::uint64_t>> hashes_;  // token, hash
  bool hash_lost_ = false;
  std::vector<std::byte> scaled_, whole_;
};

}  // namespace

format::SummaryRow SummaryRowOf(TensorId id, DType dtype, const Summary& s) noexcept {
  format::SummaryRow row{};
  row.tensor = id;
  row.dtype = static_cast<std::uint8_t>(dtype);
  row.steps = 1;
  row.count = s.count;
  row.sum = s.sum;
  row.sum_sq = s.sum_sq;
  row.abs_sum = s.abs_sum;
  row.min_bits = s.min_bits;
  row.max_bits = s.max_bits;
  row.zero_count = s.zero_count;
  row.nan_count = s.nan_count;
  row.inf_count = s.inf_count;
  return row;
}

bool HasArrived(const Work& work) noexcept {
  if (work.passed != nullptr && work.passed->arrival() == device::Arrival::kWaits) return false;
  return std::none_of(work.late.begin(), work.late.end(), [](const Late& late) {
    const device::Arrival arrival = late.ticket->arrival();
    return arrival == device::Arrival::kWaits ||
           (arrival == device::Arrival::kHere && late.ticket->rest() == device::Arrival::kWaits);
  });
}

Settled Settle(Work* work, std::atomic<std::uint64_t>* next_serial) {
  Settling settling(work, next_serial);
  for (const Late& late : work->late) settling.One(late);
  settling.Resolve();
  work->late.clear();
  return settling.settled();
}

std::uint64_t NextHashToken() noexcept {
  static std::atomic<std::uint32_t> next{0};
  return kTokenPrefix << 32U | (next.fetch_add(1, std::memory_order_relaxed) + 1);
}

std::uint64_t DropHashTokens(store::StepBatch* batch, format::GapReason reason) {
  const std::uint64_t dropped = std::erase_if(batch->events, [](const format::EventRow& event) {
    return event.kind == static_cast<std::uint16_t>(format::EventKind::kBatch) && IsHashToken(event.argument);
  });
  if (dropped == 0) return 0;
  format::GapRow gap{};
  gap.tensor = gap.collection = format::kNoId;
  gap.reason = static_cast<std::uint16_t>(reason);
  gap.forms = static_cast<std::uint16_t>(Bit(Form::kHash));
  gap.count = dropped;
  gap.first_step = gap.last_step = -1;
  batch->gaps.push_back(gap);
  return dropped;
}

void AddDeviceTimes(Work* work) noexcept {
  const std::shared_ptr<device::StepPassed> passed = std::exchange(work->passed, nullptr);
  store::StepPhases& phases = work->batch.phases;
  if (passed == nullptr || passed->arrival() != device::Arrival::kHere || phases.head.rows == 0) return;
  static_assert(device::kNoPhase == static_cast<std::uint8_t>(format::Phase::kOther));
  const std::span<const device::Stretch> parts = passed->stretches();  // none: only the whole time is known
  std::array<format::PhaseRow, format::kPhaseCount> rows{};
  for (format::PhaseRow& row : rows) row = {0, 1, 0, format::kNoId, -1, -1};
  for (const device::Stretch& part : parts) {
    format::PhaseRow& row = rows[part.phase];
    row.duration_ns = std::max<std::int64_t>(row.duration_ns, 0) + part.ns;
  }
  // Idleness is told of the first phase that begins in the step.
  if (passed->was_idle() && parts.size() > 1) rows[parts[1].phase].count = 1;
  const auto known = static_cast<std::size_t>(
      std::ranges::count_if(rows, [](const format::PhaseRow& row) { return row.duration_ns >= 0; }));
  if (phases.head.rows + known > phases.rows.size() || passed->total_ns() > format::kMaxPhaseNs) return;
  phases.head.device_ns = passed->total_ns();
  for (std::size_t phase = 0; phase < rows.size(); ++phase) {
    if (rows[phase].duration_ns < 0) continue;
    rows[phase].phase = static_cast<std::uint8_t>(phase);
    phases.rows[phases.head.rows++] = rows[phase];
  }
}

std::string EventOf(const device::DeviceError& error) {
  return R"({"kind":"device_error","device":)" + std::to_string(error.device) + R"(,"error":)" +
         JsonQuoted(error.what) + R"(,"place":)" + JsonQuoted(error.where) + R"(,"sticky":)" +
         (error.sticky ? "true" : "false") + "}";
}

}  // namespace luff::capture
