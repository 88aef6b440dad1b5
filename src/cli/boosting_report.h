#pragma once
#include <string>

#include "luff/query/trial.h"

namespace luff::cli {

/// What `luff report` says of a boosted model (docs/xgboost.md): true labels, losses, importance, and, from
/// the recorded predictions and labels, how good it is. "" for a run of another kind. What was not recorded
/// is left out, and said.
[[nodiscard]] std::string BoostingSections(const query::Trial& trial);

}  // namespace luff::cli
