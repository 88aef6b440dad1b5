#include "luff/store/loss.h"

#include <algorithm>
#include <iterator>
#include <new>

namespace luff::store {
namespace {

constexpr std::size_t kMaxAnswers = 4096;
constexpr std::uint64_t kMaxEventBytes = 1U << 20;

template <typename T>
std::uint64_t AllocatedBytes(const std::vector<T>& items) noexcept {
  return items.capacity() * sizeof(T);
}

/// Moves `from` before (or after) the contents of `to`. All or nothing.
template <typename T>
void Join(std::vector<T>* from, std::vector<T>* to, bool in_front) {
  if (from->empty()) return;
  if (to->empty()) {
    to->swap(*from);
  } else {
    to->reserve(to->size() + from->size());
    to->insert(in_front ? to->begin() : to->end(), std::make_move_iterator(from->begin()),
               std::make_move_iterator(from->end()));
  }
  *from = {};
}

format::GapRow GapOfNoStep(std::uint64_t count, std::uint64_t bytes, std::int64_t step) noexcept {
  return GapOfSteps(format::GapReason::kTooMany, count, bytes, step, step);
}

/// Has forms, so that nobody takes it for one of steps.
format::GapRow GapOfSamples(format::GapReason reason, std::uint64_t moments) noexcept {
  format::GapRow row = GapOfSteps(reason, moments, 0, 0, 0);
  row.forms = static_cast<std::uint16_t>(format::Form::kRaw);
  return row;
}

}  // namespace

format::GapRow GapOfSteps(format::GapReason reason, std::uint64_t steps, std::uint64_t bytes,
                          std::int64_t first_step, std::int64_t last_step) noexcept {
  format::GapRow row{};
  row.tensor = row.collection = format::kNoId;
  row.reason = static_cast<std::uint16_t>(reason);
  row.count = steps;
  row.bytes = bytes;
  row.first_step = first_step;
  row.last_step = last_step;
  return row;
}

std::uint64_t RowBytes(const StepBatch& batch) noexcept {
  std::uint64_t bytes =
      sizeof(format::StepMark) + batch.summaries.size() * sizeof(format::SummaryRow) +
      batch.index.size() * sizeof(format::IndexRow) + batch.forms.size() * sizeof(format::FormRow) +
      batch.scalars.size() * sizeof(format::ScalarRow) + batch.events.size() * sizeof(format::EventRow) +
      batch.gaps.size() * sizeof(format::GapRow);
  for (const auto& [tensor, bins] : batch.histograms) bytes += bins.size() * sizeof(HistogramBin);
  for (const auto& [tensor, units] : batch.units) bytes += units.positive.size() * 24;
  for (const std::string& json : batch.event_json) bytes += json.size();
  return bytes;
}

std::uint64_t MemoryOf(const StepBatch& batch) noexcept {
  std::uint64_t bytes =
      sizeof(StepBatch) + AllocatedBytes(batch.tensors) + AllocatedBytes(batch.layouts) +
      AllocatedBytes(batch.documents) + AllocatedBytes(batch.summaries) + AllocatedBytes(batch.index) +
      AllocatedBytes(batch.index_retention) + AllocatedBytes(batch.histograms) + AllocatedBytes(batch.units) +
      AllocatedBytes(batch.forms) + AllocatedBytes(batch.scalars) + AllocatedBytes(batch.events) +
      AllocatedBytes(batch.event_json) + AllocatedBytes(batch.gaps) + AllocatedBytes(batch.acks) +
      AllocatedBytes(batch.series) + AllocatedBytes(batch.samples) + AllocatedBytes(batch.modules.rows);
  for (const format::SeriesDef& def : batch.series) bytes += def.name.capacity();
  for (const format::SampleBlock& block : batch.samples) {
    bytes += AllocatedBytes(block.mono_ns) + AllocatedBytes(block.series);
    for (const format::SampledSeries& series : block.series)
      bytes += AllocatedBytes(series.values) + AllocatedBytes(series.maxima);
  }
  for (const TensorDef& def : batch.tensors) {
    bytes += def.name.capacity() + def.module_path.capacity() + def.module_type.capacity() +
             AllocatedBytes(def.collections);
  }
  for (const LayoutDef& def : batch.layouts)
    bytes += AllocatedBytes(def.global_shape) + AllocatedBytes(def.global_offset);
  for (const auto& [name, json] : batch.documents) bytes += name.capacity() + json.capacity();
  for (const auto& [tensor, bins] : batch.histograms) bytes += AllocatedBytes(bins);
  for (const auto& [tensor, units] : batch.units)
    bytes += AllocatedBytes(units.positive) + AllocatedBytes(units.zero) + AllocatedBytes(units.sum);
  for (const std::string& json : batch.event_json) bytes += json.capacity();
  return bytes;
}

bool LossLedger::Fold(StepBatch* batch, bool step, format::GapReason reason) noexcept {
  const std::int64_t at = batch->mark.global_step;
  if (step) gaps_.Add(GapOfSteps(reason, 1, RowBytes(*batch), at, at), at);
  for (const format::GapRow& gap : batch->gaps) gaps_.Add(gap, at);
  StepBatch rest;
  rest.tensors.swap(batch->tensors);
  rest.layouts.swap(batch->layouts);
  rest.documents.swap(batch->documents);
  rest.acks.swap(batch->acks);
  if (!step) rest.event_json.swap(batch->event_json);
  rest.series.swap(batch->series);
  std::uint64_t moments = 0;  // of samples, which are not kept
  for (const format::SampleBlock& block : batch->samples) moments += block.mono_ns.size();
  *batch = {};  // frees its memory for what is kept
  bool kept = false;
  try {
    Join(&rest.tensors, &kept_.tensors, false);
    Join(&rest.layouts, &kept_.layouts, false);
    Join(&rest.series, &kept_.series, false);
    kept = true;
    KeepDocuments(&rest.documents);
    if (kept_.acks.size() < kMaxAnswers) Join(&rest.acks, &kept_.acks, false);
    KeepEvents(&rest.event_json, at);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): reported below
  }
  if (moments != 0) gaps_.Add(GapOfSamples(reason, moments), at);
  const std::uint64_t left = rest.documents.size() + rest.acks.size() + rest.event_json.size();
  if (left != 0) gaps_.Add(GapOfNoStep(left, 0, at), at);
  return kept;
}

void LossLedger::KeepDocuments(std::vector<std::pair<std::string, std::string>>* documents) {
  while (!documents->empty()) {
    auto& document = documents->back();
    const auto known = std::find_if(kept_.documents.begin(), kept_.documents.end(),
                                    [&](const auto& old) { return old.first == document.first; });
    if (known != kept_.documents.end()) {
      known->second.swap(document.second);
    } else {
      kept_.documents.push_back(std::move(document));
    }
    documents->pop_back();
  }
}

void LossLedger::KeepEvents(std::vector<std::string>* events, std::int64_t step) {
  std::uint64_t dropped = 0, bytes = 0;
  for (std::string& json : *events) {
    if (event_bytes_ + json.size() > kMaxEventBytes) {
      ++dropped;
      bytes += json.size();
      continue;
    }
    event_bytes_ += json.size();
    kept_.event_json.push_back(std::move(json));
  }
  events->clear();
  if (dropped != 0) gaps_.Add(GapOfNoStep(dropped, bytes, step), step);
}

void LossLedger::Release(std::int64_t now_ns, bool all, StepBatch* batch) {
  Join(&kept_.tensors, &batch->tensors, true);
  Join(&kept_.layouts, &batch->layouts, true);
  Join(&kept_.series, &batch->series, true);
  std::erase_if(kept_.documents, [&](const auto& old) {
    return std::any_of(batch->documents.begin(), batch->documents.end(),
                       [&](const auto& newer) { return newer.first == old.first; });
  });
  Join(&kept_.documents, &batch->documents, true);
  Join(&kept_.acks, &batch->acks, true);
  Join(&kept_.event_json, &batch->event_json, true);
  event_bytes_ = 0;
  gaps_.Collect(now_ns, all, &batch->gaps);
}

bool LossLedger::empty() const noexcept {
  return kept_.tensors.empty() && kept_.layouts.empty() && kept_.series.empty() && kept_.documents.empty() &&
         kept_.acks.empty() && kept_.event_json.empty() && gaps_.empty();
}

}  // namespace luff::store
