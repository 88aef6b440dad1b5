#include "cli/finding_names.h"

#include <algorithm>

#include "base/format.h"

namespace luff::cli {
namespace {

constexpr std::size_t kShortestBeginning = 4;
constexpr std::size_t kListedFindings = 20;

}  // namespace

std::vector<const rules::Finding*> FindingsMeantBy(std::string_view name,
                                                   const std::vector<rules::Finding>& findings) {
  std::vector<const rules::Finding*> meant;
  const auto take = [&](const auto& is_meant) {
    for (const rules::Finding& finding : findings) {
      if (is_meant(finding)) meant.push_back(&finding);
    }
    return !meant.empty();
  };
  if (take([&](const rules::Finding& finding) { return finding.id == name; })) return meant;
  if (take([&](const rules::Finding& finding) { return finding.rule == name; })) return meant;
  if (name.size() >= kShortestBeginning)
    take([&](const rules::Finding& finding) { return finding.id.starts_with(name); });
  return meant;
}

Status NoSuchFinding(std::string_view name, const std::vector<rules::Finding>& findings,
                     const std::string& run) {
  if (findings.empty()) return NotFound(fmt::format("no finding '{}': the run has none: {}", name, run));
  std::string known;
  for (std::size_t i = 0; i < std::min(findings.size(), kListedFindings); ++i)
    known += fmt::format("{}{} ({})", i == 0 ? "" : ", ", findings[i].id, findings[i].rule);
  if (findings.size() > kListedFindings)
    known += fmt::format(" and {} more", findings.size() - kListedFindings);
  const bool several = !FindingsMeantBy(name, findings).empty();
  return NotFound(fmt::format("{} '{}'; there are: {}; in {}",
                              several ? "more than one finding is called" : "no finding is called", name,
                              known, run));
}

}  // namespace luff::cli
