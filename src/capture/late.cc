#include "capture/late.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "capture/json_text.h"
#include "capture/plan.h"
#include "luff/format/chunk.h"

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

class Settling {
 public:
  Settling(Work* work, std::atomic<std::uint64_t>* next_serial) : work_(work), next_serial_(next_serial) {}

  void One(const Late& late) {
    const device::Arrival arrival = late.ticket->arrival();
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
    for (const LateRow& row : late.rows) {
      if (row.is_piece) {
        Piece(row, late.ticket->piece(row.at));
      } else {
        Summary summary = late.ticket->summary(row.at);
        const double factor = row.factor / divisor;
        // NOLINTNEXTLINE(clang-diagnostic-float-equal): exactly one means no factor
        if (factor != 1 && !Scale(row.dtype, factor, &summary)) {
          AddGap(row, row.forms, GapReason::kUnsupported);
          continue;
        }
        AddSummary(row, summary);
      }
    }
  }
  [[nodiscard]] const Settled& settled() const noexcept { return settled_; }

 private:
  void Piece(const LateRow& row, std::span<const std::byte> piece) {
    std::array<std::byte, 8> number{};
    if (row.is_scalar) {
      const std::optional<double> read = NumberIn(row.read_as, piece);
      if (!read) {
        AddGap(row, row.forms, GapReason::kUnsupported);
        return;
      }
      const double value = *read * row.factor;
      work_->batch.scalars.push_back({row.tensor, 0, value});
      const auto narrow = static_cast<float>(value);
      if (row.dtype == DType::kFloat64) {
        std::memcpy(number.data(), &value, sizeof value);
      } else {
        std::memcpy(number.data(), &narrow, sizeof narrow);
      }
      piece = std::span(number).first(DTypeSize(row.dtype));
    }
    if ((row.forms & Bit(Form::kSummary)) != 0) {
      TensorView view{piece.data(), {}};
      view.layout.dtype = row.dtype;
      view.layout.rank = 1;
      view.layout.dims[0] = static_cast<std::int64_t>(piece.size() / DTypeSize(row.dtype));
      view.layout.strides[0] = 1;
      Summary summary;
      Summarize(view, &summary);
      AddSummary(row, summary);
    }
    if ((row.forms & Bit(Form::kRaw)) == 0) return;
    auto memory = std::make_unique<std::byte[]>(format::ChunkSpace(piece.size()));
    std::memcpy(memory.get() + sizeof(format::ChunkHeader), piece.data(), piece.size());
    ChunkRecord record = row.chunk;
    record.serial = next_serial_->fetch_add(1, std::memory_order_relaxed) + 1;
    record.chunk = memory.get();
    work_->values.push_back(std::move(memory));
    work_->chunks.push_back(record);
  }
  void AddSummary(const LateRow& row, const Summary& summary) {
    if (summary.nan_count + summary.inf_count > 0) ++settled_.nonfinite;
    work_->batch.summaries.push_back(SummaryRowOf(row.tensor, row.dtype, summary));
  }
  void AddGap(const LateRow& row, std::uint32_t forms, GapReason reason) {
    format::GapRow gap{};
    gap.tensor = row.tensor;
    gap.collection = format::kNoId;
    gap.reason = static_cast<std::uint16_t>(reason);
    gap.forms = static_cast<std::uint16_t>(forms);
    gap.count = 1;
    gap.bytes = row.chunk.raw_bytes;
    gap.first_step = gap.last_step = -1;
    work_->batch.gaps.push_back(gap);
  }

  Work* const work_;
  std::atomic<std::uint64_t>* const next_serial_;
  Settled settled_;
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
  return std::none_of(work.late.begin(), work.late.end(),
                      [](const Late& late) { return late.ticket->arrival() == device::Arrival::kWaits; });
}

Settled Settle(Work* work, std::atomic<std::uint64_t>* next_serial) {
  Settling settling(work, next_serial);
  for (const Late& late : work->late) settling.One(late);
  work->late.clear();
  return settling.settled();
}

std::string EventOf(const device::DeviceError& error) {
  return R"({"kind":"device_error","device":)" + std::to_string(error.device) + R"(,"error":)" +
         JsonQuoted(error.what) + R"(,"place":)" + JsonQuoted(error.where) + R"(,"sticky":)" +
         (error.sticky ? "true" : "false") + "}";
}

}  // namespace luff::capture
