#include "luff/rules/coverage.h"

#include <exception>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/json.h"
#include "rules/engine/state_check.h"

namespace luff::rules {

CoverageSummary Summarize(const std::vector<RuleCoverage>& coverage) {
  CoverageSummary summary;
  summary.rules = coverage.size();
  for (const RuleCoverage& one : coverage) {
    if (one.aside) {
      summary.aside.push_back(one.rule);
    } else if (!one.lacks.empty()) {
      summary.lacks[one.lacks].push_back(one.rule);
    } else {
      ++summary.judged;
    }
  }
  return summary;
}

std::string NotRecordedText(const CoverageSummary& coverage) {
  const auto at = coverage.lacks.find(kNotRecorded);
  if (at == coverage.lacks.end() || at->second.empty()) return "";
  const std::string which = at->second.size() == 1 ? at->second.front() + " looks at"
                                                   : fmt::format("{} rules look at", at->second.size());
  return fmt::format(
      "recorded without what {}; record with `luff run --rules later` or attach(..., rules=\"later\")",
      which);
}

Result<std::vector<RuleCoverage>> ParseCoverageUntrusted(std::string_view checkpoint) {
  LUFF_RETURN_IF_ERROR(CheckStateUntrusted(checkpoint));
  try {
    std::vector<RuleCoverage> coverage;
    const nlohmann::json json = ParseJson(checkpoint);
    for (const nlohmann::json& rule : json.at("rules")) {
      RuleCoverage one;
      one.rule = rule.at("rule").get<std::string>();
      one.aside = rule.value("aside", false) || rule.value("unjudged", false);
      one.lacks = rule.value("lacks", std::string());
      for (const nlohmann::json& note : rule.value("notes", nlohmann::json::array())) {
        if (note.at("failed").get<bool>()) one.failed = note.at("text").get<std::string>();
      }
      coverage.push_back(std::move(one));
    }
    return coverage;
  } catch (const std::exception& error) {
    return Corruption(std::string("a checkpoint of rules: ") + error.what());
  }
}

std::vector<RuleCoverage> CoverageOfRun(const std::string& run) {
  constexpr std::uint64_t kMaxBytes = 64ULL << 20;
  constexpr std::size_t kNamesInRun = 3;  // of the path
  const auto text = ReadRegular(run + "/rules/luff/checkpoint.json", kMaxBytes, kNamesInRun);
  if (!text.ok()) return {};
  auto coverage = ParseCoverageUntrusted(*text);
  return coverage.ok() ? std::move(coverage).value() : std::vector<RuleCoverage>{};
}

}  // namespace luff::rules
