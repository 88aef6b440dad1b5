#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "luff/base/work_bound.h"
#include "query/smdebug_trial.h"
#include "query/smdebug_with-inl.h"

namespace luff::query {
namespace {

using format::SmdebugReduction;

constexpr std::size_t kRowBytes = 15 * sizeof(double);  // of columns
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

}  // namespace

bool SmdebugTrial::HasSummary(DType dtype) noexcept {
  return dtype != DType::kString && dtype != DType::kInvalid;
}

Result<TensorView> SmdebugTrial::ViewOf(const Value& value) {
  TensorView view;
  // Collapses dimensions beyond what a layout can hold; statistics do not depend on them.
  std::vector<std::int64_t> dims = value.shape;
  while (dims.size() > static_cast<std::size_t>(kMaxRank)) {
    dims[dims.size() - 2] *= dims.back();
    dims.pop_back();
  }
  LUFF_ASSIGN_OR_RETURN(view.layout, Layout::Contiguous(value.dtype, dims));
  if (view.layout.byte_count() != value.bytes.size())
    return Corruption("a value's bytes do not fit its shape");
  view.data = value.bytes.data();
  return view;
}

std::vector<SavedReduction> SmdebugTrial::ReductionsOf(const Found& found) const {
  std::vector<SavedReduction> saved;
  for (std::size_t i = 0; found.reduced && i < found.reductions.size(); ++i) {
    if (found.reductions[i] == nullptr) continue;
    const Result<double> value = ReadReduction(*found.reductions[i]);
    if (!value.ok()) {
      directory_.AddProblem(std::string(value.status().message()));
      continue;
    }
    const auto which = static_cast<SmdebugReduction>(i % format::kSmdebugReductionCount);
    saved.push_back(
        {std::string(format::SmdebugReductionName(which)), i >= format::kSmdebugReductionCount, *value});
  }
  return saved;
}

/// Derives a summary from reductions. Numbers that were not saved and cannot be derived are NaN. The count of
/// zeros is 0; the count of NaN or infinite elements is 1 if a reduction is NaN or infinite, else 0. If
/// neither the shape nor two reductions determine the number of elements, it is taken as one, so that at
/// least the means are right.
std::optional<SmdebugTrial::Summarized> SmdebugTrial::FromReductions(const Found& found) const {
  double value[2][format::kSmdebugReductionCount];
  for (auto& row : value) std::fill(std::begin(row), std::end(row), kNan);
  const std::vector<SavedReduction> saved = ReductionsOf(found);
  if (saved.empty()) return std::nullopt;
  for (std::size_t i = 0; i < format::kSmdebugReductionCount; ++i) {
    for (const SavedReduction& one : saved) {
      if (one.name == format::SmdebugReductionName(static_cast<SmdebugReduction>(i)))
        value[one.abs ? 1 : 0][i] = one.value;
    }
  }
  const auto of = [&](SmdebugReduction r, bool abs = false) {
    return value[abs ? 1 : 0][static_cast<std::size_t>(r)];
  };
  const double mean = of(SmdebugReduction::kMean);
  const double abs_mean = of(SmdebugReduction::kMean, true);
  double variance = of(SmdebugReduction::kVariance);
  if (const double std = of(SmdebugReduction::kStd); std::isnan(variance)) variance = std * std;
  double l1 = of(SmdebugReduction::kL1);
  if (std::isnan(l1)) l1 = of(SmdebugReduction::kSum, true);
  const double l2 = of(SmdebugReduction::kL2);
  const double sum = of(SmdebugReduction::kSum);
  double count = kNan;
  if (found.shape != nullptr) {
    count = 1;
    for (const std::int64_t dim : directory_.ShapeOf(*found.shape)) count *= static_cast<double>(dim);
  }
  const auto try_count = [&](double ratio) {
    if (std::isnan(count) && std::isfinite(ratio) && ratio >= 0.5 && ratio < 1e15) count = std::round(ratio);
  };
  try_count(l1 / abs_mean);
  try_count(sum / mean);
  // l2^2 = n mean^2 + n variance. If the job's variance is that of a sample, as in PyTorch, it is n mean^2 +
  // (n - 1) variance instead. The formula whose n is closer to an integer is taken.
  const double whole = l2 * l2 / (variance + mean * mean);
  const double sample = (l2 * l2 + variance) / (variance + mean * mean);
  try_count(std::abs(whole - std::round(whole)) <= std::abs(sample - std::round(sample)) ? whole : sample);
  try_count(1);
  const auto first = [](double a, double b) { return std::isnan(a) ? b : a; };
  Summarized result;
  result.dtype = DType::kFloat64;
  Summary& s = result.summary;
  s.count = static_cast<std::uint64_t>(count);
  s.sum = first(sum, mean * count);
  s.abs_sum = first(l1, abs_mean * count);
  s.sum_sq = first(l2 * l2, (variance + mean * mean) * count);
  double low = of(SmdebugReduction::kMin);
  double high = of(SmdebugReduction::kMax);
  s.min_bits = std::bit_cast<std::uint64_t>(low);
  s.max_bits = std::bit_cast<std::uint64_t>(high);
  // smdebug's reductions cover all elements, so one that is not finite makes some of them not finite.
  for (const SavedReduction& one : saved) {
    if (std::isnan(one.value)) {
      s.nan_count = 1;
    } else if (std::isinf(one.value)) {
      s.inf_count = 1;
    }
  }
  if (s.nan_count != 0) s.inf_count = 0;
  return result;
}

Result<std::optional<SmdebugTrial::Summarized>> SmdebugTrial::Summarised(const Found& found) const {
  if (found.value == nullptr) return FromReductions(found);
  LUFF_ASSIGN_OR_RETURN(const Value value, ReadRecord(*found.value));
  if (!HasSummary(value.dtype)) return std::optional<Summarized>();
  LUFF_ASSIGN_OR_RETURN(const TensorView view, ViewOf(value));
  Summarized result;
  result.dtype = value.dtype;
  Summarize(view, &result.summary);
  return std::optional(result);
}

Result<SummaryAt> SmdebugTrial::ReadSummaryAt(TensorId id, std::int64_t step, Mode mode,
                                              std::optional<std::uint32_t> worker) const {
  SummaryAt result;
  LUFF_RETURN_IF_ERROR(FirstWith(id, "summary", step, mode, worker, [&](const Found& found) -> Result<bool> {
    LUFF_ASSIGN_OR_RETURN(const auto summarised, Summarised(found));
    if (!summarised) return false;
    result.dtype = summarised->dtype;
    result.summary = summarised->summary;
    result.worker = directory_.workers()[found.entry->worker].number;
    return true;
  }));
  LUFF_ASSIGN_OR_RETURN(const StepInfo info, FindStep(step, mode));
  result.global_step = info.global_step;
  result.mode_step = info.mode_step;
  result.update = info.update;
  result.mode = info.mode;
  return result;
}

Result<std::shared_ptr<const SummaryColumns>> SmdebugTrial::SharedSummaries(
    TensorId id, Mode mode, std::optional<std::uint32_t> worker) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  LUFF_RETURN_IF_ERROR(CheckWorker(worker));
  if (auto kept = KeptColumns(id, mode, worker)) return kept;
  const auto places = StepsWith(id, mode, worker, [](const Record& r) { return r.kind != Kind::kShape; });
  auto columns = std::make_shared<SummaryColumns>();
  const auto add = [](auto* column, auto value) { *column->Extend(1) = value; };
  SummaryColumns::ForEach([&](const char*, auto column) { ((*columns).*column).Reserve(places.size()); });
  std::uint32_t last = 0xFFFFFFFFU;
  for (const auto& [n, entry] : places) {
    if (n == last) continue;  // only the first worker that has the step
    LUFF_RETURN_IF_ERROR(WorkBound::GoOn());
    const auto found = RowsOf(entry, id);
    const auto summarised = Summarised(*found);
    if (!summarised.ok()) {  // the others stay readable
      directory_.AddProblem(std::string(summarised.status().message()));
      continue;
    }
    if (!summarised.value()) continue;
    last = n;
    const auto& [dtype, s] = *summarised.value();
    const StepInfo info = steps_.at(n);
    add(&columns->global_step, info.global_step);
    add(&columns->mode_step, info.mode_step);
    add(&columns->update, info.update);
    add(&columns->mode, static_cast<std::uint8_t>(info.mode));
    add(&columns->count, s.count);
    add(&columns->zero_count, s.zero_count);
    add(&columns->nan_count, s.nan_count);
    add(&columns->inf_count, s.inf_count);
    add(&columns->min, s.min(dtype));
    add(&columns->max, s.max(dtype));
    add(&columns->mean, s.mean());
    add(&columns->std, s.std());
    add(&columns->sum, s.sum);
    add(&columns->abs_mean, s.abs_mean());
    add(&columns->l2, s.l2());
  }
  KeepColumns(id, mode, worker, kRowBytes, columns);
  return std::shared_ptr<const SummaryColumns>(std::move(columns));
}

/// True for tensors that smdebug saves as arrays of one number.
bool SmdebugTrial::IsScalar(TensorId id) const {
  return tensors_[id].role == Role::kLoss || tensors_[id].role == Role::kScalar;
}

std::optional<double> SmdebugTrial::OneNumber(const Value& value) {
  if (!HasSummary(value.dtype) || value.bytes.size() != DTypeSize(value.dtype)) return std::nullopt;
  double number = 0;
  ToFloat64(value.dtype, value.bytes.data(), 1, &number);
  return number;
}

Result<std::vector<ScalarAt>> SmdebugTrial::Scalars(TensorId id, Mode mode,
                                                    std::optional<std::uint32_t> worker) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  LUFF_RETURN_IF_ERROR(CheckWorker(worker));
  std::vector<ScalarAt> scalars;
  if (!IsScalar(id)) return scalars;
  std::uint32_t last = 0xFFFFFFFFU;
  for (const auto& [n, entry] :
       StepsWith(id, mode, worker, [](const Record& r) { return r.kind == Kind::kValue; })) {
    if (n == last) continue;
    LUFF_RETURN_IF_ERROR(WorkBound::GoOn());
    const Result<Value> value = ReadRecord(*RowsOf(entry, id)->value);
    if (!value.ok()) {
      directory_.AddProblem(std::string(value.status().message()));
      continue;
    }
    const auto number = OneNumber(*value);
    if (!number) return std::vector<ScalarAt>();
    last = n;
    const StepInfo info = steps_.at(n);
    scalars.push_back({info.global_step, info.mode_step, info.update, info.mode, *number});
  }
  return scalars;
}

Result<std::vector<SavedReduction>> SmdebugTrial::SavedReductions(TensorId id, std::int64_t step, Mode mode,
                                                                  std::optional<std::uint32_t> worker) const {
  std::vector<SavedReduction> saved;
  LUFF_RETURN_IF_ERROR(FirstWith(id, "anything", step, mode, worker, [&](const Found& found) -> Result<bool> {
    saved = ReductionsOf(found);
    return true;
  }));
  return saved;
}

}  // namespace luff::query
