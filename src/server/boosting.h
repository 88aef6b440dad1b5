#pragma once
#include <nlohmann/json_fwd.hpp>

#include "luff/query/trial.h"

namespace luff::server {

/// Whether boosting trained the run's models (docs/xgboost.md, docs/lightgbm.md).
[[nodiscard]] bool IsBoosted(const query::Trial& trial);
/// What is to be shown of boosted models: the answer of GET runs/RUN/boosting (docs/spec/http-api.md, section
/// 7), without trainings for any other run. What was not recorded is absent. Numbers may not be finite.
[[nodiscard]] nlohmann::ordered_json BoostingOf(const query::Trial& trial);

}  // namespace luff::server
