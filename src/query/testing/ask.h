#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "luff/query/trial.h"
#include "luff/tensor/hash.h"

/// Helpers of the fuzz targets over whole directories.
namespace luff::query::testing {

inline constexpr std::size_t kAsked = 8;  // steps read of each tensor

/// Overwrites bytes of a file. `patches`: (place, value) in 3 bytes each.
inline void Patch(std::vector<std::byte>* file, std::span<const std::byte> patches) {
  for (std::size_t at = 0; at + 3 <= patches.size() && !file->empty(); at += 3) {
    std::uint16_t place = 0;
    std::memcpy(&place, &patches[at], sizeof(place));
    (*file)[place % file->size()] = patches[at + 2];
  }
}

/// Makes every query of a trial that a user can make.
inline void AskEverything(const std::string& run, const OpenOptions& options) {
  const auto opened = Trial::Open(run, options);
  if (!opened.ok()) return;
  Trial& trial = **opened;
  (void)trial.Refresh().ok();
  const auto mode = Mode::kGlobal;
  for (TensorId id = 0; id < trial.tensor_count(); ++id) {
    (void)trial.FindTensor(trial.tensor(id).name).ok();
    (void)trial.Summaries(id, mode).ok();
    (void)trial.Scalars(id, mode).ok();
    (void)trial.ReadStack(id, mode, {}, 1 << 20).ok();
    (void)trial.ValueSteps(id, mode).ok();
    const auto steps = trial.TensorSteps(id, mode);
    if (!steps.ok()) continue;
    for (std::size_t i = 0; i < steps->size() && i < kAsked; ++i) {
      const std::int64_t step = (*steps)[i];
      (void)trial.ReadSummary(id, step, mode).ok();
      if (const auto value = trial.ReadValue(id, step, mode); value.ok())
        (void)HashBytes(value->bytes.data(), value->bytes.size());
      (void)trial.Histogram(id, step, mode).ok();
      (void)trial.Units(id, step, mode).ok();
      (void)trial.Shape(id, step, mode).ok();
      (void)trial.ReadForm(id, format::Form::kDifference, step, mode).ok();
      (void)trial.TensorWorkers(id, step, mode).ok();
      (void)trial.SavedReductions(id, step, mode).ok();
    }
  }
  (void)trial.TensorNames({"weight", "", 3, mode}).ok();
  Trial::StepRows rows;
  for (std::size_t n = 0; n < trial.step_count() && n < 4 * kAsked; ++n)
    (void)trial.ReadStepRows(n, &rows).ok();
  (void)trial.Gaps().size();
  (void)trial.Events(mode).size();
  (void)trial.JsonEvents().size();
  for (const char* name : {"model", "collections", "smdebug"}) (void)trial.Document(name).size();
  (void)trial.CollectionNames().size();
  (void)trial.outcome();
  (void)trial.Problems().size();
  (void)trial.workers().size();
}

}  // namespace luff::query::testing
