#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "luff/rules/rule.h"
#include "rules/facts/json_event.h"
#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"
#include "rules/kit/step_index.h"

namespace luff::rules {

/// **Thread-compatible.** Which operation made the output that a loss gets, as the graph of the forward pass
/// shows it: event `loss_input` (docs/spec/evidence.md).
class LossInputMakers {
 public:
  void OnStep(const StepView& view) {
    for (const auto& event : view.index.json_events("loss_input")) {
      const double call = NumberIn(*event, "call");
      const auto kind = event->find("loss");
      const auto made_by = event->find("made_by");
      if (!(call >= 0 && call < 64) || kind == event->end() || !kind->is_string() ||
          made_by == event->end() || !made_by->is_string())
        continue;
      const std::string key = KeyOfCall(kind->get<std::string>(), static_cast<std::size_t>(call));
      if (makers_.size() >= kMost && !makers_.contains(key)) continue;
      makers_[key] = made_by->get<std::string>();
      const auto behind = event->find("behind");
      behind_[key] = behind != event->end() && behind->is_string() ? behind->get<std::string>() : "";
      const double bound = NumberIn(*event, "bound");
      bounds_[key] = bound > 0 ? bound : 0;
      const nlohmann::json& clamped = ListIn(*event, "clamped");
      const auto end = [&](std::size_t at, double none) {
        return clamped[at].is_number() ? clamped[at].get<double>() : none;
      };
      if (clamped.size() == 2) {
        clamped_[key] = {end(0, -HUGE_VAL), end(1, HUGE_VAL)};
      } else {
        clamped_.erase(key);
      }
    }
  }
  /// The operation, e.g. "softmax"; "" if it does not limit values, or is not known.
  [[nodiscard]] std::string Of(const LossCall& call) const {
    const auto found = makers_.find(call.key);
    return found == makers_.end() ? std::string() : found->second;
  }
  /// Whether this operation made what some loss gets.
  [[nodiscard]] bool Any(std::string_view operation) const {
    return std::any_of(makers_.begin(), makers_.end(),
                       [&](const auto& one) { return one.second == operation; });
  }
  /// The operation that made what that one got, likewise.
  [[nodiscard]] std::string BehindOf(const LossCall& call) const {
    const auto found = behind_.find(call.key);
    return found == behind_.end() ? std::string() : found->second;
  }
  /// The largest size of scores that are cosines times a constant; 0 for others.
  [[nodiscard]] double BoundOf(const LossCall& call) const {
    const auto found = bounds_.find(call.key);
    return found == bounds_.end() ? 0 : found->second;
  }
  /// The bounds of the clamp that made it, lower and upper, of a loss of errors; none if nothing clamps it.
  [[nodiscard]] std::optional<std::pair<double, double>> ClampOf(const LossCall& call) const {
    const auto found = clamped_.find(call.key);
    if (found == clamped_.end()) return std::nullopt;
    return found->second;
  }
  void VisitFields(Fields& io) {
    io("makers", makers_, kMost);
    io("behind", behind_, kMost);
    io("bounds", bounds_, kMost);
    io("clamped", clamped_, kMost);
  }

 private:
  static constexpr std::size_t kMost = 64;
  std::map<std::string, std::string> makers_, behind_;  // by key of the call
  std::map<std::string, double> bounds_;                // likewise
  std::map<std::string, std::pair<double, double>> clamped_;
};

}  // namespace luff::rules
