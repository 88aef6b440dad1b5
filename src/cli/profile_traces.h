#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cli/json.h"
#include "luff/profile/kineto_trace.h"

namespace luff::cli {

/// What `luff profile` shows of the traces of one worker: the last one in short, and those that were refused.
class TracesView {
 public:
  TracesView(const query::Trial& trial, std::uint32_t worker);
  void Print() const;
  [[nodiscard]] Json Described() const;

 private:
  std::string folder_;
  std::vector<profile::TraceFile> files_;
  std::optional<profile::TraceFile> last_;  // of those that were made
  std::optional<profile::TraceSummary> summary_;
  std::string problem_;  // why there is no summary of it
};

}  // namespace luff::cli
