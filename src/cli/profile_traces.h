#pragma once
#include <cstddef>
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

/// Says below a finding, after `indent` blanks, which traces it has caused: of many ranks the first two.
void PrintTraced(const std::vector<std::string>& files, std::size_t indent);

}  // namespace luff::cli
