#include <algorithm>

#include "query/run_trial.h"

namespace luff::query {

using format::FrameKind;

Status RunTrial::ReadStepContents(std::size_t n, StepContents* out) const {
  out->values.clear();
  out->histograms.clear();
  LUFF_RETURN_IF_ERROR(CheckPlace(n));
  std::vector<std::byte> scratch;
  for (const auto& worker : workers_) {
    const std::uint64_t ordinal = worker->OrdinalOf(n);
    if (ordinal == kNoOrdinal) continue;
    const auto place = worker->reader->FindStep(ordinal);
    if (!place) continue;
    const store::SegmentReader& segment = *place->segment;
    const std::uint32_t number = worker->reader->worker();
    const auto id_of = [&](std::uint32_t local) -> std::optional<TensorId> {
      const auto at = worker->trial_id.find(ScopedId(segment.header().epoch, local));
      if (at == worker->trial_id.end()) return std::nullopt;
      return at->second;
    };
    for (std::size_t slot = 0; slot < segment.slot_count(); ++slot) {
      const auto id = id_of(segment.slot_tensor(slot));
      if (!id) continue;
      LUFF_ASSIGN_OR_RETURN(const auto index, segment.Index(slot));
      const auto [from, to] = std::equal_range(index.step.begin(), index.step.end(), place->index);
      if (from == to || worker->IsDeleted(index.rows[static_cast<std::size_t>(to - index.step.begin()) - 1]))
        continue;
      out->values.push_back({*id, number});
    }
    if ((segment.frame_kinds() >> static_cast<unsigned>(FrameKind::kHistogramRows) & 1U) == 0) continue;
    LUFF_ASSIGN_OR_RETURN(const auto frames, segment.FramesOf(ordinal));
    for (const format::FrameEntry& entry : frames) {
      if (static_cast<FrameKind>(entry.kind) != FrameKind::kHistogramRows) continue;
      LUFF_ASSIGN_OR_RETURN(const auto body, segment.ReadFrame(entry, &scratch));
      LUFF_ASSIGN_OR_RETURN(const auto views, format::ParseHistogramsUntrusted(body));
      for (const format::HistogramView& view : views) {
        const auto id = id_of(view.tensor);
        if (!id) continue;
        StepContents::HistogramEntry histogram{*id, number, {}};
        LUFF_RETURN_IF_ERROR(format::DecodeHistogramUntrusted(view, &histogram.bins));
        out->histograms.push_back(std::move(histogram));
      }
    }
  }
  return Status::Ok();
}

}  // namespace luff::query
