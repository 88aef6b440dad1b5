#include "server/norms_api.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/format.h"

namespace luff::server {
namespace {

constexpr std::size_t kNormPoints = 256;
constexpr double kNoNorm = std::numeric_limits<double>::quiet_NaN();

using TensorIds = std::vector<query::TensorId>;

TensorIds OfRole(const query::Trial& trial, query::Role role, std::size_t known) {
  TensorIds found;
  for (query::TensorId id = 0; id < std::min<std::size_t>(trial.tensor_count(), known); ++id) {
    if (trial.tensor(id).role == role) found.push_back(id);
  }
  return found;
}

/// The cells of some tensors in neighbouring columns, joined.
struct JoinedCells {
  explicit JoinedCells(std::size_t tensors) : lo(tensors), hi(tensors) {}
  std::vector<float> lo, hi;
  std::uint8_t flags = 0;

  void Join(const Overview& overview, std::size_t first, std::size_t last, std::size_t place,
            const TensorIds& tensors) {
    std::ranges::fill(lo, std::numeric_limits<float>::infinity());
    std::ranges::fill(hi, -std::numeric_limits<float>::infinity());
    flags = first < overview.unread() ? HeatMap::kNotRead : std::uint8_t{0};
    for (std::size_t column = first; column < last; ++column) {
      const Overview::Cells cells = overview.At(column, place);
      if (cells.lo.empty()) continue;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        lo[i] = std::min(lo[i], cells.lo[tensors[i]]);
        hi[i] = std::max(hi[i], cells.hi[tensors[i]]);
        flags |= cells.flags[tensors[i]];
      }
    }
  }
};

struct NormBounds {
  std::vector<double> lo, hi;
  std::vector<std::uint8_t> flags;

  void AddTo(const std::string& name, Payload* payload) const {
    payload->Add(name + ".lo", lo);
    payload->Add(name + ".hi", hi);
    payload->Add(name + ".flags", flags);
  }
};

void AddRoot(const JoinedCells& from, NormBounds* to) {
  double lo = 0, hi = 0;
  bool any = false;
  for (std::size_t i = 0; i < from.lo.size(); ++i) {
    if (!(from.lo[i] <= from.hi[i])) continue;
    any = true;
    lo += static_cast<double>(from.lo[i]) * static_cast<double>(from.lo[i]);
    hi += static_cast<double>(from.hi[i]) * static_cast<double>(from.hi[i]);
  }
  to->lo.push_back(any ? std::sqrt(lo) : kNoNorm);
  to->hi.push_back(any ? std::sqrt(hi) : kNoNorm);
  to->flags.push_back(from.flags);
}

void AddExtremes(const JoinedCells& from, NormBounds* to) {
  double lo = kNoNorm, hi = kNoNorm;
  for (std::size_t i = 0; i < from.lo.size(); ++i) {
    if (!(from.lo[i] <= from.hi[i])) continue;
    lo = std::fmin(lo, static_cast<double>(from.lo[i]));
    hi = std::fmax(hi, static_cast<double>(from.hi[i]));
  }
  to->lo.push_back(lo);
  to->hi.push_back(hi);
  to->flags.push_back(from.flags);
}

}  // namespace

void AddNorms(const Overview& overview, const query::Trial& trial, std::size_t points, Payload* payload) {
  int more = 0;
  while ((overview.used() >> more) > points) ++more;
  const std::size_t width = std::size_t{1} << more;
  const TensorIds gradients = OfRole(trial, query::Role::kGradient, overview.tensors());
  const TensorIds weights = OfRole(trial, query::Role::kWeight, overview.tensors());
  const auto place = [](std::string_view name) {
    return static_cast<std::size_t>(FindStatistic(name)->place);
  };
  JoinedCells norms(gradients.size()), ratios(weights.size());
  std::vector<std::int64_t> step;
  NormBounds gradient, update;
  for (std::size_t first = 0; first < overview.used(); first += width) {
    const std::size_t last = std::min(first + width, overview.used());
    step.push_back(static_cast<std::int64_t>(first) << overview.bits());
    norms.Join(overview, first, last, place("l2"), gradients);
    ratios.Join(overview, first, last, place("update_ratio"), weights);
    AddRoot(norms, &gradient);
    AddExtremes(ratios, &update);
  }
  payload->Add("step", step);
  gradient.AddTo("gradient", payload);
  update.AddTo("update", payload);
  payload->Tell("steps", fmt::format("{}", std::int64_t{1} << (overview.bits() + more)));
}

Result<Response> NormsRoute(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)listed, (void)request;
  LUFF_ASSIGN_OR_RETURN(const bool complete, run.ReadOverview(query::Mode::kTrain));
  Payload payload;
  AddNorms(run.Heat(*FindStatistic("l2"), query::Mode::kTrain).overview(), run.trial(), kNormPoints,
           &payload);
  payload.Tell("complete", complete ? "1" : "0");
  return Response{.type = "application/vnd.safetensors", .body = payload.Bytes()};
}

}  // namespace luff::server
