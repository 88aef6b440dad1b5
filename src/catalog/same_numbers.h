#pragma once
#include <cstdint>
#include <vector>

#include "luff/query/trial.h"

/// Which runs compute the same numbers, over many runs at once: hashes of what was recorded are compared, and
/// no values are read.
namespace luff::catalog {

/// A hash of all that a run recorded up to each of its TRAIN steps: statistics of weights, biases and
/// gradients, and losses, of worker 0, by their names. Settings of optimizers are left out: they differ where
/// the parameter that sets them does.
struct Fingerprint {
  std::vector<std::int64_t> step;    // ascending, as TRAIN counts them
  std::vector<std::uint64_t> until;  // of all up to the step; equal if all was the same bit for bit
  std::uint64_t numbers = 0;         // that were hashed
  bool whole = true;                 // false: later steps were not read
};

/// At most about `budget` rows are read.
[[nodiscard]] Result<Fingerprint> FingerprintOf(const query::Trial& trial, std::uint64_t budget);

/// What a run has in common with the one that is most like it.
struct Nearest {
  std::size_t other = 0;       // its place; meaningless if `same` is 0
  std::uint64_t same = 0;      // steps from the first on in which all numbers are the same
  bool to_the_end = false;     // of the run that is shorter
  std::int64_t parts_at = -1;  // TRAIN step of the first number that differs; -1 if none does
};

/// For each run; one sort in place of all pairs.
[[nodiscard]] std::vector<Nearest> NearestOf(const std::vector<Fingerprint>& runs);

/// Runs whose numbers are all the same as far as the shorter of each two goes, in at least `fewest` steps.
/// Each of at least two, their places ascending.
[[nodiscard]] std::vector<std::vector<std::size_t>> SameRuns(const std::vector<Fingerprint>& runs,
                                                             std::size_t fewest);

}  // namespace luff::catalog
