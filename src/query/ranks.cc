#include "luff/query/ranks.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace luff::query {

std::size_t RanksOf(std::span<const WorkerInfo> workers, std::size_t world_size) {
  std::vector<std::pair<std::int64_t, int>> edges;  // at the first step +1, behind the last one -1
  for (const WorkerInfo& worker : workers) {
    if (worker.last_global_step < 0) continue;
    edges.emplace_back(std::max<std::int64_t>(worker.first_global_step, 0), 1);
    edges.emplace_back(worker.last_global_step + 1, -1);
  }
  std::ranges::sort(edges);  // one that ends goes before one that begins there
  std::size_t most = std::min(std::max<std::size_t>(world_size, 1), workers.size());
  std::size_t here = 0;
  for (const auto& [step, by] : edges) {
    here = by > 0 ? here + 1 : here - 1;
    most = std::max(most, here);
  }
  return most;
}

std::size_t RanksOf(const Trial& trial) { return RanksOf(trial.workers(), trial.world_size()); }

}  // namespace luff::query
