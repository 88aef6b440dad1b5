#pragma once
#include <string>

#include "luff/query/trial.h"

namespace luff::cli {

/// Returns the report's sections on a boosted model (docs/xgboost.md): true labels, losses, feature
/// importance, and quality according to the recorded predictions and labels. "" for any other run. Sections
/// without recorded data are omitted, and a note says so.
[[nodiscard]] std::string BoostingSections(const query::Trial& trial);

}  // namespace luff::cli
