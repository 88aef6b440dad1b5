#include "catalog/same_numbers.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <numeric>
#include <string>

#include "luff/query/row_visit.h"

namespace luff::catalog {
namespace {

using query::Mode;
using query::Role;

constexpr std::size_t kStepsAtOnce = 4096;  // steps that are read at once

std::uint64_t Woven(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
  return hash ^ (hash >> 29);
}

bool IsOfTheModel(Role role) {
  return role == Role::kLoss || role == Role::kWeight || role == Role::kBias || role == Role::kGradient;
}

std::uint64_t HashOf(const query::SummaryStretch& one, std::size_t k, std::uint64_t name) {
  std::uint64_t hash = name;
  for (const std::uint64_t word :
       {one.count[k], one.min_bits[k], one.max_bits[k], one.zero_count[k], one.nan_count[k], one.inf_count[k],
        std::bit_cast<std::uint64_t>(one.sum[k]), std::bit_cast<std::uint64_t>(one.sum_sq[k])})
    hash = Woven(hash, word);
  return hash;
}

/// Places in the order of the hashes: runs that begin alike stand together.
std::vector<std::size_t> Sorted(const std::vector<Fingerprint>& runs) {
  std::vector<std::size_t> order(runs.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return std::ranges::lexicographical_compare(runs[a].until, runs[b].until);
  });
  return order;
}

Nearest Between(const std::vector<Fingerprint>& runs, std::size_t of, std::size_t other) {
  const Fingerprint& a = runs[of];
  const Fingerprint& b = runs[other];
  if (a.numbers == 0 || b.numbers == 0) return {};
  const std::size_t shorter = std::min(a.until.size(), b.until.size());
  Nearest one;
  one.other = other;
  // The hashes are of all that came before: once they differ they stay so.
  std::size_t same = 0;
  for (std::size_t step = std::bit_floor(std::max<std::size_t>(shorter, 1)); step > 0; step /= 2) {
    if (same + step <= shorter && a.until[same + step - 1] == b.until[same + step - 1]) same += step;
  }
  one.same = same;
  one.to_the_end = same == shorter;
  if (!one.to_the_end) one.parts_at = std::min(a.step[same], b.step[same]);
  return one;
}

}  // namespace

Result<Fingerprint> FingerprintOf(const query::Trial& trial, std::uint64_t budget) {
  std::vector<std::uint64_t> names(trial.tensor_count(), 0);  // 0: not looked at
  std::vector<query::TensorId> scalars;
  for (query::TensorId id = 0; id < trial.tensor_count(); ++id) {
    const query::TensorInfo& info = trial.tensor(id);
    if (!IsOfTheModel(info.role)) continue;
    names[id] = std::hash<std::string>()(info.name) | 1;
    if (info.role == Role::kLoss) scalars.push_back(id);
  }
  std::map<std::int64_t, std::size_t> places;  // of TRAIN steps, by their number
  for (std::size_t n = 0; n < trial.step_count(); ++n) {
    const query::StepInfo info = trial.step_at(n);
    if (info.mode == Mode::kTrain && !info.superseded) places[info.mode_step] = n;
  }
  std::vector<std::uint64_t> at_step(trial.step_count(), 0);
  Fingerprint print;
  std::size_t read = 0;
  for (; read < at_step.size() && print.numbers < budget; read += kStepsAtOnce) {
    const std::size_t end = std::min(at_step.size(), read + kStepsAtOnce);
    LUFF_RETURN_IF_ERROR(query::VisitRows(trial, read, end, [&](const query::SummaryStretch& one) {
      if (one.worker != 0 || one.tensor >= names.size() || names[one.tensor] == 0) return;
      for (std::size_t k = 0; k < one.count.size() && one.first + k < at_step.size(); ++k) {
        at_step[one.first + k] += HashOf(one, k, names[one.tensor]);  // in any order
        ++print.numbers;
      }
    }));
  }
  for (const query::TensorId id : scalars) {
    const auto values = trial.Scalars(id, Mode::kTrain);
    if (!values.ok()) continue;
    for (const query::ScalarAt& value : *values) {
      const auto at = places.find(value.mode_step);
      if (at == places.end()) continue;
      at_step[at->second] += Woven(names[id], std::bit_cast<std::uint64_t>(value.value));
      ++print.numbers;
    }
  }
  std::uint64_t until = 1;
  for (const auto& [number, n] : places) {
    if (n >= read) {
      print.whole = false;
      break;
    }
    until = Woven(Woven(until, static_cast<std::uint64_t>(number)), at_step[n]);
    print.step.push_back(number);
    print.until.push_back(until);
  }
  return print;
}

std::vector<Nearest> NearestOf(const std::vector<Fingerprint>& runs) {
  std::vector<Nearest> nearest(runs.size());
  const std::vector<std::size_t> order = Sorted(runs);
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    for (const auto& [of, other] : {std::pair(order[i], order[i + 1]), std::pair(order[i + 1], order[i])}) {
      const Nearest one = Between(runs, of, other);
      if (one.same > nearest[of].same) nearest[of] = one;
    }
  }
  return nearest;
}

std::vector<std::vector<std::size_t>> SameRuns(const std::vector<Fingerprint>& runs, std::size_t fewest) {
  std::vector<std::vector<std::size_t>> groups;
  const std::vector<std::size_t> order = Sorted(runs);
  for (std::size_t i = 0; i < order.size();) {
    std::vector<std::size_t> group{order[i]};
    std::size_t k = i + 1;
    for (; k < order.size(); ++k) {
      const Nearest one = Between(runs, order[i], order[k]);
      const Nearest before = Between(runs, order[k - 1], order[k]);
      if (!one.to_the_end || !before.to_the_end || std::min(one.same, before.same) < fewest) break;
      group.push_back(order[k]);
    }
    i = k;
    if (group.size() < 2) continue;
    std::ranges::sort(group);
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace luff::catalog
