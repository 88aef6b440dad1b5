#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "capture/phase_clock.h"
#include "luff/store/writer.h"

/// CPU time of the training thread, the time for which it waited for a core, and its major faults, as the
/// kernel counts them.
namespace luff::capture {

/// **Owned by the writer thread**, which reads the counters: the training thread makes no system call for
/// them. Divides what they grew by among the steps in between, by the share of the time that each lasted:
/// exact over many steps, rough within one that is shorter than the interval of 50 ms.
class ThreadTimes {
 public:
  struct Counters {
    std::int64_t cpu_ns = 0, run_queue_ns = 0;
    std::int64_t major_faults = -1;  // -1: not known
  };
  using Read = std::optional<Counters> (*)(std::int32_t thread);
  /// Reads /proc/self/task/THREAD/schedstat and, for the faults, stat.
  [[nodiscard]] static std::optional<Counters> ReadKernel(std::int32_t thread);

  explicit ThreadTimes(Read read = ReadKernel) : read_(read) {}
  /// Fills in the times of a step. Steps come in order.
  void FillIn(const PhasesEnd& end, std::int64_t now_ns, store::StepPhases* phases);

 private:
  struct Reading {
    std::int64_t at_ns = 0;
    Counters counters;
  };
  [[nodiscard]] Counters At(std::int64_t ns) const noexcept;

  Read read_;
  std::int32_t thread_ = 0;
  std::array<Reading, 8> readings_;  // ascending; the last `known_` of them
  std::size_t known_ = 0;
  std::int64_t end_ns_ = 0;  // of the last step
  Counters at_end_;          // then
};

}  // namespace luff::capture
