#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"
#include "luff/rules/finding.h"

/// What people call a finding.
namespace luff::cli {

/// The findings that `name` means: that of this id, those of this rule, or those whose id begins with it (at
/// least 4 characters). In the order of `findings`, into which they point.
[[nodiscard]] std::vector<const rules::Finding*> FindingsMeantBy(std::string_view name,
                                                                 const std::vector<rules::Finding>& findings);

/// Says that `name` means none of them, or several: which there are, with their ids.
[[nodiscard]] Status NoSuchFinding(std::string_view name, const std::vector<rules::Finding>& findings,
                                   const std::string& run);

}  // namespace luff::cli
