#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rules/facts/run_traces.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"

namespace luff::rules {

/// What is wrong in a trace, as a subclass of TraceRule sees it.
struct TraceClaim {
  std::string cause;
  std::string what;  // one sentence with the numbers of this trace
  std::string why, remedy;
  std::vector<std::string> causes;
  std::vector<NamedNumber> evidence;
  std::string threshold;
  double saving_s = -1, low_s = 0, high_s = 0;  // of the trace; negative: none is claimed
  std::string method;
};

struct TraceLimits {
  double share;
  std::int64_t first;
};
/// Parameters of such a rule.
template <typename Limits = TraceLimits>
constexpr Param<Limits> TraceShareParam(const char* share, const char* of) {
  return {&Limits::share, "share", share, of, Between(0, 1)};
}
template <typename Limits = TraceLimits>
constexpr Param<Limits> TraceFirstParam() {
  return {&Limits::first, "first", "20", "first steps of a training, whose traces are left out (Luff)",
          AtLeast(0)};
}

/// Base class of rules on traces of a few steps, of trainings on a device. Nothing is traced by itself: a
/// rule judges what somebody has asked for. A finding is one of the last step that was traced, whenever the
/// trace was seen, and stands until a later trace of the same worker shows it no more.
class TraceRule : public KeptRule {
 public:
  TraceRule(const char* name, const TraceLimits& limits) : name_(name), limits_(limits) {}
  void OnStep(const StepView& view, Sink& sink) final;
  void OnEnd(const query::Trial& trial, Sink& sink) final;
  void VisitFields(Fields& io) override;

 protected:
  /// What is wrong; nullopt if nothing is. Some device was traced for a while.
  [[nodiscard]] virtual std::optional<TraceClaim> Judge(const profile::DeviceTrace& trace) = 0;
  /// Whether it also judges traces of JAX and TensorFlow.
  [[nodiscard]] virtual bool JudgesXplane() const { return false; }
  /// Called every 64 TRAIN steps, for what can be judged without a trace.
  virtual void LookAt(const StepView& view, Sink& sink) {
    (void)view;
    (void)sink;
  }
  [[nodiscard]] std::int64_t first() const noexcept { return limits_.first; }
  /// TRAIN steps of the trace that is judged.
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  /// "12.1 ms of 49 ms a step": a part of the trace's time, for each of its steps.
  [[nodiscard]] std::string OfStep(double seconds, const profile::DeviceTrace& trace) const;
  [[nodiscard]] double share() const noexcept { return limits_.share; }

 private:
  void Look(const query::Trial& trial, bool at_end, Sink& sink);
  void Take(const query::Trial& trial, const RunTraces::Seen& seen, Sink& sink);

  const char* const name_;
  const TraceLimits limits_;
  /// Worker -> traces that were judged, by their files.
  std::map<std::uint32_t, std::set<std::string>> judged_;
  std::map<std::uint32_t, std::string> open_;  // worker -> cause of the finding that stands
  std::uint64_t trained_ = 0;                  // TRAIN steps that it has seen
  // TRAIN steps with times of a device, and those at whose begin it was idle.
  std::uint64_t device_steps_ = 0, idle_steps_ = 0;
  std::int64_t steps_ = 0;                           // of the trace that is judged
  std::int64_t step_ = 0, global_ = 0, update_ = 0;  // the last TRAIN step
  std::shared_ptr<RunTraces> run_;                   // not kept: that of the evaluation
};

}  // namespace luff::rules
