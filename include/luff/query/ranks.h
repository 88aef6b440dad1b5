#pragma once
#include <cstddef>
#include <span>

#include "luff/query/trial.h"

namespace luff::query {

/// How many processes trained side by side: at least `world_size` of the workers that there are, and as many
/// as have steps in common. Each part of a resumed job without ranks has a worker of its own
/// (docs/spec/run-format.md): three such parts are one rank.
[[nodiscard]] std::size_t RanksOf(std::span<const WorkerInfo> workers, std::size_t world_size);
[[nodiscard]] std::size_t RanksOf(const Trial& trial);

}  // namespace luff::query
