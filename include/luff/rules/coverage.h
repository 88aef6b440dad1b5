#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"

/// Which rules found what they need in a run, and what the others lacked.
namespace luff::rules {

/// What a rule lacks whose data were not to be recorded: the run was recorded for other rules, or for none.
inline constexpr const char* kNotRecorded = "data that the run was not to record";

struct RuleCoverage {
  std::string rule;
  bool aside = false;  // it failed: it was set aside, or judged no step
  std::string lacks;   // "losses of an evaluation"; "" if it judged
  std::string failed;  // why it did not judge the whole run; "" if it did, or if unknown here
};

/// Counts for display.
struct CoverageSummary {
  std::size_t rules = 0, judged = 0;
  std::vector<std::string> aside;                         // names of those that failed
  std::map<std::string, std::vector<std::string>> lacks;  // what is lacking -> names of rules
};
[[nodiscard]] CoverageSummary Summarize(const std::vector<RuleCoverage>& coverage);
/// Reads coverage from a checkpoint (rules/NAME/checkpoint.json). Errors: kCorruption.
[[nodiscard]] Result<std::vector<RuleCoverage>> ParseCoverageUntrusted(std::string_view checkpoint);

/// How many rules looked in vain for data that the run was not to record, and how to have them, as text for
/// people: "recorded without what 59 rules look at; record with ..."; "" if there are none.
[[nodiscard]] std::string NotRecordedText(const CoverageSummary& coverage);

/// The coverage of the rules of `luff run`; nothing if it was not stored.
[[nodiscard]] std::vector<RuleCoverage> CoverageOfRun(const std::string& run);

}  // namespace luff::rules
