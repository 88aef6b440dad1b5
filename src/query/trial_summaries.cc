#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "luff/base/work_bound.h"
#include "query/run_trial.h"
#include "query/stretches.h"

namespace luff::query {
namespace {

// Of columns, without the steps' numbers, which are shared.
constexpr std::size_t kRowBytes = 11 * sizeof(double);

/// Converts the bits of bounds to numbers, as Summary::min() and max() do.
void Bounds(std::span<const std::uint64_t> bits, DType dtype, double* to) noexcept {
  if (IsSignedInteger(dtype)) {
    for (std::size_t i = 0; i < bits.size(); ++i)
      to[i] = static_cast<double>(std::bit_cast<std::int64_t>(bits[i]));
  } else if (IsUnsignedInteger(dtype)) {
    for (std::size_t i = 0; i < bits.size(); ++i) to[i] = static_cast<double>(bits[i]);
  } else if (!bits.empty()) {
    std::memcpy(to, bits.data(), bits.size_bytes());
  }
}

/// Adjacent rows of a block that belong to adjacent steps.
struct Stretch {
  const format::SummaryBlock& block;
  std::size_t first, rows;
  std::uint32_t n;  // position of the first step in the step table
};

/// Columns of a stretch, and the columns derived from them.
struct Derivation {
  const std::uint64_t *count, *nans, *infs;
  const double *sum, *sum_sq, *abs_sum;
  double *mean, *std, *abs_mean, *l2;
  std::size_t rows;
};

/// Applies the formulas of Summary. A row without finite values has sums of zero, so 0 / 0 gives the NaN that
/// it should. Returns true if there is such a row.
[[gnu::always_inline]] inline bool DeriveRows(const Derivation& d) noexcept {
  std::uint64_t full = ~std::uint64_t{0};
  for (std::size_t i = 0; i < d.rows; ++i) {
    const std::uint64_t finite = d.count[i] - d.nans[i] - d.infs[i];
    const auto n = static_cast<double>(static_cast<std::int64_t>(finite));
    const double m = d.sum[i] / n;
    const double v = d.sum_sq[i] / n - m * m;
    d.mean[i] = m;
    d.std[i] = std::sqrt(v < 0 ? 0.0 : v);
    d.abs_mean[i] = d.abs_sum[i] / n;
    d.l2[i] = std::sqrt(d.sum_sq[i]);
    full &= finite == 0 ? 0 : ~std::uint64_t{0};
  }
  return full == 0;
}

bool DeriveAnywhere(const Derivation& d) noexcept { return DeriveRows(d); }

// Divisions and square roots are most of the work. AVX2 does twice as many at once, and gives the same bits,
// because it has no fused multiplication.
#if defined(__x86_64__)
[[gnu::target("avx2")]] bool DeriveByAvx2(const Derivation& d) noexcept { return DeriveRows(d); }
const auto kDerive = __builtin_cpu_supports("avx2") != 0 ? DeriveByAvx2 : DeriveAnywhere;
#else
const auto kDerive = DeriveAnywhere;
#endif

/// Appends the numbers derived from the rows of a stretch to their columns.
void Derive(const Stretch& s, SummaryColumns* out) {
  const auto column = [&](const auto& from) { return from.data() + s.first; };
  const std::uint64_t* count = column(s.block.count);
  const std::uint64_t* nans = column(s.block.nan_count);
  const std::uint64_t* infs = column(s.block.inf_count);
  const bool empty = kDerive({count, nans, infs, column(s.block.sum), column(s.block.sum_sq),
                              column(s.block.abs_sum), out->mean.Extend(s.rows), out->std.Extend(s.rows),
                              out->abs_mean.Extend(s.rows), out->l2.Extend(s.rows), s.rows});
  double* min = out->min.Extend(s.rows);
  double* max = out->max.Extend(s.rows);
  const std::uint8_t* dtype = column(s.block.dtype);
  for (std::size_t i = 0; i < s.rows;) {  // nearly always all rows at once
    const auto run = static_cast<std::size_t>(
        std::find_if(dtype + i, dtype + s.rows, [&](std::uint8_t d) { return d != dtype[i]; }) - (dtype + i));
    Bounds(s.block.min_bits.subspan(s.first + i, run), static_cast<DType>(dtype[i]), min + i);
    Bounds(s.block.max_bits.subspan(s.first + i, run), static_cast<DType>(dtype[i]), max + i);
    i += run;
  }
  for (std::size_t i = 0; empty && i < s.rows; ++i) {
    if (count[i] == nans[i] + infs[i]) min[i] = max[i] = std::numeric_limits<double>::quiet_NaN();
  }
}

void Reserve(SummaryColumns* out, std::size_t rows) {
  for (auto* column : {&out->count, &out->zero_count, &out->nan_count, &out->inf_count})
    column->Reserve(rows);
  for (auto* column : {&out->min, &out->max, &out->mean, &out->std, &out->sum, &out->abs_mean, &out->l2})
    column->Reserve(rows);
}

}  // namespace

Result<SummaryAt> RunTrial::ReadSummaryAt(TensorId id, std::int64_t step, Mode mode,
                                          std::optional<std::uint32_t> worker) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  LUFF_ASSIGN_OR_RETURN(const std::uint32_t n, StepOrError(step, mode));
  SummaryAt result;
  LUFF_ASSIGN_OR_RETURN(const bool found, FirstWith(id, n, worker, [&](const Rows& rows) -> Result<bool> {
                          if (!rows.slot) return false;
                          LUFF_ASSIGN_OR_RETURN(const auto block, rows.segment->Summaries(*rows.slot));
                          const auto after =
                              std::upper_bound(block.step.begin(), block.step.end(), rows.index);
                          if (after == block.step.begin() || *std::prev(after) != rows.index) return false;
                          const format::SummaryRow row = block.row(
                              static_cast<std::size_t>(after - block.step.begin()) - 1, rows.local_id);
                          result.summary = SummaryOf(row);
                          result.dtype = static_cast<DType>(row.dtype);
                          result.merged_steps = row.steps;
                          result.worker = rows.worker->reader->worker();
                          return true;
                        }));
  if (!found) return NotSaved(id, What::kSummary, step, mode);
  const StepInfo info = steps_.at(n);
  result.global_step = info.global_step;
  result.mode_step = info.mode_step;
  result.update = info.update;
  result.mode = info.mode;
  return result;
}

/// Appends the numbers of the steps at these positions of the step table. All tensors share the memory if the
/// positions are one range.
void RunTrial::AppendNumbers(std::span<const std::pair<std::uint32_t, std::size_t>> positions,
                             SummaryColumns* out) const {
  const bool one = positions.size() == 1 && out->mode.empty();
  if (one && numbers_.mode.size() != steps_.size()) {
    const auto all = [&](auto* column, const auto& from) {
      *column = {};
      std::copy(from.begin(), from.end(), column->Extend(from.size()));
    };
    all(&numbers_.global_step, steps_.global_steps());
    all(&numbers_.mode_step, steps_.mode_steps());
    all(&numbers_.update, steps_.updates());
    all(&numbers_.mode, steps_.modes());
  }
  for (const auto& [first, count] : positions) {
    const auto take = [&, n = first, rows = count](auto* to, const auto& known, const auto& from) {
      if (one) {
        *to = known.Part(n, rows);
      } else {
        std::copy_n(from.begin() + n, rows, to->Extend(rows));
      }
    };
    take(&out->global_step, numbers_.global_step, steps_.global_steps());
    take(&out->mode_step, numbers_.mode_step, steps_.mode_steps());
    take(&out->update, numbers_.update, steps_.updates());
    take(&out->mode, numbers_.mode, steps_.modes());
  }
}

Status RunTrial::AppendSummaries(const WorkerState& worker, TensorId id, Mode mode,
                                 SummaryColumns* out) const {
  const bool uniform = steps_.Uniform(mode);
  const auto counts = [&](std::uint32_t n) {
    return !steps_.superseded(n) && (mode == Mode::kGlobal || steps_.mode(n) == mode);
  };
  std::vector<std::pair<std::uint32_t, std::size_t>> positions;  // in the step table: first, how many
  const auto append = [&](const Stretch& s) {
    const auto copy = [&](auto* to, const auto& from) {
      std::copy_n(from.data() + s.first, s.rows, to->Extend(s.rows));
    };
    copy(&out->count, s.block.count);
    copy(&out->zero_count, s.block.zero_count);
    copy(&out->nan_count, s.block.nan_count);
    copy(&out->inf_count, s.block.inf_count);
    copy(&out->sum, s.block.sum);
    Derive(s, out);
    if (!positions.empty() && positions.back().first + positions.back().second == s.n) {
      positions.back().second += s.rows;
    } else {
      positions.emplace_back(s.n, s.rows);
    }
  };
  for (const auto& segment : worker.reader->segments()) {
    const auto local = worker.local_id.find(ScopedId(segment->header().epoch, id));
    if (local == worker.local_id.end()) continue;
    const auto slot = segment->FindSlot(local->second);
    if (!slot) continue;
    LUFF_RETURN_IF_ERROR(WorkBound::GoOn());
    LUFF_ASSIGN_OR_RETURN(const auto block, segment->Summaries(*slot, store::Again::kNo));
    EachStretch(worker, *segment, block, 0, block.size(),
                [&](std::size_t first, std::size_t rows, std::uint32_t n) {
                  if (uniform) {
                    append({block, first, rows, n});
                    return;
                  }
                  for (std::uint32_t i = 0, begin = 0; i <= rows; ++i) {
                    if (i < rows && counts(n + i)) continue;
                    if (i > begin) append({block, first + begin, i - begin, n + begin});
                    begin = i + 1;
                  }
                });
  }
  AppendNumbers(positions, out);
  return Status::Ok();
}

namespace {

/// Adds the steps of `other` that `columns` lacks: each step comes from the first worker that has it. Usually
/// there are none, because the workers of a job pass the same steps; a resumed one may have others.
void AddStepsOf(const SummaryColumns& other, SummaryColumns* columns) {
  if (std::ranges::equal(other.global_step, columns->global_step)) return;
  const std::unordered_set<std::int64_t> known(columns->global_step.begin(), columns->global_step.end());
  struct Row {
    std::int64_t step;
    const SummaryColumns* of;
    std::size_t at;
  };
  std::vector<Row> rows;
  for (std::size_t i = 0; i < columns->count.size(); ++i)
    rows.push_back({columns->global_step[i], columns, i});
  for (std::size_t i = 0; i < other.count.size(); ++i) {
    if (!known.contains(other.global_step[i])) rows.push_back({other.global_step[i], &other, i});
  }
  if (rows.size() == columns->count.size()) return;
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.step < b.step; });
  SummaryColumns merged;
  SummaryColumns::ForEach([&](const char*, auto column) {
    auto* to = (merged.*column).Extend(rows.size());
    for (const Row& row : rows) *to++ = (row.of->*column)[row.at];
  });
  *columns = std::move(merged);
}

}  // namespace

Result<std::shared_ptr<const SummaryColumns>> RunTrial::SharedSummaries(
    TensorId id, Mode mode, std::optional<std::uint32_t> worker) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  if (auto kept = KeptColumns(id, mode, worker)) return kept;
  LUFF_ASSIGN_OR_RETURN(const auto candidates, Candidates(worker));
  auto columns = std::make_shared<SummaryColumns>();
  std::size_t rows = 0;
  for (const WorkerState* candidate : candidates) {
    if (rows != 0) break;
    for (const auto& segment : candidate->reader->segments()) {
      const auto local = candidate->local_id.find(ScopedId(segment->header().epoch, id));
      const auto slot = local == candidate->local_id.end() ? std::nullopt : segment->FindSlot(local->second);
      if (!slot) continue;
      LUFF_RETURN_IF_ERROR(WorkBound::GoOn());
      LUFF_ASSIGN_OR_RETURN(const std::size_t own, segment->SummaryRowCount(*slot));
      rows += own;
    }
  }
  // Reserves room for all rows, so that appending moves nothing.
  Reserve(columns.get(), rows);
  for (const WorkerState* candidate : candidates) {
    if (columns->count.empty()) {
      LUFF_RETURN_IF_ERROR(AppendSummaries(*candidate, id, mode, columns.get()));
      continue;
    }
    SummaryColumns other;
    LUFF_RETURN_IF_ERROR(AppendSummaries(*candidate, id, mode, &other));
    AddStepsOf(other, columns.get());
  }
  KeepColumns(id, mode, worker, kRowBytes, columns);
  return std::shared_ptr<const SummaryColumns>(std::move(columns));
}

Result<std::vector<ScalarAt>> RunTrial::Scalars(TensorId id, Mode mode,
                                                std::optional<std::uint32_t> worker) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  LUFF_ASSIGN_OR_RETURN(const auto candidates, Candidates(worker));
  std::vector<ScalarAt> result;
  std::vector<std::uint8_t> taken(candidates.size() > 1 ? steps_.size() : 0, 0);  // by an earlier worker
  for (const WorkerState* candidate : candidates) {
    const std::size_t before = result.size();
    std::vector<std::uint32_t> own;
    for (const auto& segment : candidate->reader->segments()) {
      const auto local = candidate->local_id.find(ScopedId(segment->header().epoch, id));
      if (local == candidate->local_id.end()) continue;
      const auto slot = segment->FindSlot(local->second);
      if (!slot) continue;
      LUFF_RETURN_IF_ERROR(WorkBound::GoOn());
      LUFF_ASSIGN_OR_RETURN(const auto block, segment->Scalars(*slot, store::Again::kNo));
      for (std::size_t i = 0; i < block.size(); ++i) {
        const std::uint32_t n = candidate->StepOf(segment->steps().ordinal[block.step[i]]);
        if (n == kNoStep || steps_.superseded(n) || (mode != Mode::kGlobal && steps_.mode(n) != mode))
          continue;
        if (!taken.empty()) {
          if (taken[n] != 0) continue;
          own.push_back(n);
        }
        const StepInfo info = steps_.at(n);
        result.push_back({info.global_step, info.mode_step, info.update, info.mode, block.value[i]});
      }
    }
    for (const std::uint32_t n : own) taken[n] = 1;
    if (before != 0 && result.size() != before) {
      std::stable_sort(result.begin(), result.end(),
                       [](const ScalarAt& a, const ScalarAt& b) { return a.global_step < b.global_step; });
    }
  }
  return result;
}

}  // namespace luff::query
