#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "luff/rules/choice.h"
#include "luff/rules/rule.h"

namespace luff::rules {

/// **Thread-compatible.** What kinds of data a run has held so far, as far as rules need them: a rule whose
/// kinds never came has judged nothing, and "no findings" says nothing of it.
class Evidence {
 public:
  /// To be told of each step, after StepMemo::Clear.
  void OnStep(const StepView& view);
  /// What the rule lacks, in words; "" if it had something to look at.
  [[nodiscard]] std::string LackOf(const Choice& choice) const;
  /// True if it is told in a table what the rule looks at; else it is taken to look at every step.
  [[nodiscard]] static bool Knows(std::string_view rule);

  /// For checkpoints.
  [[nodiscard]] std::uint64_t bits() const noexcept { return seen_; }
  void Add(std::uint64_t bits) noexcept { seen_ |= bits; }

 private:
  void OnTensors(const StepView& view);
  void OnEvents(const StepView& view);
  void OnSamples(const StepView& view);
  void OnDocuments(const StepView& view);

  std::uint64_t seen_ = 0;
  std::vector<std::uint8_t> looked_;  // by tensor: bits of modes in which it was seen
  std::uint64_t steps_ = 0;
  std::string first_model_;
};

}  // namespace luff::rules
