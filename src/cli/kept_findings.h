#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "luff/base/result.h"
#include "luff/rules/finding.h"

/// Findings that a run holds.
namespace luff::cli {

/// Findings of all evaluators of a run in their newest form, in the order they came; lines that are none are
/// counted.
struct KeptFindings {
  std::vector<rules::Finding> findings;
  std::uint64_t unreadable = 0;
};
[[nodiscard]] KeptFindings FindingsOfRun(const std::string& run);

/// The newest run below $LUFF_HOME/runs (or ~/.luff/runs). Errors: kNotFound.
[[nodiscard]] Result<std::string> NewestRun();

/// Leaders in their order, each followed by what follows from it; nothing is left out.
[[nodiscard]] std::vector<const rules::Finding*> InGroups(const std::vector<rules::Finding>& findings);

}  // namespace luff::cli
