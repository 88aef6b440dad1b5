#include <algorithm>

#include "luff/base/work_bound.h"
#include "luff/query/row_visit.h"
#include "query/run_trial.h"
#include "query/stretches.h"

namespace luff::query {
namespace {

constexpr auto kDifference = static_cast<std::uint16_t>(format::Form::kDifference);

/// One row as a stretch.
SummaryStretch StretchOf(TensorId tensor, std::uint32_t worker, std::size_t n, const auto& s,
                         const std::uint8_t& dtype, const std::uint16_t& steps) {
  return {tensor,
          worker,
          n,
          {&s.count, 1},
          {&s.min_bits, 1},
          {&s.max_bits, 1},
          {&s.zero_count, 1},
          {&s.nan_count, 1},
          {&s.inf_count, 1},
          {&s.sum, 1},
          {&s.sum_sq, 1},
          {&s.abs_sum, 1},
          {&dtype, 1},
          {&steps, 1}};
}

/// Of any trial, step by step.
Status VisitSteps(const Trial& trial, std::size_t from, std::size_t to, const UseStretch& use,
                  const UseDifference& difference) {
  TrialRows::StepRows rows;
  const std::uint16_t one = 1;
  for (std::size_t n = from; n < to; ++n) {
    LUFF_RETURN_IF_ERROR(trial.ReadStepRows(n, &rows));
    for (const TrialRows::SummaryEntry& entry : rows.summaries) {
      const Summary& s = entry.summary;
      const auto dtype = static_cast<std::uint8_t>(entry.dtype);
      use(StretchOf(entry.tensor, entry.worker, n, s, dtype, one));
    }
    for (const TrialRows::FormEntry& entry : rows.forms) {
      if (difference && entry.row.form == kDifference) difference(entry.tensor, n, entry.row);
    }
  }
  return Status::Ok();
}

/// The tensors of rows by the slots that they name.
template <typename Row>
std::vector<TensorId> IdsBySlot(const WorkerState& worker, std::uint32_t epoch,
                                const store::SegmentReader::RowsOfStep<Row>& of) {
  std::vector<TensorId> ids;
  for (std::size_t row = 0; row < of.rows.size(); ++row) {
    if (ids.size() <= of.slot[row]) ids.resize(of.slot[row] + std::size_t{1}, kNoTensor);
    ids[of.slot[row]] = worker.IdOf(epoch, of.rows[row].tensor);
  }
  return ids;
}

/// One step that was published.
void VisitPublished(const WorkerState& worker, const store::SegmentReader& segment, std::uint32_t index,
                    const store::SegmentReader::PublishedRows& published, const UseStretch& use,
                    const UseDifference& difference, const UsePublished& whole) {
  const std::size_t n = worker.StepOf(segment.steps().ordinal[index]);
  const std::uint32_t number = worker.reader->worker();
  const std::uint32_t epoch = segment.header().epoch;
  const auto& summaries = published.summaries;
  const auto& forms = published.forms;
  std::vector<TensorId> of_summaries;
  std::vector<TensorId> of_forms;
  std::span<const TensorId> ids;
  std::span<const TensorId> form_ids;
  if (!segment.sealed()) {
    ids = form_ids = worker.IdsOf(segment);
  } else {  // its slots are others by now
    ids = of_summaries = IdsBySlot(worker, epoch, summaries);
    if (difference) form_ids = of_forms = IdsBySlot(worker, epoch, forms);
  }
  if (whole) {
    whole({number, n, summaries.rows, summaries.counting, summaries.slot, ids});
  } else {
    for (const std::uint32_t row : summaries.counting) {
      const TensorId id = ids[summaries.slot[row]];
      const format::SummaryRow& s = summaries.rows[row];
      if (id != kNoTensor) use(StretchOf(id, number, n, s, s.dtype, s.steps));
    }
  }
  for (std::size_t row = 0; difference && row < forms.rows.size(); ++row) {
    const TensorId id = form_ids[forms.slot[row]];
    if (id != kNoTensor && forms.rows[row].form == kDifference) difference(id, n, forms.rows[row]);
  }
}

}  // namespace

Status VisitRows(const Trial& trial, std::size_t from, std::size_t to, const UseStretch& use,
                 const UseDifference& difference, const UsePublished& published) {
  to = std::min(to, trial.step_count());
  const auto* run = dynamic_cast<const RunTrial*>(&trial);
  return run != nullptr ? run->VisitSegments(from, to, use, difference, published)
                        : VisitSteps(trial, from, to, use, difference);
}

TensorId WorkerState::IdOf(std::uint32_t epoch, std::uint32_t local) const {
  const auto id = trial_id.find(ScopedId(epoch, local));
  return id == trial_id.end() ? kNoTensor : id->second;
}

std::span<const TensorId> WorkerState::IdsOf(const store::SegmentReader& segment) const {
  // Slots have other numbers once the segment is sealed.
  if (segment.sealed() || ids_path_ != segment.path()) {
    ids_path_ = segment.sealed() ? std::string() : segment.path();
    ids_.clear();
  }
  ids_.resize(segment.slot_count(), kNoTensor);
  for (std::size_t slot = 0; slot < ids_.size(); ++slot) {
    if (ids_[slot] != kNoTensor) continue;
    ids_[slot] = IdOf(segment.header().epoch, segment.slot_tensor(slot));
  }
  return ids_;
}

Status RunTrial::VisitSegments(std::size_t from, std::size_t to, const UseStretch& use,
                               const UseDifference& difference, const UsePublished& whole) const {
  store::SegmentSweep sweep;
  for (const auto& worker : workers_) {
    for (const auto& segment : worker->reader->segments()) {
      // The steps of the segment that are wanted.
      const auto ordinals = segment->steps().ordinal;
      const auto wanted = [&](std::uint64_t ordinal) {
        const std::uint32_t n = worker->StepOf(ordinal);
        return n != kNoStep && n >= from && n < to;
      };
      const auto first = std::ranges::find_if(ordinals, wanted);
      if (first == ordinals.end()) continue;
      auto last = ordinals.end() - 1;
      while (!wanted(*last)) --last;
      const auto low = static_cast<std::uint32_t>(first - ordinals.begin());
      const auto high = static_cast<std::uint32_t>(last - ordinals.begin());
      // Of a segment that is sealed, at most its last step is there as it was published.
      if (!segment->sealed() || (low == high && segment->PublishedAt(low))) {
        LUFF_RETURN_IF_ERROR(WorkBound::GoOn());
        for (std::uint32_t index = low; index <= high; ++index) {
          if (wanted(ordinals[index]))
            VisitPublished(*worker, *segment, index, *segment->PublishedAt(index), use, difference, whole);
        }
        continue;
      }
      const std::span<const TensorId> ids = worker->IdsOf(*segment);
      sweep.Begin(*segment);
      for (std::size_t slot = 0; slot < ids.size(); ++slot) {
        if (ids[slot] == kNoTensor) continue;
        LUFF_RETURN_IF_ERROR(WorkBound::GoOn());
        LUFF_ASSIGN_OR_RETURN(const auto block, sweep.Summaries(slot));
        const auto begin = std::ranges::lower_bound(block.step, low) - block.step.begin();
        const auto end = std::ranges::upper_bound(block.step, high) - block.step.begin();
        EachStretch(*worker, *segment, block, static_cast<std::size_t>(begin), static_cast<std::size_t>(end),
                    [&](std::size_t row, std::size_t rows, std::uint32_t n) {
                      // Positions ascend, but a resumed run may have others between them.
                      const std::size_t skip = n < from ? std::min(from - n, rows) : 0;
                      const std::size_t stop = n >= to ? 0 : std::min<std::size_t>(rows, to - n);
                      if (skip >= stop) return;
                      const auto part = [&](const auto& column) {
                        return column.subspan(row + skip, stop - skip);
                      };
                      use({ids[slot], worker->reader->worker(), n + skip, part(block.count),
                           part(block.min_bits), part(block.max_bits), part(block.zero_count),
                           part(block.nan_count), part(block.inf_count), part(block.sum), part(block.sum_sq),
                           part(block.abs_sum), part(block.dtype), part(block.steps)});
                    });
        if (!difference) continue;
        LUFF_ASSIGN_OR_RETURN(const auto forms, sweep.Forms(slot));
        const auto first_form = std::ranges::lower_bound(forms.step, low) - forms.step.begin();
        for (auto row = static_cast<std::size_t>(first_form);
             row < forms.rows.size() && forms.step[row] <= high; ++row) {
          if (forms.rows[row].form != kDifference) continue;
          const std::uint32_t n = worker->StepOf(ordinals[forms.step[row]]);
          if (n != kNoStep && n >= from && n < to) difference(ids[slot], n, forms.rows[row]);
        }
      }
    }
  }
  return Status::Ok();
}

}  // namespace luff::query
