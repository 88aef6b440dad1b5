#pragma once
#include <vector>

#include "luff/rules/rule.h"

namespace luff::rules {

/// The samples of models' inputs and of losses (docs/spec/evidence.md). All rules that read them ask in the
/// same words, so that they are captured once.
[[nodiscard]] inline std::vector<Need> SampleNeeds() {
  Need train;
  train.collection = "samples";
  train.roles = {format::Role::kSample};
  train.forms =
      static_cast<std::uint32_t>(format::Form::kSummary) | static_cast<std::uint32_t>(format::Form::kRaw);
  train.mode = "TRAIN";
  train.save_interval = 4;
  train.first_steps = 16;
  Need eval = train;
  eval.mode = "EVAL";
  eval.save_interval = 1;
  eval.first_steps = 0;
  return {train, eval};
}

}  // namespace luff::rules
