#pragma once
#include <string_view>

namespace luff::server {

/// The text of a rule's page, compiled into the program: "docs/rules/non_finite.md". "" if there is none.
[[nodiscard]] std::string_view RulePage(std::string_view page);

}  // namespace luff::server
