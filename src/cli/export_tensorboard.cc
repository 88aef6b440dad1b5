#include <algorithm>
#include <cmath>
#include <set>

#include "base/format.h"
#include "cli/export.h"
#include "luff/format/event_file.h"

namespace luff::cli {
namespace {

/// Bins as TensorBoard wants them: ascending right edges, with empty buckets for the gaps.
format::EventHistogram HistogramOf(const SparseHistogram& bins, const Summary& summary, DType dtype) {
  format::EventHistogram histogram;
  histogram.min = summary.min(dtype);
  histogram.max = summary.max(dtype);
  histogram.num = static_cast<double>(summary.finite_count());
  histogram.sum = summary.sum;
  histogram.sum_squares = summary.sum_sq;
  std::vector<HistogramBin> ordered(bins.begin(), bins.end());
  std::sort(ordered.begin(), ordered.end(), [](const HistogramBin& a, const HistogramBin& b) {
    return HistogramBinLow(a.bin) < HistogramBinLow(b.bin);
  });
  for (const HistogramBin& bin : ordered) {
    const double low = HistogramBinLow(bin.bin);
    const double high = HistogramBinHigh(bin.bin);
    if (!histogram.limits.empty() && histogram.limits.back() < low) {
      histogram.limits.push_back(low);
      histogram.counts.push_back(0);
    }
    if (!histogram.limits.empty() && histogram.limits.back() >= high) {
      histogram.counts.back() += static_cast<double>(bin.count);
      continue;
    }
    histogram.limits.push_back(high);
    histogram.counts.push_back(static_cast<double>(bin.count));
  }
  return histogram;
}

/// Writes one folder, which TensorBoard calls a run, for each mode and worker.
class TensorBoardExporter final : public Exporter {
 public:
  TensorBoardExporter(const OutputFolder& out, const ExportChoice* choice) : out_(out), choice_(choice) {}

  Status Begin(const query::Trial&, const ExportState& state) override {
    for (const auto& [name, counted] : state.files) {
      LUFF_ASSIGN_OR_RETURN(BufferedFile file, out_.OpenAt(name, counted));
      files_.emplace(name, std::move(file));
    }
    return Status::Ok();
  }

  Status Step(const query::Trial& trial, std::size_t n, const query::Trial::StepRows& rows) override {
    const query::StepInfo& info = rows.info;
    const double wall = static_cast<double>(info.wall_unix_ns) * 1e-9;
    std::set<std::pair<query::TensorId, std::uint32_t>> scalars;
    for (const auto& [tensor, worker, value] : rows.scalars) {
      if (!choice_->Takes(tensor, worker)) continue;
      scalars.emplace(tensor, worker);
      LUFF_RETURN_IF_ERROR(
          Write(trial, info, worker,
                format::EncodeScalar(wall, info.global_step, trial.tensor(tensor).name, value)));
    }
    for (const auto& [tensor, worker, dtype, s] : rows.summaries) {
      if (!choice_->Takes(tensor, worker)) continue;
      const std::string& name = trial.tensor(tensor).name;
      if (s.count == 1) {
        if (scalars.contains({tensor, worker})) continue;
        const double value = s.nan_count != 0 ? std::nan("") : s.inf_count != 0 ? HUGE_VAL : s.sum;
        LUFF_RETURN_IF_ERROR(
            Write(trial, info, worker, format::EncodeScalar(wall, info.global_step, name, value)));
        continue;
      }
      for (const auto& [stat, value] :
           {std::pair("mean/", s.mean()), {"std/", s.std()}, {"l2/", s.finite_count() == 0 ? NAN : s.l2()}}) {
        LUFF_RETURN_IF_ERROR(
            Write(trial, info, worker, format::EncodeScalar(wall, info.global_step, stat + name, value)));
      }
    }
    return Histograms(trial, n, rows, wall);
  }

  Status Flush(ExportState* state) override {
    for (auto& [name, file] : files_) {
      LUFF_RETURN_IF_ERROR(file.Flush());
      state->files[name] = file.bytes();
    }
    return Status::Ok();
  }

  Status End(const query::Trial&, bool) override { return Status::Ok(); }

 private:
  Status Histograms(const query::Trial& trial, std::size_t n, const query::Trial::StepRows& rows,
                    double wall) {
    LUFF_RETURN_IF_ERROR(trial.ReadStepContents(n, &contents_));
    InOrder(&contents_.values);
    InOrder(&contents_.histograms);
    std::set<std::pair<query::TensorId, std::uint32_t>> done;
    const query::StepInfo& info = rows.info;
    const auto write = [&](query::TensorId tensor, std::uint32_t worker, const SparseHistogram& bins,
                           const Summary& summary, DType dtype) -> Status {
      if (bins.empty()) return Status::Ok();
      return Write(trial, info, worker,
                   format::EncodeHistogram(wall, info.global_step, trial.tensor(tensor).name,
                                           HistogramOf(bins, summary, dtype)));
    };
    for (const auto& [tensor, worker, bins] : contents_.histograms) {
      if (!choice_->Takes(tensor, worker)) continue;
      const auto row = std::find_if(
          rows.summaries.begin(), rows.summaries.end(),
          [&, t = tensor, w = worker](const auto& entry) { return entry.tensor == t && entry.worker == w; });
      if (row == rows.summaries.end()) continue;
      done.emplace(tensor, worker);
      LUFF_RETURN_IF_ERROR(write(tensor, worker, bins, row->summary, row->dtype));
    }
    for (const auto& [tensor, worker] :
         contents_.values) {  // histograms that were not recorded are computed from values
      if (!choice_->Takes(tensor, worker) || done.contains({tensor, worker})) continue;
      const auto value = trial.ReadValue(tensor, info.global_step, query::Mode::kGlobal, worker);
      if (!value.ok()) {
        Remark(std::string(value.status().message()));
        continue;
      }
      if (value->dtype == DType::kString || value->bytes.size() <= DTypeSize(value->dtype)) continue;
      TensorView view;
      const std::int64_t elements = static_cast<std::int64_t>(value->bytes.size() / DTypeSize(value->dtype));
      LUFF_ASSIGN_OR_RETURN(view.layout, Layout::Contiguous(value->dtype, {&elements, 1}));
      view.data = value->bytes.data();
      dense_.assign(kHistogramBins, 0);
      Summary summary;
      SummarizeWithHistogram(view, &summary, dense_);
      LUFF_RETURN_IF_ERROR(write(tensor, worker, ToSparse(dense_), summary, value->dtype));
    }
    return Status::Ok();
  }

  Status Write(const query::Trial& trial, const query::StepInfo& info, std::uint32_t worker,
               const std::string& event) {
    std::string folder(query::ModeName(info.mode));
    for (char& c : folder) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (trial.world_size() > 1) folder += fmt::format("-worker-{}", worker);
    const std::int64_t created = trial.created_unix_ns() / 1'000'000'000;
    const std::string name = fmt::format("{}/events.out.tfevents.{:010d}.luff", folder, created);
    auto at = files_.find(name);
    if (at == files_.end()) {
      LUFF_ASSIGN_OR_RETURN(BufferedFile file, out_.OpenAt(name, 0));
      at = files_.emplace(name, std::move(file)).first;
      record_.clear();
      format::AppendRecord(format::EncodeFileVersion(static_cast<double>(created)),
                           format::RecordFooter::kPayloadCrc, &record_);
      LUFF_RETURN_IF_ERROR(at->second.Append(record_));
    }
    record_.clear();
    format::AppendRecord(event, format::RecordFooter::kPayloadCrc, &record_);
    bytes_ += record_.size();
    return at->second.Append(record_);
  }

  const OutputFolder& out_;
  std::string record_;
  const ExportChoice* choice_;
  std::map<std::string, BufferedFile> files_;
  query::Trial::StepContents contents_;
  std::vector<std::uint64_t> dense_;
};

}  // namespace

std::unique_ptr<Exporter> MakeTensorBoardExporter(const OutputFolder& out, const ExportChoice* choice) {
  return std::make_unique<TensorBoardExporter>(out, choice);
}

}  // namespace luff::cli
