#include "server/rule_pages.h"

#include <utility>

namespace luff::server {

std::string_view RulePage(std::string_view page) {
  static constexpr std::pair<std::string_view, std::string_view> kPages[] = {
#include "server/rule_pages.inc"
  };
  for (const auto& [name, text] : kPages) {
    if (name == page) return text;
  }
  return {};
}

}  // namespace luff::server
