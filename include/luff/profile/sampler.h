#pragma once
#include <cstdint>
#include <string>

#include "luff/base/result.h"

/// Measures a machine while a run is written: the work of `luff _sample`.
namespace luff::profile {

struct SamplerOptions {
  std::string run_path;
  /// Ends when nobody holds the other end of this pipe. -1: ends when no process on this machine writes into
  /// the run any more.
  int until_closed_fd = -1;
  double hz = 2;            // 0.1 to 10
  bool gpus = true;         // ask drivers
  std::string nvml;         // library to load instead of libnvidia-ml.so.1
  std::string root;         // before /proc and /sys, for tests
  double wait_s = 60;       // for the run, and for a process that writes into it, where there is no pipe
  std::uint64_t ticks = 0;  // ends after so many, for tests and benchmarks; 0: never
};

/// For main() of a process that only samples: lets the training go first, and ends in order when a signal
/// asks.
void BecomeSampler() noexcept;

/// Measures until the job has ended. One sampler works for a run on a machine; another one returns at once.
/// Prints nothing. Errors: those of opening the folder; a run that is removed, or never comes, is none.
[[nodiscard]] Status RunSampler(const SamplerOptions& options);

}  // namespace luff::profile
