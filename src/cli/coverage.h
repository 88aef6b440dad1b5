#pragma once
#include <set>
#include <string>

#include "luff/rules/coverage.h"

/// How many rules judged, and what the others lacked, as text for people.
namespace luff::cli {

/// "56 rules" when all of them judged, else "31 of 56 rules judged".
[[nodiscard]] std::string JudgedText(const rules::CoverageSummary& coverage);
/// "25 rules had nothing to look at: 12 need boosting rounds, 8 need images, 5 need other things"; "" if all
/// had, or the run was not to record it (rules::NotRecordedText).
[[nodiscard]] std::string LacksText(const rules::CoverageSummary& coverage);
/// " (Mine, Other did not judge all of it)"; "" if there are none.
[[nodiscard]] std::string NotJudgedText(const std::set<std::string>& rules);

/// Formats it as lines, each with its line break, for the pipe from rule worker to supervisor.
[[nodiscard]] std::string CoverageLines(const rules::CoverageSummary& coverage);
/// Parses one such line, without its line break; false for any other line.
bool TakeCoverageLine(const std::string& line, rules::CoverageSummary* coverage);

}  // namespace luff::cli
