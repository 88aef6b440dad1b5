#pragma once
#include <cstdint>
#include <map>
#include <set>
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
    profile::TraceFile file;  // its name tells it apart: entries of the document may begin anew
    profile::DeviceTrace devices;
  };
  /// Reads traces that have come since: about 64 MiB of them, or `all`. Traces that cannot be read, or of
  /// more than 64 MiB, are left out.
  void Refresh(const query::Trial& trial, bool all);
  /// In the order in which they were seen.
  [[nodiscard]] const std::vector<Seen>& all() const noexcept { return all_; }

 private:
  void Read(const query::Trial& trial, std::uint32_t worker, std::uint64_t* budget);

  std::vector<Seen> all_;
  std::map<std::uint32_t, std::set<std::string>> taken_;  // worker -> names of files
};

}  // namespace luff::rules
