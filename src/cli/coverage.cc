#include "cli/coverage.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/format.h"
#include "cli/report.h"
#include "cli/terminal.h"

namespace luff::cli {
namespace {

constexpr std::size_t kShownReasons = 3;

}  // namespace

std::string JudgedText(const rules::CoverageSummary& coverage) {
  if (coverage.judged == coverage.rules) return Plural(coverage.rules, "rule", "rules");
  return fmt::format("{} of {} judged", coverage.judged, Plural(coverage.rules, "rule", "rules"));
}

std::string LacksText(const rules::CoverageSummary& coverage) {
  std::vector<std::pair<std::size_t, std::string>> reasons;
  std::size_t all = 0;
  for (const auto& [what, names] : coverage.lacks) {
    if (what == rules::kNotRecorded) continue;  // told by rules::NotRecordedText
    reasons.emplace_back(names.size(), what);
    all += names.size();
  }
  if (all == 0) return "";
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text = fmt::format("{} had nothing to look at:", Plural(all, "rule", "rules"));
  std::size_t shown = 0;
  for (std::size_t i = 0; i < reasons.size() && i < kShownReasons; ++i) {
    const auto& [count, what] = reasons[i];
    text += fmt::format("{} {} {} {}", i == 0 ? "" : ",", count, count == 1 ? "needs" : "need", what);
    shown += count;
  }
  if (const std::size_t left = all - shown; left > 0)
    text += fmt::format(", {} {} other things", left, left == 1 ? "needs" : "need");
  return text;
}

std::string NotJudgedText(const std::set<std::string>& rules) {
  if (rules.empty()) return "";
  return fmt::format(" ({} did not judge all of it)", Escaped(fmt::format("{}", fmt::join(rules, ", "))));
}

std::string CoverageLines(const rules::CoverageSummary& coverage) {
  std::string lines = fmt::format("coverage {} {}\n", coverage.judged, coverage.rules);
  for (const auto& [what, names] : coverage.lacks) {
    for (const std::string& name : names) lines += fmt::format("lacks {} {}\n", name, what);
  }
  return lines;
}

bool TakeCoverageLine(const std::string& line, rules::CoverageSummary* coverage) {
  std::size_t judged = 0;
  std::size_t rules = 0;
  if (std::sscanf(line.c_str(), "coverage %zu %zu", &judged, &rules) == 2) {
    *coverage = {};
    coverage->judged = judged;
    coverage->rules = rules;
    return true;
  }
  constexpr std::string_view kLacks = "lacks ";
  const std::size_t blank = line.find(' ', kLacks.size());
  if (!line.starts_with(kLacks) || blank == std::string::npos) return false;
  coverage->lacks[line.substr(blank + 1)].push_back(line.substr(kLacks.size(), blank - kLacks.size()));
  return true;
}

}  // namespace luff::cli
