#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "luff/query/trial.h"
#include "luff/rules/rule.h"
#include "rules/loss_call.h"

/// What goes into models, from samples (docs/spec/evidence.md); the samples of losses are in loss_call.h.
namespace luff::rules {

/// A sample of a model's input in a step. The values are not read yet: see LoadSample.
struct ModelInput {
  std::string model;      // "Net"
  std::size_t index = 0;  // place among the arguments
  const query::Trial::SummaryEntry* entry = nullptr;
};

/// The samples of models' inputs in a step, in order of worker, model and place. Superseded steps have none.
[[nodiscard]] std::vector<ModelInput> ModelInputsOf(const StepView& view);

/// Integers that are no flags: ids, counts.
[[nodiscard]] bool IsIds(DType dtype) noexcept;

/// Rows along axis 0, and values in each; no rows for scalars and empty tensors.
struct Rows {
  std::size_t count = 0, width = 0;
};
[[nodiscard]] Rows RowsOf(const SampleValues& sample) noexcept;

/// One number below 2^52 for each row, equal for equal rows (0 and -0 are equal). Such numbers may stand in
/// a saved state.
[[nodiscard]] std::vector<std::uint64_t> RowHashes(const SampleValues& sample);

/// A TRAIN step, for findings on what an evaluation has shown: they are told at the last TRAIN step before
/// it.
struct Anchor {
  std::int64_t mode_step = -1, global_step = 0, update = 0;
  void Take(const query::StepInfo& info) noexcept {
    mode_step = info.mode_step;
    global_step = info.global_step;
    update = info.update;
  }
  [[nodiscard]] query::StepInfo Info() const noexcept;
  void Save(nlohmann::json* to) const;
  void Load(const nlohmann::json& from);  // may throw json exceptions
};

}  // namespace luff::rules
