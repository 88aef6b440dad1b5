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

/// What goes into models, from samples (docs/spec/evidence.md); the samples of losses are in loss_call.h.
namespace luff::rules {

/// A sample of a model's input in a step. The values are not read yet: see LoadSample.
struct ModelInput {
  std::string model;      // "Net"
  std::size_t index = 0;  // place among the arguments
  const query::Trial::SummaryEntry* entry = nullptr;
};

/// The samples of models' inputs in a step, in order of worker, model and place, found once for all rules.
/// Superseded steps have none.
[[nodiscard]] const std::vector<ModelInput>& ModelInputsOf(const StepView& view);

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
  void VisitFields(Fields& io);
};

/// Whether a step belongs to the training, or (false) to an evaluation after its step `last`; nothing for
/// superseded steps, other modes, and evaluations before the first TRAIN step.
[[nodiscard]] std::optional<bool> IsTraining(const query::StepInfo& info, const Anchor& last) noexcept;

/// The sample of an input that has rows of something; nothing also where `known` has no place for it.
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
