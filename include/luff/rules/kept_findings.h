#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "luff/base/result.h"
#include "luff/rules/finding.h"

/// Findings stored in a run.
namespace luff::rules {

/// How many names of RUN/rules/EVALUATOR/findings.jsonl lie in the run (base/bounded_read.h).
inline constexpr std::size_t kFindingsInRun = 3;

/// Findings of all evaluators of a run in their newest form, in the order in which they appeared.
struct KeptFindings {
  std::vector<Finding> findings;
  /// What is missing: lines that are not findings, files that cannot be read, findings beyond kMaxFindings.
  std::vector<std::string> problems;
};
inline constexpr std::size_t kMaxFindings = 100'000;
[[nodiscard]] KeptFindings FindingsOfRun(const std::string& run);
/// Changes when findings were written: of the names, sizes and times of their files, which are not read.
[[nodiscard]] std::uint64_t FindingsStampOf(const std::string& run);

/// Those about time that stand, the dearest cause first. `input`: also InputBound, which says what the
/// verdict of a profile says.
[[nodiscard]] std::vector<Finding> TimeFindings(std::vector<Finding> findings, bool input);

/// All findings: leaders in their order, each followed by its consequences.
[[nodiscard]] std::vector<const Finding*> InGroups(const std::vector<Finding>& findings);

}  // namespace luff::rules
