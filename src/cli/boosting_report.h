#pragma once
#include <string>

#include "luff/query/trial.h"

namespace luff::cli {

/// The report on a boosted model (docs/xgboost.md): true labels, losses, importance, and its quality
/// according to the recorded predictions and labels. "" for any other run. It omits what was not recorded,
/// and says so.
[[nodiscard]] std::string BoostingSections(const query::Trial& trial);

}  // namespace luff::cli
