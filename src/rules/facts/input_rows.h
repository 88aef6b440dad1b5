#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "luff/rules/rule.h"
#include "rules/facts/dependence.h"
#include "rules/facts/sample.h"

namespace luff::rules {

/// Rows of all inputs of a step that have one for each label, as one: of pairs, one side may come again
/// beside another partner, with another label.
class InputRows {
 public:
  InputRows(const StepView& view, std::uint32_t worker, std::size_t labels) {
    for (const ModelInput& input : ModelInputsOf(view)) {
      if (input.entry->worker != worker) continue;
      auto sample = LoadSample(view, *input.entry);
      if (!sample || sample->whole_shape.empty() ||
          static_cast<std::size_t>(sample->whole_shape[0]) != labels)
        continue;
      const std::vector<std::uint64_t> rows = RowHashes(*sample);
      if (rows.empty() || rows.size() > labels) continue;
      if (samples_.empty()) {
        hashes_ = rows;
      } else {  // of a large batch the first ones
        hashes_.resize(std::min(hashes_.size(), rows.size()));
        for (std::size_t i = 0; i < hashes_.size(); ++i)
          hashes_[i] = (hashes_[i] * kSpread + rows[i]) & kBits;
      }
      samples_.push_back(std::move(sample));
    }
  }

  /// One hash below 2^52 for each row. Empty if there are no such inputs.
  [[nodiscard]] const std::vector<std::uint64_t>& hashes() const noexcept { return hashes_; }
  /// True if a row that is equal to row `i` can hardly be another one.
  [[nodiscard]] bool CannotRepeat(std::size_t i) const {
    return std::any_of(samples_.begin(), samples_.end(), [i](const auto& sample) {
      const std::size_t width = RowsOf(*sample).width;
      return width > 0 && rules::CannotRepeat(&sample->values[i * width], width);
    });
  }

 private:
  static constexpr std::uint64_t kSpread = 0x9E3779B97F4A7C15, kBits = (1ULL << 52) - 1;
  std::vector<std::shared_ptr<const SampleValues>> samples_;
  std::vector<std::uint64_t> hashes_;
};

}  // namespace luff::rules
