#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "luff/profile/device_trace.h"
#include "luff/query/trial.h"

namespace luff::rules {

/// **Thread-compatible.** What the traces of a run show of its devices, each read once for all rules of an
/// evaluation. Rules take it from StepMemo and keep it for the end of the run.
class RunTraces {
 public:
  struct Seen {
    std::uint32_t worker = 0;
    std::int64_t number = 0;  // among the entries of the worker's document
    profile::TraceFile file;
    profile::DeviceTrace devices;
  };
  /// Reads the traces that have come since. Traces that cannot be read, or of more than 64 MiB, are left out.
  void Refresh(const query::Trial& trial);
  /// In the order in which they were seen.
  [[nodiscard]] const std::vector<Seen>& all() const noexcept { return all_; }

 private:
  void Read(const query::Trial& trial, std::uint32_t worker);

  std::vector<Seen> all_;
  std::map<std::uint32_t, std::size_t> taken_;  // entries of a worker's document
};

}  // namespace luff::rules
