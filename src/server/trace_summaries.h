#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "luff/profile/trace_report.h"

/// What the traces of one run say in short, read once: a page asks again and again.
namespace luff::server {

/// **Thread-compatible.**
class TraceSummaries {
 public:
  /// Of a file of more bytes a server says only that it is there: to read it takes seconds, and as much
  /// memory.
  static constexpr std::uint64_t kServedBytes = 64ULL << 20;

  void AllowBytes(std::uint64_t most) noexcept { most_bytes_ = most; }
  /// The summary of a worker's trace. Errors: those of SummariseTrace, without the path of the run.
  [[nodiscard]] Result<profile::TraceSummary> Of(const std::string& run, std::uint32_t worker,
                                                 const profile::TraceFile& trace);

 private:
  struct Known {
    std::string file;
    Result<profile::TraceSummary> summary;
  };
  std::uint64_t most_bytes_ = kServedBytes;
  std::map<std::uint32_t, Known> known_;  // by worker: of its last trace
};

}  // namespace luff::server
