#pragma once
#include <cstdint>
#include <string>

#include "luff/query/trial.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"

/// What rules about pauses share: checkpoints, garbage, compilations, evaluations, starts of workers. Their
/// time is added up over the run; it is said where it is a share of the run's time and worth a sentence.
namespace luff::rules {

struct PauseLimits {
  double share, seconds;
  std::int64_t times;
};
/// Parameters of such a rule, with these defaults.
template <typename Limits = PauseLimits>
constexpr Param<Limits> ShareParam(const char* share) {
  return {&Limits::share, "share", share, "of the run's time so far (Luff)", Between(0, 1)};
}
template <typename Limits = PauseLimits>
constexpr Param<Limits> SecondsParam(const char* seconds) {
  return {&Limits::seconds, "seconds", seconds, "least time that it takes of the run, in seconds (Luff)",
          AtLeast(0)};
}
template <typename Limits = PauseLimits>
constexpr Param<Limits> TimesParam(const char* times) {
  return {&Limits::times, "times", times, "how often it has to come before it is said (Luff)", AtLeast(1)};
}

/// The phases of the worker that is judged: the first that recorded some. Null where it has none.
class JudgedWorker {
 public:
  [[nodiscard]] const query::StepPhases* In(const StepView& view);
  [[nodiscard]] std::uint32_t number() const noexcept { return static_cast<std::uint32_t>(worker_); }
  void VisitFields(Fields& io) { io("worker", worker_); }

 private:
  std::int64_t worker_ = -1;
};

/// Seconds of a phase in a step.
[[nodiscard]] double SecondsOf(const query::StepPhases& phases, format::Phase phase) noexcept;

/// Grows by one as the time doubles: evidence that has texts written anew.
[[nodiscard]] int DetailOf(double seconds) noexcept;

class PauseRule : public KeptRule {
 public:
  void OnStep(const StepView& view, Sink& sink) final;
  void OnEnd(const query::Trial& trial, Sink& sink) final;
  void VisitFields(Fields& io) override;

 protected:
  struct Pause {
    double seconds = 0;
    std::int64_t times = 0;  // that one began
  };
  /// What is known when a finding is made.
  struct Spent {
    double seconds = 0, run_s = 0, longest_s = 0;
    double queued_s = 0;                // waits for a core, in none of the others
    std::int64_t times = 0, steps = 0;  // TRAIN steps
    [[nodiscard]] double share() const noexcept { return run_s > 0 ? seconds / run_s : 0; }
    [[nodiscard]] double each_s() const noexcept {
      return times > 0 ? seconds / static_cast<double>(times) : 0;
    }
    /// "takes 11 % of the time (8.1 s each, 23 times: 3.1 min of 28 min)".
    [[nodiscard]] std::string Text() const;
  };

  PauseRule(const char* name, const char* cause, const PauseLimits& limits)
      : name_(name),
        cause_(cause),
        limits_(limits) {}
  /// The part of a step that counts; steps of all modes come here.
  [[nodiscard]] virtual Pause Of(const query::StepInfo& step, const query::StepPhases& phases) = 0;
  /// Fills in what, why, remedy and causes, and the saving but for its share. False: nothing is said.
  [[nodiscard]] virtual bool Describe(const query::Trial& trial, const Spent& spent, Finding* finding) = 0;
  /// TRAIN steps so far, the present one included.
  [[nodiscard]] std::int64_t steps() const noexcept { return spent_.steps; }

 private:
  void Judge(const query::Trial& trial, Sink& sink, bool last);

  const char* const name_;
  const char* const cause_;
  const PauseLimits limits_;
  JudgedWorker worker_;
  Spent spent_;
  double told_s_ = 0;  // what the last report said
  bool open_ = false;
  std::int64_t since_ = -1;                          // mode step of the first pause
  std::int64_t step_ = 0, global_ = 0, update_ = 0;  // the last TRAIN step
};

}  // namespace luff::rules
