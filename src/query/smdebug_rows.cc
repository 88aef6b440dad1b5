#include <algorithm>
#include <bit>
#include <limits>

#include "luff/tensor/hash.h"
#include "query/smdebug_trial.h"
#include "query/smdebug_with-inl.h"

namespace luff::query {
namespace {

using format::Form;
using format::FormRow;
using format::SmdebugReduction;

constexpr std::size_t kKeptValueBytes = 256U << 20;  // of values kept for later differences

FormRow RowOf(TensorId id, Form form) {
  FormRow row{};
  row.tensor = id;
  row.form = static_cast<std::uint16_t>(form);
  return row;
}

}  // namespace

/// The value that this worker wrote before for the same tensor in the same mode; null if there is none.
const SmdebugDirectory::Record* SmdebugTrial::Before(const Record& record) const {
  const auto postings = directory_.Postings(record.tensor);
  const Entry& entry = directory_.entries()[record.entry];
  const auto at = std::lower_bound(postings.begin(), postings.end(), entry.first);
  for (auto before = at; before != postings.begin();) {
    const Record& other = directory_.record(*--before);
    const Entry& of = directory_.entries()[other.entry];
    if (other.kind == Kind::kValue && of.worker == entry.worker && of.mode == entry.mode &&
        of.global_step < entry.global_step)
      return &other;
  }
  return nullptr;
}

std::optional<FormRow> SmdebugTrial::DifferenceOf(const Record& record, const Value& value) const {
  const Record* before = Before(record);
  if (before == nullptr) return std::nullopt;
  const std::uint64_t key = std::uint64_t{record.tensor} << 32 | directory_.entries()[record.entry].worker;
  std::optional<Value> previous;
  if (const auto kept = kept_.find(key);
      kept != kept_.end() && kept->second.record == directory_.PlaceOf(*before)) {
    previous = kept->second.value;
  } else if (auto read = ReadRecord(*before); read.ok()) {
    previous = std::move(read).value();
  }
  if (!previous || previous->dtype != value.dtype || previous->shape != value.shape) return std::nullopt;
  const auto view = ViewOf(value);
  if (!view.ok()) return std::nullopt;
  std::vector<std::byte> copy(previous->bytes.begin(), previous->bytes.end());
  Difference difference;
  ComputeDifference(*view, copy.data(), false, &difference);
  FormRow row = RowOf(record.tensor, Form::kDifference);
  const double values[] = {difference.l1,          difference.sum_sq,
                           difference.max,         static_cast<double>(difference.changed_count),
                           difference.previous_l1, difference.previous_sum_sq};
  std::copy(std::begin(values), std::end(values), row.values);
  return row;
}

void SmdebugTrial::KeepValue(const Record& record, const Value& value) const {
  const std::uint64_t key = std::uint64_t{record.tensor} << 32 | directory_.entries()[record.entry].worker;
  const auto old = kept_.find(key);
  if (old != kept_.end()) {
    kept_bytes_ -= old->second.value.bytes.size();
    kept_.erase(old);
  }
  if (kept_bytes_ + value.bytes.size() > kKeptValueBytes) return;
  kept_bytes_ += value.bytes.size();
  kept_.emplace(key, Kept{directory_.PlaceOf(record), value});
}

Status SmdebugTrial::ReadStepRows(std::size_t n, StepRows* out) const {
  LUFF_RETURN_IF_ERROR(BeginRows(n, out));
  std::vector<TensorId> ids;
  for (const std::uint32_t number : entries_at_[n]) {
    const Entry& entry = directory_.entries()[number];
    const std::uint32_t worker = directory_.workers()[entry.worker].number;
    ids.clear();
    for (const Record& record : directory_.RecordsOf(entry)) ids.push_back(record.tensor);
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    for (const TensorId id : ids) {
      const auto found = RowsOf(number, id);
      if (!found) continue;
      if (found->value == nullptr) {
        if (const auto reduced = FromReductions(*found))
          out->summaries.push_back({id, worker, reduced->dtype, reduced->summary});
        continue;
      }
      const Result<Value> value = ReadRecord(*found->value);
      if (!value.ok()) {
        directory_.AddProblem(std::string(value.status().message()));
        continue;
      }
      if (!HasSummary(value->dtype)) continue;
      const auto view = ViewOf(*value);
      if (!view.ok()) continue;
      Summary summary;
      Summarize(*view, &summary);
      out->summaries.push_back({id, worker, value->dtype, summary});
      if (const auto number_of = OneNumber(*value); number_of && IsScalar(id))
        out->scalars.push_back({id, worker, *number_of});
      const Role role = tensors_[id].role;
      if ((role == Role::kWeight || role == Role::kOutput) && view->layout.rank >= 2) {
        UnitEntry unit{id, worker, {}};
        ComputeUnits(*view, UnitAxis::kAllButFirst, &unit.counts);
        out->units.push_back(std::move(unit));
      }
      if (const auto difference = DifferenceOf(*found->value, *value))
        out->forms.push_back({id, worker, *difference});
      KeepValue(*found->value, *value);
    }
  }
  return Status::Ok();
}

Status SmdebugTrial::ReadStepContents(std::size_t n, StepContents* out) const {
  out->values.clear();
  out->histograms.clear();
  LUFF_RETURN_IF_ERROR(CheckPlace(n));
  std::vector<TensorId> ids;
  for (const std::uint32_t number : entries_at_[n]) {
    const Entry& entry = directory_.entries()[number];
    ids.clear();
    for (const Record& record : directory_.RecordsOf(entry)) {
      if (record.kind == Kind::kValue) ids.push_back(record.tensor);
    }
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    for (const TensorId id : ids) out->values.push_back({id, directory_.workers()[entry.worker].number});
  }
  return Status::Ok();
}

Result<SparseHistogram> SmdebugTrial::Histogram(TensorId id, std::int64_t step, Mode mode,
                                                std::optional<std::uint32_t> worker) const {
  SparseHistogram histogram;
  LUFF_RETURN_IF_ERROR(FirstWith(id, "value", step, mode, worker, [&](const Found& found) -> Result<bool> {
    if (found.value == nullptr) return false;
    LUFF_ASSIGN_OR_RETURN(const Value value, ReadRecord(*found.value));
    if (!HasSummary(value.dtype)) return false;
    LUFF_ASSIGN_OR_RETURN(const TensorView view, ViewOf(value));
    std::vector<std::uint64_t> dense(kHistogramBins, 0);
    AddHistogram(view, dense);
    histogram = ToSparse(dense);
    return true;
  }));
  return histogram;
}

Result<UnitCounts> SmdebugTrial::Units(TensorId id, std::int64_t step, Mode mode,
                                       std::optional<std::uint32_t> worker) const {
  UnitCounts counts;
  LUFF_RETURN_IF_ERROR(FirstWith(id, "value", step, mode, worker, [&](const Found& found) -> Result<bool> {
    if (found.value == nullptr) return false;
    LUFF_ASSIGN_OR_RETURN(const Value value, ReadRecord(*found.value));
    if (!HasSummary(value.dtype)) return false;
    LUFF_ASSIGN_OR_RETURN(const TensorView view, ViewOf(value));
    ComputeUnits(view, UnitAxis::kAllButFirst, &counts);
    return true;
  }));
  return counts;
}

Result<FormRow> SmdebugTrial::ReadForm(TensorId id, Form form, std::int64_t step, Mode mode,
                                       std::optional<std::uint32_t> worker) const {
  FormRow row = RowOf(id, form);
  LUFF_RETURN_IF_ERROR(
      FirstWith(id, "this form", step, mode, worker, [&](const Found& found) -> Result<bool> {
        if (found.value == nullptr) {
          if (form != Form::kExtra || !found.reduced) return false;
          row.values[0] = row.values[1] = row.values[2] = std::numeric_limits<double>::quiet_NaN();
          bool any = false;
          for (const SavedReduction& saved : ReductionsOf(found)) {
            const int place = saved.name == "min" && saved.abs ? 0
                              : saved.name == "prod"           ? (saved.abs ? 2 : 1)
                                                               : -1;
            if (place < 0) continue;
            row.values[place] = saved.value;
            any = true;
          }
          return any;
        }
        LUFF_ASSIGN_OR_RETURN(const Value value, ReadRecord(*found.value));
        if (form == Form::kHash) {
          row.values[0] = std::bit_cast<double>(HashBytes(value.bytes.data(), value.bytes.size()));
          return true;
        }
        if (!HasSummary(value.dtype)) return false;
        if (form == Form::kDifference) {
          const auto difference = DifferenceOf(*found.value, value);
          if (difference) row = *difference;
          return difference.has_value();
        }
        if (form != Form::kExtra) return false;
        LUFF_ASSIGN_OR_RETURN(const TensorView view, ViewOf(value));
        ExtraReductions extra;
        ComputeExtra(view, &extra);
        row.values[0] = extra.abs_min;
        row.values[1] = extra.prod;
        row.values[2] = extra.abs_prod;
        return true;
      }));
  return row;
}

}  // namespace luff::query
