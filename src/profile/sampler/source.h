#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "profile/sampler/board.h"
#include "profile/sampler/kernel_file.h"

namespace luff::profile {

/// Whether something could be read, for the document "sources".
struct SourceReport {
  std::string name;  // "memory", "pressure.io", "gpu"
  SourceState state = SourceState::kUnread;
  std::string path;  // "" if it is no file
  int error = 0;     // errno
  std::string why;   // in words, where an errno does not say it
  bool operator==(const SourceReport&) const = default;
};

/// Something that is measured at every tick. **Thread-compatible.**
class Source {
 public:
  virtual ~Source() = default;
  /// `tick` counts from 0. What changes slowly is read once in kSlow ticks.
  virtual void Sample(std::uint64_t tick, Board* board) = 0;
  virtual void Report(std::vector<SourceReport>* reports) const = 0;
  /// Counters, of which nothing is lost between two readings, and memory are read every second.
  static constexpr std::uint64_t kSlow = 10, kCounters = 2;
};

inline SourceReport ReportOf(const char* name, const KernelFile& file) {
  return {name, file.path().empty() ? SourceState::kAbsent : file.state(), file.path(), file.error(), ""};
}

}  // namespace luff::profile
