#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "query/run_trial.h"

namespace luff::query {
namespace {

constexpr std::size_t kCachedColumns = 64;

Summary SummaryOf(const format::SummaryRow& row) noexcept {
  Summary s;
  s.count = row.count;
  s.sum = row.sum;
  s.sum_sq = row.sum_sq;
  s.abs_sum = row.abs_sum;
  s.min_bits = row.min_bits;
  s.max_bits = row.max_bits;
  s.zero_count = row.zero_count;
  s.nan_count = row.nan_count;
  s.inf_count = row.inf_count;
  return s;
}

double Bound(std::uint64_t bits, DType dtype) noexcept {
  if (IsSignedInteger(dtype)) return static_cast<double>(std::bit_cast<std::int64_t>(bits));
  if (IsUnsignedInteger(dtype)) return static_cast<double>(bits);
  return std::bit_cast<double>(bits);
}

/// Numbers that follow from rows first..last of a block, appended to `out`: those of Summary, as loops over
/// columns. Nothing finite means sums of zero, so that 0 / 0 gives the NaN that it should.
void AppendDerived(const format::SummaryBlock& block, std::size_t first, std::size_t last,
                   SummaryColumns* out) {
  const std::size_t at = out->mean.size();
  const std::size_t rows = last - first;
  for (std::vector<double>* column :
       {&out->mean, &out->std, &out->abs_mean, &out->l2, &out->min, &out->max}) {
    column->resize(at + rows);
  }
  double* mean = out->mean.data() + at;
  double* std = out->std.data() + at;
  double* abs_mean = out->abs_mean.data() + at;
  double* l2 = out->l2.data() + at;
  for (std::size_t i = 0; i < rows; ++i) {
    const std::size_t k = first + i;
    const auto n = static_cast<double>(
        static_cast<std::int64_t>(block.count[k] - block.nan_count[k] - block.inf_count[k]));
    const double m = block.sum[k] / n;
    const double v = block.sum_sq[k] / n - m * m;
    mean[i] = m;
    std[i] = std::sqrt(v < 0 ? 0.0 : v);
    abs_mean[i] = block.abs_sum[k] / n;
    l2[i] = std::sqrt(block.sum_sq[k]);
  }
  for (std::size_t i = 0; i < rows; ++i) {
    const std::size_t k = first + i;
    const auto dtype = static_cast<DType>(block.dtype[k]);
    const bool none = block.count[k] == block.nan_count[k] + block.inf_count[k];
    out->min[at + i] = none ? std::numeric_limits<double>::quiet_NaN() : Bound(block.min_bits[k], dtype);
    out->max[at + i] = none ? std::numeric_limits<double>::quiet_NaN() : Bound(block.max_bits[k], dtype);
  }
}

/// Room for as many rows as there are steps, so that nothing is moved while rows are appended.
void Reserve(SummaryColumns* out, std::size_t rows) {
  for (auto* column : {&out->global_step, &out->mode_step, &out->update}) column->reserve(rows);
  for (auto* column : {&out->count, &out->zero_count, &out->nan_count, &out->inf_count})
    column->reserve(rows);
  for (auto* column : {&out->min, &out->max, &out->mean, &out->std, &out->sum, &out->abs_mean, &out->l2})
    column->reserve(rows);
  out->mode.reserve(rows);
}

template <typename To, typename From>
void Append(std::vector<To>* to, std::span<const From> from) {
  to->insert(to->end(), from.begin(), from.end());
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

Result<Summary> RunTrial::ReadSummary(TensorId id, std::int64_t step, Mode mode,
                                      std::optional<std::uint32_t> worker) const {
  LUFF_ASSIGN_OR_RETURN(const SummaryAt at, ReadSummaryAt(id, step, mode, worker));
  return at.summary;
}

Status RunTrial::AppendSummaries(const WorkerState& worker, TensorId id, Mode mode,
                                 SummaryColumns* out) const {
  const bool uniform = steps_.Uniform(mode);
  const auto append = [&](const format::SummaryBlock& block, std::size_t first, std::size_t last,
                          std::uint32_t n) {
    const auto rows = last - first;
    const auto copy = [&](auto* to, auto from) { Append(to, from.subspan(first, rows)); };
    copy(&out->count, block.count);
    copy(&out->zero_count, block.zero_count);
    copy(&out->nan_count, block.nan_count);
    copy(&out->inf_count, block.inf_count);
    copy(&out->sum, block.sum);
    AppendDerived(block, first, last, out);
    const auto number = [&](auto* to, const auto& from) {
      to->insert(to->end(), from.begin() + n, from.begin() + n + static_cast<std::ptrdiff_t>(rows));
    };
    number(&out->global_step, steps_.global_steps());
    number(&out->mode_step, steps_.mode_steps());
    number(&out->update, steps_.updates());
    number(&out->mode, steps_.modes());
  };
  for (const auto& segment : worker.reader->segments()) {
    const auto local = worker.local_id.find(ScopedId(segment->header().epoch, id));
    if (local == worker.local_id.end()) continue;
    const auto slot = segment->FindSlot(local->second);
    if (!slot) continue;
    LUFF_ASSIGN_OR_RETURN(const auto block, segment->Summaries(*slot));
    if (block.size() == 0) continue;
    const auto ordinals = segment->steps().ordinal;
    // Whole stretches of consecutive steps are copied at once; `first` and `last` bound the stretch.
    std::size_t first = 0;
    while (first < block.size()) {
      const std::uint32_t n = worker.StepOf(ordinals[block.step[first]]);
      const bool wanted =
          n != kNoStep &&
          (uniform || (!steps_.superseded(n) && (mode == Mode::kGlobal || steps_.mode(n) == mode)));
      if (!wanted || (first + 1 < block.size() && block.step[first + 1] == block.step[first])) {
        ++first;  // of a tensor that was written twice in one step the last counts
        continue;
      }
      std::size_t last = first + 1;
      for (; last < block.size(); ++last) {
        const std::uint32_t next = worker.StepOf(ordinals[block.step[last]]);
        if (next != n + (last - first)) break;
        if (!uniform && (steps_.superseded(next) || (mode != Mode::kGlobal && steps_.mode(next) != mode)))
          break;
        if (last + 1 < block.size() && block.step[last + 1] == block.step[last]) break;
      }
      append(block, first, last, n);
      first = last;
    }
  }
  return Status::Ok();
}

Result<std::shared_ptr<const SummaryColumns>> RunTrial::SharedSummaries(
    TensorId id, Mode mode, std::optional<std::uint32_t> worker) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  for (auto at = cache_.begin(); at != cache_.end(); ++at) {
    if (at->id != id || at->mode != mode || at->worker != worker || at->version != version_) continue;
    cache_.splice(cache_.begin(), cache_, at);
    return cache_.front().columns;
  }
  LUFF_ASSIGN_OR_RETURN(const auto candidates, Candidates(worker));
  auto columns = std::make_shared<SummaryColumns>();
  std::size_t rows = 0;
  for (const WorkerState* candidate : candidates) {
    if (rows != 0) break;
    for (const auto& segment : candidate->reader->segments()) {
      const auto local = candidate->local_id.find(ScopedId(segment->header().epoch, id));
      const auto slot = local == candidate->local_id.end() ? std::nullopt : segment->FindSlot(local->second);
      if (!slot) continue;
      LUFF_ASSIGN_OR_RETURN(const auto block, segment->Summaries(*slot));
      rows += block.size();
    }
  }
  Reserve(columns.get(), rows);
  for (const WorkerState* candidate : candidates) {
    LUFF_RETURN_IF_ERROR(AppendSummaries(*candidate, id, mode, columns.get()));
    if (!columns->count.empty()) break;  // the first worker that has it
  }
  std::erase_if(cache_, [&](const Cached& old) {
    return old.version != version_ || (old.id == id && old.mode == mode && old.worker == worker);
  });
  cache_.push_front({id, mode, worker, version_, columns});
  if (cache_.size() > kCachedColumns) cache_.pop_back();
  return std::shared_ptr<const SummaryColumns>(std::move(columns));
}

Result<SummaryColumns> RunTrial::Summaries(TensorId id, Mode mode,
                                           std::optional<std::uint32_t> worker) const {
  LUFF_ASSIGN_OR_RETURN(const auto shared, SharedSummaries(id, mode, worker));
  return *shared;
}

Result<std::vector<ScalarAt>> RunTrial::Scalars(TensorId id, Mode mode,
                                                std::optional<std::uint32_t> worker) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  LUFF_ASSIGN_OR_RETURN(const auto candidates, Candidates(worker));
  std::vector<ScalarAt> result;
  for (const WorkerState* candidate : candidates) {
    for (const auto& segment : candidate->reader->segments()) {
      const auto local = candidate->local_id.find(ScopedId(segment->header().epoch, id));
      if (local == candidate->local_id.end()) continue;
      const auto slot = segment->FindSlot(local->second);
      if (!slot) continue;
      LUFF_ASSIGN_OR_RETURN(const auto block, segment->Scalars(*slot));
      for (std::size_t i = 0; i < block.size(); ++i) {
        const std::uint32_t n = candidate->StepOf(segment->steps().ordinal[block.step[i]]);
        if (n == kNoStep || steps_.superseded(n) || (mode != Mode::kGlobal && steps_.mode(n) != mode))
          continue;
        const StepInfo info = steps_.at(n);
        result.push_back({info.global_step, info.mode_step, info.update, info.mode, block.value[i]});
      }
    }
    if (!result.empty()) break;
  }
  return result;
}

}  // namespace luff::query
