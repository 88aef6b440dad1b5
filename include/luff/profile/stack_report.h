#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "luff/profile/stacks.h"

/// What is told of a run's stacks: by `luff profile`, the page and reports.
namespace luff::profile {

/// A stall as a sentence: "the training stands still for at least 2.0 min after global step 411: in …".
/// `several`: there are other workers, so its rank is named.
[[nodiscard]] std::string StallText(const Stall& stall, bool several);

struct StackReport {
  std::vector<Stall>
      stalls;            // those that stand still first, then those that went on; each ascending by worker
  std::string culprits;  // CulpritsOf
  bool several = false;  // workers
  std::vector<LineTime> lines;  // of one worker
};
[[nodiscard]] StackReport StackReportOf(const query::Trial& trial, std::uint32_t worker);

}  // namespace luff::profile
