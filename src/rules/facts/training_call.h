#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "rules/facts/json_event.h"
#include "rules/kit/step_index.h"

namespace luff::rules {

/// Content of the event `training_call` (docs/spec/evidence.md): what all calls of a function that trains
/// have in common.
struct TrainingCall {
  std::string function, fault;
  std::int64_t calls = 0;  // so far
  bool over = false;       // it was so, and is no longer
};

/// The events of this kind in a step about a fault. Malformed ones are skipped.
[[nodiscard]] inline std::vector<TrainingCall> TrainingCallsOf(const StepIndex& index, const char* fault) {
  std::vector<TrainingCall> found;
  for (const auto& event : index.json_events("training_call")) {
    const double calls = NumberIn(*event, "calls");
    if (!event->is_object() || TextMember(*event, "fault") != fault || !(calls >= 0 && calls < 1e15))
      continue;
    found.push_back({TextMember(*event, "function").substr(0, 200), fault, static_cast<std::int64_t>(calls),
                     FlagIn(*event, "over")});
  }
  return found;
}

}  // namespace luff::rules
