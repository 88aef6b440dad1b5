#pragma once
#include <cstdint>
#include <vector>

#include "luff/rules/rule.h"
#include "rules/facts/sample.h"

namespace luff::rules {

/// One hash below 2^52 for each row of all that the first model of a step was given: users and items alone
/// come again all the time. `whole`: set to whether all rows of it are known, unless it is null.
[[nodiscard]] inline std::vector<std::uint64_t> RowsOfStep(const StepView& view, bool* whole = nullptr) {
  constexpr std::uint64_t kMix = 0x9E3779B97F4A7C15;
  constexpr std::uint64_t kBits = (1ULL << 52) - 1;  // numbers of a saved state
  std::vector<std::uint64_t> hashes;
  if (whole != nullptr) *whole = true;
  const std::vector<ModelInput>& inputs = ModelInputsOf(view);
  for (const ModelInput& input : inputs) {
    if (input.model != inputs.front().model || input.entry->worker != inputs.front().entry->worker) continue;
    const auto sample = LoadSample(view, *input.entry);
    if (sample == nullptr) continue;
    if (whole != nullptr) *whole = *whole && sample->whole();
    const std::vector<std::uint64_t> more = RowHashes(*sample);
    if (hashes.empty()) {
      hashes = more;
    } else if (more.size() == hashes.size()) {
      for (std::size_t i = 0; i < hashes.size(); ++i) hashes[i] = (hashes[i] * kMix + more[i]) & kBits;
    }
  }
  return hashes;
}

}  // namespace luff::rules
