#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "luff/rules/choice.h"
#include "luff/rules/rule.h"

namespace luff::rules {

class RunTraces;  // src/rules/facts/run_traces.h

/// **Thread-compatible.** The kinds of data that a run has contained so far. A rule whose kinds never came
/// has judged nothing, so that "no findings" means nothing for it.
class Evidence {
 public:
  /// Call at each step, after StepMemo::Clear.
  void OnStep(const StepView& view);
  /// What the rule lacks, in words; "" if it had data to judge.
  [[nodiscard]] std::string LackOf(const Choice& choice) const;
  /// Whether the table of needed data lists the rule. Other rules are assumed to judge every step.
  [[nodiscard]] static bool Knows(std::string_view rule);

  /// For checkpoints.
  [[nodiscard]] std::uint64_t bits() const noexcept { return seen_; }
  void Add(std::uint64_t bits) noexcept { seen_ |= bits; }

 private:
  void OnTensors(const StepView& view);
  void OnEvents(const StepView& view);
  void OnSamples(const StepView& view);
  void OnClock(const StepView& view);
  void OnDocuments(const StepView& view);

  std::uint64_t seen_ = 0;
  std::int64_t clock_ns_ = 0;         // of the step from which samples are awaited
  std::vector<std::uint8_t> looked_;  // by tensor: bits of modes in which it was seen
  std::uint64_t steps_ = 0;
  std::string first_model_;
  std::shared_ptr<RunTraces> traces_;  // of the evaluation; not kept
};

}  // namespace luff::rules
