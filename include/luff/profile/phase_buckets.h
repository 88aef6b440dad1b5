#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "luff/query/run_pieces.h"
#include "luff/query/samples.h"

/// The phases of a run, and what its machines did meanwhile, as buckets of steps: for charts.
namespace luff::profile {

struct BucketQuestion {
  std::optional<std::uint32_t> worker;    // none: the first that recorded phases
  std::int64_t from = 0, to = INT64_MAX;  // global steps, both included
  std::size_t points = 1024;              // buckets at most; at least 1
};

/// Least, greatest and mean value in each bucket; NaN where nothing is known.
struct Band {
  std::vector<float> lo, hi, mean;
  void Grow(std::size_t size);
};

/// Buckets hold 2^k global steps and begin at multiples of that; k is the smallest for which at most `points`
/// of them cover the steps that were asked for. Only TRAIN steps with phases are in them; a bucket without
/// any is left out.
struct PhaseBuckets {
  std::uint32_t worker = 0;
  std::vector<std::uint32_t> workers;  // that recorded phases
  std::int64_t bucket_steps = 1;       // 2^k
  // One entry for each bucket. The first and last step of it, as global steps and as TRAIN steps.
  std::vector<std::int64_t> step, last, train, train_last;
  std::vector<std::int64_t> begin_unix_ns, end_unix_ns;  // by the worker's clock
  std::vector<std::int64_t> steps;               // with phases; a merged one counts as all it stands for
  Band wall;                                     // seconds a step
  std::array<Band, format::kPhaseCount> phases;  // seconds a step; empty: the phase does not occur. 0 where a
                                                 // step does not have it
  // Shares of the time for which the training thread ran, and could have run and had no core.
  std::vector<float> cpu, run_queue;
};
/// Errors: those of reading, and of WorkBound.
[[nodiscard]] Result<PhaseBuckets> BucketsOf(const query::Trial& trial, const BucketQuestion& question);

/// What one machine did in each bucket.
struct MachineBands {
  std::uint32_t host = 0;
  struct Named {
    std::string name;  // docs/spec/http-api.md, "profile/steps"
    Band band;
  };
  std::vector<Named> bands;  // those that were measured
};
/// A rate lies between the two samples that tell it, and counts in each bucket by how much of it is there. A
/// bucket without samples has NaN. Constant memory beside the answer. Errors: those of reading.
[[nodiscard]] Result<MachineBands> BandsOf(const query::HostSamples& host, const PhaseBuckets& buckets);

}  // namespace luff::profile
