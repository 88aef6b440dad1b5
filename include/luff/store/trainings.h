#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "luff/base/env.h"
#include "luff/base/result.h"

/// The trainings of one job. A job may start several, one after the other or at once: a sweep, the folds of a
/// cross-validation. Each has a run of its own; that of the first one lists them (docs/spec/run-format.md).
namespace luff::store {

struct Training {
  std::uint32_t number = 0;  // its place in the list: 1, 2, ...
  std::string job;           // a random id; a resumed job has another one
  std::string world;         // names the processes that train one model together
  std::string command;       // JSON text of the argument vector
  std::string run;           // path of its run
};

/// Returns the run of the training that the world `wanted.world` is or belongs to, and adds it to the list of
/// `first_run` if it is new. The first training of a job has `first_run`, the others have the directories
/// `first_run`-2, -3, ... With `resume`, a training goes on with a run of the job's earlier parts: that of
/// the same command, or else the next one. `rank`: of this process in its world, or kNoId; a rank that
/// completed its training in a run of that name begins another one. Any number of processes may call it at
/// once. Errors: kResourceExhausted after 9999 trainings; those of making a directory. The list may name a
/// directory a moment before it exists.
[[nodiscard]] Result<std::string> FindTraining(const std::string& first_run, const Training& wanted,
                                               std::uint32_t rank, bool resume, Env& env = Env::Real());

/// Returns the trainings with a number above `after`, in their order. Skips entries that cannot be read.
[[nodiscard]] std::vector<Training> ReadTrainings(const std::string& first_run, std::uint32_t after,
                                                  Env& env = Env::Real());

}  // namespace luff::store
