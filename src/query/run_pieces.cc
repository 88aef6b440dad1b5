#include "luff/query/run_pieces.h"

#include "luff/base/work_bound.h"
#include "query/run_trial.h"

namespace luff::query {

using format::FrameKind;

Result<std::vector<WorkerStep>> RunTrial::StepsOf(std::uint32_t worker) const {
  LUFF_ASSIGN_OR_RETURN(const auto found, Candidates(worker));
  std::vector<WorkerStep> steps;
  for (const auto& segment : found.front()->reader->segments()) {
    const format::StepColumns& columns = segment->steps();
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::uint32_t n = found.front()->StepOf(columns.ordinal[i]);
      if (n == kNoStep || steps_.superseded(n)) continue;
      steps.push_back({n, columns.wall_unix_ns[i], columns.duration_ns[i]});
    }
  }
  return steps;
}

Status RunTrial::HistogramsOf(TensorId id, std::int64_t from, std::int64_t to, std::uint64_t max_bytes,
                              const HistogramVisitor& use) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  std::vector<std::uint8_t> seen(steps_.size(), 0);
  std::vector<std::byte> scratch;
  std::uint64_t read = 0;
  for (const auto& worker : workers_) {
    for (const auto& segment : worker->reader->segments()) {
      if ((segment->frame_kinds() >> static_cast<unsigned>(FrameKind::kHistogramRows) & 1U) == 0) continue;
      const auto local = worker->local_id.find(ScopedId(segment->header().epoch, id));
      if (local == worker->local_id.end()) continue;
      LUFF_ASSIGN_OR_RETURN(const auto frames, segment->Frames());
      for (const format::FrameEntry& entry : frames) {
        if (static_cast<FrameKind>(entry.kind) != FrameKind::kHistogramRows) continue;
        const std::uint32_t n = worker->StepOf(entry.ordinal);
        if (n == kNoStep || steps_.superseded(n) || seen[n] != 0) continue;
        const StepInfo info = steps_.at(n);
        if (info.global_step < from || info.global_step > to) continue;
        LUFF_RETURN_IF_ERROR(WorkBound::GoOn());
        LUFF_ASSIGN_OR_RETURN(const auto body, segment->ReadFrame(entry, &scratch));
        read += body.size();
        if (read > max_bytes)
          return ResourceExhausted("the histograms of these steps are more than is read at once");
        LUFF_ASSIGN_OR_RETURN(const auto views, format::ParseHistogramsUntrusted(body));
        for (const format::HistogramView& view : views) {
          if (view.tensor != local->second) continue;
          SparseHistogram bins;
          LUFF_RETURN_IF_ERROR(format::DecodeHistogramUntrusted(view, &bins));
          use(info, bins);
          seen[n] = 1;
        }
      }
    }
  }
  return Status::Ok();
}

Result<std::vector<WorkerStep>> WorkerSteps(const Trial& trial, std::uint32_t worker) {
  const auto* run = dynamic_cast<const RunTrial*>(&trial);
  if (run == nullptr) return std::vector<WorkerStep>();
  return run->StepsOf(worker);
}

std::string DocumentOf(const Trial& trial, std::uint32_t worker, std::string_view name) {
  const auto* run = dynamic_cast<const RunTrial*>(&trial);
  return run == nullptr ? trial.Document(name) : run->DocumentOfWorker(worker, name);
}

Status VisitHistograms(const Trial& trial, TensorId id, std::int64_t from, std::int64_t to,
                       std::uint64_t max_bytes, const HistogramVisitor& use) {
  const auto* run = dynamic_cast<const RunTrial*>(&trial);
  return run == nullptr ? Status::Ok() : run->HistogramsOf(id, from, to, max_bytes, use);
}

}  // namespace luff::query
