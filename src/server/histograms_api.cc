#include "server/histograms_api.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/format.h"
#include "luff/query/run_pieces.h"
#include "server/histogram.h"

namespace luff::server {
namespace {

using query::Mode;

constexpr std::size_t kMost = 512;                               // points, and bins
constexpr std::uint64_t kMostRead = std::uint64_t{1} << 30;      // bytes of rows of all tensors
constexpr std::uint64_t kMostValues = std::uint64_t{256} << 20;  // bytes of raw values
constexpr double kLevels[] = {0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1};

/// Histograms by buckets of 2^k steps, k being the smallest for which there are at most `limit` buckets.
class Buckets {
 public:
  struct Bucket {
    std::int64_t first, last;
    SparseHistogram bins;
  };
  explicit Buckets(std::size_t limit) : limit_(limit) {}

  void Add(std::int64_t step, const SparseHistogram& bins) {
    Put({step, step, bins});
    while (buckets_.size() > limit_) {
      ++bits_;
      auto before = std::exchange(buckets_, {});
      for (auto& [key, bucket] : before) Put(std::move(bucket));
    }
  }
  [[nodiscard]] const std::map<std::int64_t, Bucket>& all() const noexcept { return buckets_; }
  [[nodiscard]] int bits() const noexcept { return bits_; }
  [[nodiscard]] bool merged() const noexcept { return merged_; }

 private:
  void Put(Bucket bucket) {
    const auto [at, is_new] = buckets_.try_emplace(bucket.first >> bits_, bucket);
    if (is_new) return;
    merged_ = true;
    at->second.first = std::min(at->second.first, bucket.first);
    at->second.last = std::max(at->second.last, bucket.last);
    MergeHistogram(bucket.bins, &at->second.bins);
  }
  const std::size_t limit_;
  int bits_ = 0;
  bool merged_ = false;
  std::map<std::int64_t, Bucket> buckets_;
};

/// Histograms of raw values: of the first value in each bucket, since values are large.
Status AddOfValues(const query::Trial& trial, const HistogramsQuestion& q, Buckets* buckets) {
  LUFF_ASSIGN_OR_RETURN(auto steps, trial.ValueSteps(q.tensor, Mode::kGlobal));
  std::erase_if(steps, [&](std::int64_t step) { return step < q.from || step > q.to; });
  for (int bits = 0; steps.size() > q.points && bits < 62; ++bits) {
    const auto same = [&](std::int64_t a, std::int64_t b) { return a >> bits == b >> bits; };
    steps.erase(std::unique(steps.begin(), steps.end(), same), steps.end());
  }
  std::uint64_t read = 0;
  std::vector<std::uint64_t> dense(kHistogramBins);
  for (const std::int64_t step : steps) {
    const auto value = trial.ReadValue(q.tensor, step, Mode::kGlobal);
    if (!value.ok()) continue;  // deleted meanwhile
    read += value->bytes.size();
    if (read > kMostValues)
      return ResourceExhausted("the values of these steps are more than is read at once");
    const auto layout = Layout::Contiguous(value->dtype, value->shape);
    if (!layout.ok() || value->dtype == DType::kString || value->dtype == DType::kInvalid) continue;
    std::ranges::fill(dense, 0);
    AddHistogram({value->bytes.data(), *layout}, dense);
    buckets->Add(step, ToSparse(dense));
  }
  return Status::Ok();
}

}  // namespace

Status AddHistograms(const query::Trial& trial, const HistogramsQuestion& q, Payload* payload) {
  if (q.tensor >= trial.tensor_count())
    return NotFound(fmt::format("there is no tensor {}; the run has {}", q.tensor, trial.tensor_count()));
  if (q.from > q.to || q.from < 0) return InvalidArgument("from must be at least 0 and at most to");
  Buckets buckets(q.points);
  LUFF_RETURN_IF_ERROR(query::VisitHistograms(trial, q.tensor, q.from, q.to, kMostRead,
                                              [&](const query::StepInfo& info, const SparseHistogram& bins) {
                                                buckets.Add(info.global_step, bins);
                                              }));
  std::string source = "histogram";
  if (buckets.all().empty()) {
    LUFF_RETURN_IF_ERROR(AddOfValues(trial, q, &buckets));
    source = buckets.all().empty() ? "none" : "raw";
  }
  std::vector<const SparseHistogram*> histograms;
  for (const auto& [key, bucket] : buckets.all()) histograms.push_back(&bucket.bins);
  const SharedBins shared(histograms, q.bins, q.log);
  std::vector<std::int64_t> step, last;
  std::vector<double> total, counts, quantiles;
  for (const auto& [key, bucket] : buckets.all()) {
    step.push_back(bucket.first);
    last.push_back(bucket.last);
    const std::vector<double> row = shared.Counts(bucket.bins);
    counts.insert(counts.end(), row.begin(), row.end());
    double sum = 0;
    for (const HistogramBin& bin : bucket.bins) sum += static_cast<double>(bin.count);
    total.push_back(sum);
    for (const double level : kLevels) quantiles.push_back(HistogramQuantile(bucket.bins, level));
  }
  payload->Add("step", step);
  payload->Add("last", last);
  payload->Add("total", total);
  payload->Add("edges", shared.edges());
  payload->AddRows("counts", counts, std::max<std::size_t>(shared.count(), 1));
  payload->Add("levels", std::vector<double>(std::begin(kLevels), std::end(kLevels)));
  payload->AddRows("quantiles", quantiles, std::size(kLevels));
  payload->Tell("name", trial.tensor(q.tensor).name);
  payload->Tell("source", source);
  payload->Tell("steps", std::to_string(std::uint64_t{1} << buckets.bits()));
  payload->Tell("exact", buckets.merged() ? "0" : "1");
  payload->Tell("scale", q.log ? "log" : "linear");
  return Status::Ok();
}

Result<Response> HistogramsRoute(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)listed;
  HistogramsQuestion q;
  LUFF_ASSIGN_OR_RETURN(q.tensor, NumberIn<query::TensorId>(request, "tensor", UINT32_MAX));
  LUFF_ASSIGN_OR_RETURN(q.from, NumberIn<std::int64_t>(request, "from", 0));
  LUFF_ASSIGN_OR_RETURN(q.to, NumberIn<std::int64_t>(request, "to", INT64_MAX));
  LUFF_ASSIGN_OR_RETURN(q.points, NumberIn<std::size_t>(request, "points", q.points));
  LUFF_ASSIGN_OR_RETURN(q.bins, NumberIn<std::size_t>(request, "bins", q.bins));
  if (q.points == 0 || q.points > kMost || q.bins == 0 || q.bins > kMost)
    return InvalidArgument(fmt::format("points and bins are 1 to {}", kMost));
  const std::string_view scale = request.Parameter("scale");
  if (!scale.empty() && scale != "linear" && scale != "log") return InvalidArgument("scale is linear or log");
  q.log = scale == "log";
  Payload payload;
  LUFF_RETURN_IF_ERROR(AddHistograms(run.trial(), q, &payload));
  return Response{.type = "application/vnd.safetensors", .body = payload.Bytes()};
}

}  // namespace luff::server
