#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "luff/query/trial.h"
#include "luff/rules/rule.h"
#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

/// Inputs of models, from samples (docs/spec/evidence.md). The samples of losses are in loss_call.h.
namespace luff::rules {

/// The sample of one input of a model in a step. LoadSample reads its values.
struct ModelInput {
  std::string model;      // "Net"
  std::size_t index = 0;  // position among the arguments
  const query::Trial::SummaryEntry* entry = nullptr;
};

/// The samples of models' inputs in a step, in order of worker, model and position, found once for all rules.
/// Superseded steps have none.
[[nodiscard]] const std::vector<ModelInput>& ModelInputsOf(const StepView& view);

/// Whether the type can hold ids: integers other than bool.
[[nodiscard]] bool IsIds(DType dtype) noexcept;

/// Rows along axis 0, and values in each; no rows for scalars and empty tensors.
struct Rows {
  std::size_t count = 0, width = 0;
};
[[nodiscard]] Rows RowsOf(const SampleValues& sample) noexcept;

/// One hash below 2^52 for each row, equal for equal rows (0 and -0 count as equal). Hashes of this size may
/// be part of a saved state.
[[nodiscard]] std::vector<std::uint64_t> RowHashes(const SampleValues& sample);

/// A TRAIN step. Findings about an evaluation are reported at the last TRAIN step before it.
struct Anchor {
  std::int64_t mode_step = -1, global_step = 0, update = 0;
  void Take(const query::StepInfo& info) noexcept {
    mode_step = info.mode_step;
    global_step = info.global_step;
    update = info.update;
  }
  [[nodiscard]] query::StepInfo Info() const noexcept;
  void VisitFields(Fields& io);
};

/// True for a TRAIN step, false for an EVAL step after the TRAIN step `last`. Returns nullopt for superseded
/// steps, other modes, and evaluations before the first TRAIN step.
[[nodiscard]] std::optional<bool> IsTraining(const query::StepInfo& info, const Anchor& last) noexcept;

/// The sample of an input with at least two axes, else null. Also null if `known` already has `most` entries
/// and none for this input.
template <typename State>
[[nodiscard]] std::shared_ptr<const SampleValues> LoadRows(const StepView& view, const ModelInput& input,
                                                           const std::map<std::string, State>& known,
                                                           std::size_t most) {
  if (known.size() >= most && !known.contains(view.trial.tensor(input.entry->tensor).name)) return nullptr;
  auto sample = LoadSample(view, *input.entry);
  if (sample != nullptr && sample->shape.size() < 2) sample.reset();
  return sample;
}

}  // namespace luff::rules
