#pragma once
#include <string>

#include "rules/facts/model_modules.h"

namespace luff::rules {

/// The module that was registered last, usually the one that computes the output.
struct ModelTail {
  std::string type;      // "" when there is no model, or several
  bool certain = false;  // it does run last: all modules around it are Sequential
};

[[nodiscard]] inline ModelTail TailOf(const ModelModules& modules) {
  if (modules.modules().empty()) return {};
  const ModuleFacts& last = modules.modules().back();
  for (const ModuleFacts& module : modules.modules()) {
    if (module.model != last.model) return {};
  }
  ModelTail tail{last.type, !last.path.empty()};
  for (std::string path = last.path; !path.empty();) {
    const std::size_t dot = path.rfind('.');
    path = dot == std::string::npos ? std::string() : path.substr(0, dot);
    const ModuleFacts* around = modules.Find(last.model, path);
    tail.certain = tail.certain && around != nullptr && around->type == "Sequential";
  }
  return tail;
}

}  // namespace luff::rules
