#include <algorithm>

#include "luff/base/work_bound.h"
#include "query/run_trial.h"

namespace luff::query {
namespace {

/// True if a column of rows, ascending by step, has a row of this step. False if it cannot be read.
bool HasStep(const auto& block, std::uint32_t index) {
  return block.ok() && std::binary_search(block->step.begin(), block->step.end(), index);
}

}  // namespace

Result<std::vector<const WorkerState*>> RunTrial::Candidates(std::optional<std::uint32_t> worker) const {
  std::vector<const WorkerState*> found;
  std::string known;
  for (const auto& candidate : workers_) {
    if (!worker || candidate->reader->worker() == *worker) found.push_back(candidate.get());
    if (known.size() < 100)
      known += (known.empty() ? "" : ", ") + std::to_string(candidate->reader->worker());
  }
  if (worker && found.empty()) {
    return NotFound("no worker " + std::to_string(*worker) + "; there are: " + known + ": " + path());
  }
  return found;
}

std::optional<RunTrial::Rows> RunTrial::RowsOf(const WorkerState& worker, TensorId id,
                                               std::uint32_t n) const {
  const std::uint64_t ordinal = worker.OrdinalOf(n);
  if (ordinal == kNoOrdinal) return std::nullopt;
  const auto place = worker.reader->FindStep(ordinal);
  if (!place) return std::nullopt;
  Rows rows;
  rows.worker = &worker;
  rows.segment = place->segment;
  rows.index = place->index;
  rows.epoch = place->segment->header().epoch;
  rows.n = n;
  const auto local = worker.local_id.find(ScopedId(rows.epoch, id));
  if (local == worker.local_id.end()) return std::nullopt;
  rows.local_id = local->second;
  rows.slot = place->segment->FindSlot(rows.local_id);
  return rows;
}

bool RunTrial::HasRows(const WorkerState& worker, TensorId id, std::uint32_t n) const {
  const auto rows = RowsOf(worker, id, n);
  if (!rows || !rows->slot) return false;
  const store::SegmentReader& segment = *rows->segment;
  const std::size_t slot = *rows->slot;
  return HasStep(segment.Summaries(slot), rows->index) || HasStep(segment.Index(slot), rows->index) ||
         HasStep(segment.Scalars(slot), rows->index) || HasStep(segment.Forms(slot), rows->index);
}

bool RunTrial::HasRows(TensorId id, std::uint32_t n) const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [&](const auto& worker) { return HasRows(*worker, id, n); });
}

Status RunTrial::NotSaved(TensorId id, What what, std::int64_t step, Mode mode) const {
  static constexpr const char* kNames[] = {"value",       "summary",   "histogram",
                                           "unit counts", "this form", "shape"};
  const std::string& name = tensors_[id].name;
  const std::string subject =
      std::string(kNames[static_cast<int>(what)]) + " of \"" + name + "\" at " + StepText(step, mode);
  const auto n = steps_.Find(step, mode);
  bool summary = false;
  bool scalar = false;
  for (const auto& worker : workers_) {
    const auto rows = n ? RowsOf(*worker, id, *n) : std::nullopt;
    if (!rows || !rows->slot) continue;
    summary = summary || HasStep(rows->segment->Summaries(*rows->slot), rows->index);
    scalar = scalar || HasStep(rows->segment->Scalars(*rows->slot), rows->index);
  }
  const bool of_values = what == What::kValue || what == What::kShape;
  const auto steps = of_values ? ValueSteps(id, mode, std::nullopt) : TensorSteps(id, mode);
  StepTable::Neighbours around;
  if (steps.ok()) {
    const auto at = std::lower_bound(steps->begin(), steps->end(), step);
    if (at != steps->begin()) around.before = *std::prev(at);
    // The step itself may hold something else of the tensor.
    const auto after = at != steps->end() && *at == step ? std::next(at) : at;
    if (after != steps->end()) around.after = *after;
  }
  std::string hint =
      NearestText(around, of_values ? "nearest saved: " : "nearest steps that hold anything of it: ");
  if (scalar)
    hint += "; it is there as a scalar";
  else if (what != What::kSummary && summary)
    hint += "; its summary is there";
  if (what == What::kValue && steps.ok() && steps->empty())
    hint += "; values are saved of collections with the form \"raw\"";
  return OutOfRange(subject + " was not saved, " + hint + ": " + path());
}

Status RunTrial::MarkSteps(const WorkerState& worker, TensorId id, bool values_only,
                           std::vector<std::uint8_t>* marks) const {
  for (const auto& segment : worker.reader->segments()) {
    const auto local = worker.local_id.find(ScopedId(segment->header().epoch, id));
    if (local == worker.local_id.end()) continue;
    const auto slot = segment->FindSlot(local->second);
    if (!slot) continue;
    LUFF_RETURN_IF_ERROR(WorkBound::GoOn());
    const auto& ordinals = segment->steps().ordinal;
    const auto mark = [&](std::span<const std::uint32_t> steps) {
      for (const std::uint32_t step : steps) {
        const std::uint32_t n = worker.StepOf(ordinals[step]);
        if (n != kNoStep && !steps_.superseded(n)) (*marks)[n] = 1;
      }
    };
    LUFF_ASSIGN_OR_RETURN(const auto index, segment->Index(*slot));
    if (values_only) {
      for (std::size_t i = 0; i < index.rows.size(); ++i) {
        if (!worker.IsDeleted(index.rows[i])) mark(index.step.subspan(i, 1));
      }
      continue;
    }
    mark(index.step);
    LUFF_ASSIGN_OR_RETURN(const auto summaries, segment->Summaries(*slot));
    mark(summaries.step);
    LUFF_ASSIGN_OR_RETURN(const auto scalars, segment->Scalars(*slot));
    mark(scalars.step);
    LUFF_ASSIGN_OR_RETURN(const auto forms, segment->Forms(*slot));
    mark(forms.step);
  }
  return Status::Ok();
}

std::vector<std::int64_t> RunTrial::MarkedSteps(const std::vector<std::uint8_t>& marks, Mode mode) const {
  std::vector<std::int64_t> result;
  for (std::size_t n = 0; n < marks.size(); ++n) {
    if (marks[n] == 0 || (mode != Mode::kGlobal && steps_.mode(n) != mode)) continue;
    result.push_back(steps_.key(n, mode));
  }
  if (!std::is_sorted(result.begin(), result.end())) std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

Result<std::vector<std::int64_t>> RunTrial::TensorSteps(TensorId id, Mode mode) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  std::vector<std::uint8_t> marks(steps_.size(), 0);
  for (const auto& worker : workers_) LUFF_RETURN_IF_ERROR(MarkSteps(*worker, id, false, &marks));
  return MarkedSteps(marks, mode);
}

Result<std::vector<std::int64_t>> RunTrial::ValueSteps(TensorId id, Mode mode,
                                                       std::optional<std::uint32_t> worker) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  LUFF_ASSIGN_OR_RETURN(const auto candidates, Candidates(worker));
  std::vector<std::uint8_t> marks(steps_.size(), 0);
  for (const WorkerState* candidate : candidates)
    LUFF_RETURN_IF_ERROR(MarkSteps(*candidate, id, true, &marks));
  return MarkedSteps(marks, mode);
}

Result<std::vector<std::uint32_t>> RunTrial::TensorWorkers(TensorId id, std::int64_t step, Mode mode) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  LUFF_ASSIGN_OR_RETURN(const std::uint32_t n, StepOrError(step, mode));
  std::vector<std::uint32_t> found;
  for (const auto& worker : workers_) {
    if (HasRows(*worker, id, n)) found.push_back(worker->reader->worker());
  }
  if (found.empty()) return NotSaved(id, What::kForm, step, mode);
  return found;
}

}  // namespace luff::query
