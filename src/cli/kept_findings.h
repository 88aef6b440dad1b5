#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "luff/base/result.h"
#include "luff/rules/coverage.h"
#include "luff/rules/finding.h"

/// Findings that a run holds.
namespace luff::cli {

/// Of RUN/rules/EVALUATOR/findings.jsonl: what is in the run (base/bounded_read.h).
inline constexpr std::size_t kFindingsInRun = 3;

/// Findings of all evaluators of a run in their newest form, in the order they came.
struct KeptFindings {
  std::vector<rules::Finding> findings;
  /// What is not among them: lines that are none, files that cannot be read, findings beyond kMaxFindings.
  std::vector<std::string> problems;
};
inline constexpr std::size_t kMaxFindings = 100'000;
[[nodiscard]] KeptFindings FindingsOfRun(const std::string& run);

/// What the rules of `luff run` had to look at; nothing where that was not kept.
[[nodiscard]] std::vector<rules::RuleCoverage> CoverageOfRun(const std::string& run);

/// The newest run below $LUFF_HOME/runs (or ~/.luff/runs). Errors: kNotFound.
[[nodiscard]] Result<std::string> NewestRun();

/// Leaders in their order, each followed by what follows from it; nothing is left out.
[[nodiscard]] std::vector<const rules::Finding*> InGroups(const std::vector<rules::Finding>& findings);

}  // namespace luff::cli
