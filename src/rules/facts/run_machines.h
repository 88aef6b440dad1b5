#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "luff/profile/machine.h"
#include "luff/query/samples.h"
#include "luff/query/trial.h"

namespace luff::rules {

/// **Thread-compatible.** What the samplers of a run measured, read once for all rules of an evaluation: they
/// ask for the same windows. Rules take it from StepMemo and keep it for the end of the run.
class RunMachines {
 public:
  /// Reads what was written since, once for each `now_ns` (time of the step that asks; 0: always). False if
  /// the trial is no run, or if its samples cannot be read.
  bool Refresh(const query::Trial& trial, std::int64_t now_ns);
  /// Whether a sampler has measured a machine, as far as Refresh saw.
  [[nodiscard]] bool measured() const noexcept { return samples_ != nullptr && !samples_->hosts().empty(); }
  /// Whether the samples of each machine reach this time, or have ended. False if none was measured.
  [[nodiscard]] bool Cover(std::int64_t unix_ns) const;
  /// The machines whose samples cover at least the share `least` of the time from `from_ns` to `to_ns`. Valid
  /// until the next call.
  [[nodiscard]] const std::vector<profile::MachineUse>& In(std::int64_t from_ns, std::int64_t to_ns,
                                                           double least = 0.8);

 private:
  struct Window {
    std::int64_t from_ns = 0, to_ns = 0;
    double least = 0;
    std::vector<profile::MachineUse> machines;
  };
  std::unique_ptr<query::Samples> samples_;
  std::int64_t asked_ns_ = 0;
  bool read_ = false;  // at asked_ns_
  std::deque<Window> windows_;
};

/// How long a training may wait for samples: a sampler writes every five seconds.
inline constexpr std::int64_t kSamplesLateNs = 15'000'000'000;

}  // namespace luff::rules
