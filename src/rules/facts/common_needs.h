#pragma once
#include <vector>

#include "luff/rules/rule.h"
#include "rules/kit/select.h"

/// Needs that several rules share. Equal needs are captured once.
namespace luff::rules {

/// The samples of models' inputs and of losses (docs/spec/evidence.md).
[[nodiscard]] inline std::vector<Need> SampleNeeds() {
  Need train = {.collection = "samples",
                .roles = {format::Role::kSample},
                .forms = Bit(format::Form::kSummary) | Bit(format::Form::kRaw),
                .mode = "TRAIN",
                .save_interval = 4,
                .first_steps = 16};
  Need eval = train;
  eval.mode = "EVAL";
  eval.save_interval = 1;
  eval.first_steps = 0;
  return {train, eval};
}

/// Changes of weights, for StepIndex::weight_changes.
[[nodiscard]] inline Need WeightChangeNeed(std::int64_t save_interval, std::int64_t first_steps) {
  return {.collection = "weight_changes",
          .roles = {format::Role::kWeight},
          .forms = Bit(format::Form::kDifference),
          .save_interval = save_interval,
          .first_steps = first_steps};
}

/// Sums over the rows of layers' weights.
[[nodiscard]] inline Need WeightRowsNeed(std::int64_t save_interval) {
  return {.collection = "weight_rows",
          .roles = {format::Role::kWeight},
          .module_types = {"Linear", "Conv1d", "Conv2d", "Conv3d", "RNN"},
          .forms = Bit(format::Form::kUnits),
          .unit_axis = UnitAxis::kAllButFirst,
          .save_interval = save_interval,
          .first_steps = 4};
}

}  // namespace luff::rules
