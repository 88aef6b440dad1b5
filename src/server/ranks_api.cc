#include "server/ranks_api.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "base/format.h"
#include "luff/query/run_pieces.h"

namespace luff::server {
namespace {

using TensorRole = query::Role;  // the server has roles of its own
using query::Trial;

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kMostRankPoints = 1024;
constexpr std::size_t kMostRanks = 1024;
constexpr std::size_t kMostRows = 4'000'000;  // compared in one answer

/// What is compared. Replicas hold the same parameters; gradients and losses of a rank belong to its own rows
/// until they are averaged.
enum Group : std::size_t { kParameters, kGradients, kLosses, kGroups };
constexpr const char* kGroupNames[kGroups] = {"parameters", "gradients", "losses"};

std::optional<Group> GroupOf(TensorRole role) {
  if (role == TensorRole::kWeight || role == TensorRole::kBias || role == TensorRole::kBuffer ||
      role == TensorRole::kOptimizerState)
    return kParameters;
  if (role == TensorRole::kGradient) return kGradients;
  if (role == TensorRole::kLoss) return kLosses;
  return std::nullopt;
}

/// Numbers of ranks x buckets, row by row.
struct Table {
  Table(std::size_t rows, std::size_t wide, double value) : columns(wide), values(rows * wide, value) {}
  double& at(std::size_t row, std::size_t column) { return values[row * columns + column]; }
  std::size_t columns;
  std::vector<double> values;
};

struct Bucket {
  std::int64_t first, last;
  std::size_t n;  // position of its last step
};

/// The steps in buckets of 2^k global steps, k being the smallest for which there are at most `points`.
std::vector<Bucket> BucketsOf(const Trial& trial, const RanksQuestion& q, int* bits) {
  std::map<std::int64_t, Bucket> steps;
  for (std::size_t n = 0; n < trial.step_count(); ++n) {
    const query::StepInfo info = trial.step_at(n);
    if (!info.superseded && info.global_step >= q.from && info.global_step <= q.to)
      steps.insert_or_assign(info.global_step, Bucket{info.global_step, info.global_step, n});
  }
  std::vector<Bucket> buckets;
  for (*bits = 0;; ++*bits) {
    buckets.clear();
    for (const auto& [step, bucket] : steps) {
      if (buckets.empty() || buckets.back().last >> *bits != step >> *bits) {
        if (buckets.size() == q.points) break;
        buckets.push_back(bucket);
      } else {
        buckets.back().last = step;
        buckets.back().n = bucket.n;
      }
    }
    if (buckets.empty() || buckets.back().last == steps.rbegin()->first) return buckets;
  }
}

/// The norms, hashes and losses of one tensor at one step, by rank.
struct Seen {
  std::vector<std::pair<std::size_t, double>> norms;  // rank, value
  std::vector<std::pair<std::size_t, std::uint64_t>> hashes;
};

/// How far each value is from the median of all, as a share of it; infinite for one that is not finite among
/// finite ones.
void Distances(const std::vector<std::pair<std::size_t, double>>& values, auto use) {
  std::vector<double> finite;
  for (const auto& [rank, value] : values) {
    if (std::isfinite(value)) finite.push_back(value);
  }
  if (finite.empty()) return;
  std::ranges::sort(finite);
  const std::size_t half = finite.size() / 2;
  const double median = finite.size() % 2 == 1 ? finite[half] : (finite[half - 1] + finite[half]) / 2;
  const double size = std::max(std::fabs(median), std::numeric_limits<double>::min());
  for (const auto& [rank, value] : values)
    use(rank,
        std::isfinite(value) ? std::fabs(value - median) / size : std::numeric_limits<double>::infinity());
}

/// Compares the ranks at single steps.
class Comparison {
 public:
  Comparison(const Trial& trial, const std::vector<std::uint32_t>& ranks, std::size_t columns)
      : trial_(trial) {
    for (std::size_t i = 0; i < ranks.size(); ++i) row_of_[ranks[i]] = i;
    for (std::size_t g = 0; g < kGroups; ++g) {
      distance_.emplace_back(ranks.size(), columns, kNothing);
      tensor_.emplace_back(ranks.size(), columns, -1);
    }
    hashes_.emplace_back(ranks.size(), columns, kNothing);
  }

  /// Returns how many rows were read.
  [[nodiscard]] Result<std::size_t> Compare(std::size_t n, std::size_t column) {
    LUFF_RETURN_IF_ERROR(trial_.ReadStepRows(n, &rows_));
    std::map<query::TensorId, Seen> seen;
    for (const Trial::SummaryEntry& one : rows_.summaries)
      seen[one.tensor].norms.emplace_back(row_of_[one.worker], NormOf(one));
    for (const Trial::ScalarEntry& one : rows_.scalars)
      seen[one.tensor].norms.emplace_back(row_of_[one.worker], one.value);
    for (const Trial::FormEntry& one : rows_.forms) {
      if (one.row.form == static_cast<std::uint16_t>(format::Form::kHash))
        seen[one.tensor].hashes.emplace_back(row_of_[one.worker],
                                             std::bit_cast<std::uint64_t>(one.row.values[0]));
    }
    for (const auto& [tensor, values] : seen) {
      const auto group = GroupOf(trial_.tensor(tensor).role);
      if (group && values.norms.size() > 1) {
        Distances(values.norms, [&](std::size_t rank, double distance) {
          double& largest = distance_[*group].at(rank, column);
          if (!std::isnan(largest) && distance <= largest) return;
          largest = distance;
          tensor_[*group].at(rank, column) = tensor;
        });
      }
      if (group == kParameters && values.hashes.size() > 1) CountHashes(values.hashes, column);
    }
    return rows_.summaries.size() + rows_.scalars.size() + rows_.forms.size();
  }

  void AddTo(Payload* payload) const {
    for (std::size_t g = 0; g < kGroups; ++g) {
      const std::string name = kGroupNames[g];
      payload->AddRows(name + ".distance", distance_[g].values, distance_[g].columns);
      const std::vector<std::int64_t> tensors(tensor_[g].values.begin(), tensor_[g].values.end());
      payload->AddRows(name + ".tensor", tensors, tensor_[g].columns);
    }
    payload->AddRows("hashes", hashes_.front().values, hashes_.front().columns);
  }

 private:
  static double NormOf(const Trial::SummaryEntry& one) {
    const Summary& s = one.summary;
    return s.nan_count + s.inf_count != 0 ? kNothing : s.l2();
  }
  /// Counts a tensor for each rank whose hash is not the most frequent one.
  void CountHashes(const std::vector<std::pair<std::size_t, std::uint64_t>>& hashes, std::size_t column) {
    std::map<std::uint64_t, std::size_t> count;
    for (const auto& [rank, hash] : hashes) ++count[hash];
    const auto usual = std::ranges::max_element(count, {}, [](const auto& one) { return one.second; });
    for (const auto& [rank, hash] : hashes) {
      double& differing = hashes_.front().at(rank, column);
      // Of two halves that differ, neither is right: both are counted.
      const bool other = hash != usual->first || (count.size() > 1 && 2 * usual->second <= hashes.size());
      differing = (std::isnan(differing) ? 0 : differing) + (other ? 1 : 0);
    }
  }

  const Trial& trial_;
  Trial::StepRows rows_;
  std::map<std::uint32_t, std::size_t> row_of_;
  std::vector<Table> distance_, tensor_, hashes_;
};

}  // namespace

Status AddRanks(const Trial& trial, const RanksQuestion& q, Payload* payload) {
  if (q.from > q.to || q.from < 0) return InvalidArgument("from must be at least 0 and at most to");
  std::vector<std::uint32_t> ranks;
  for (const query::WorkerInfo& worker : trial.workers()) ranks.push_back(worker.worker);
  if (ranks.size() > kMostRanks)
    return ResourceExhausted(fmt::format("{} ranks are more than are compared at once", ranks.size()));
  int bits = 0;
  const std::vector<Bucket> buckets = BucketsOf(trial, q, &bits);
  std::vector<std::size_t> column_of(trial.step_count(), SIZE_MAX);
  std::vector<std::int64_t> step, last;
  for (const Bucket& bucket : buckets) {
    step.push_back(bucket.first);
    last.push_back(bucket.last);
  }
  for (std::size_t n = 0; n < column_of.size(); ++n) {
    const std::int64_t at = trial.step_at(n).global_step;
    const auto found = std::ranges::lower_bound(last, at);
    if (found != last.end() && at >= step[static_cast<std::size_t>(found - last.begin())])
      column_of[n] = static_cast<std::size_t>(found - last.begin());
  }
  Table duration(ranks.size(), buckets.size(), kNothing), behind(ranks.size(), buckets.size(), kNothing);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    LUFF_ASSIGN_OR_RETURN(const auto passed, query::WorkerSteps(trial, ranks[rank]));
    for (const auto& one : passed) {
      if (one.n >= column_of.size() || column_of[one.n] == SIZE_MAX) continue;
      double& longest = duration.at(rank, column_of[one.n]);
      longest = std::fmax(longest, static_cast<double>(one.duration_ns) * 1e-9);
      // The step table has the time of the first rank that passed.
      double& latest = behind.at(rank, column_of[one.n]);
      latest =
          std::fmax(latest, static_cast<double>(one.wall_unix_ns - trial.step_at(one.n).wall_unix_ns) * 1e-9);
    }
  }
  Comparison comparison(trial, ranks, buckets.size());
  std::size_t every = 1;
  if (ranks.size() > 1) {
    // What the newest step takes tells how many are compared.
    for (std::size_t i = buckets.size(); i-- > 0;) {
      if ((buckets.size() - 1 - i) % every != 0) continue;
      LUFF_ASSIGN_OR_RETURN(const std::size_t rows, comparison.Compare(buckets[i].n, i));
      if (i == buckets.size() - 1)
        every = std::max<std::size_t>(1, (rows * buckets.size() + kMostRows - 1) / kMostRows);
    }
  }
  payload->Add("rank", std::vector<std::int64_t>(ranks.begin(), ranks.end()));
  payload->Add("step", step);
  payload->Add("last", last);
  payload->AddRows("duration_s", duration.values, std::max<std::size_t>(buckets.size(), 1));
  payload->AddRows("behind_s", behind.values, std::max<std::size_t>(buckets.size(), 1));
  comparison.AddTo(payload);
  payload->Tell("steps", std::to_string(std::uint64_t{1} << bits));
  payload->Tell("compared_every", std::to_string(every));
  return Status::Ok();
}

Result<Response> RanksRoute(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)listed;
  RanksQuestion q;
  LUFF_ASSIGN_OR_RETURN(q.from, NumberIn<std::int64_t>(request, "from", 0));
  LUFF_ASSIGN_OR_RETURN(q.to, NumberIn<std::int64_t>(request, "to", INT64_MAX));
  LUFF_ASSIGN_OR_RETURN(q.points, NumberIn<std::size_t>(request, "points", q.points));
  if (q.points == 0 || q.points > kMostRankPoints)
    return InvalidArgument(fmt::format("points is {}, expected 1 to {}", q.points, kMostRankPoints));
  Payload payload;
  LUFF_RETURN_IF_ERROR(AddRanks(run.trial(), q, &payload));
  return Response{.type = "application/vnd.safetensors", .body = payload.Bytes()};
}

}  // namespace luff::server
