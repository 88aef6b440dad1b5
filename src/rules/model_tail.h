#pragma once
#include <string>

#include "rules/model_modules.h"

namespace luff::rules {

/// Type of the module that was registered last: most often the one that gives the output. "" when there is no
/// model, or several.
[[nodiscard]] inline std::string LastModuleType(const ModelModules& modules) {
  if (modules.modules().empty()) return "";
  for (const ModuleFacts& module : modules.modules()) {
    if (module.model != modules.modules().front().model) return "";
  }
  return modules.modules().back().type;
}

}  // namespace luff::rules
