#pragma once
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "luff/query/trial.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/sample.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// One evaluation: the EVAL steps between two TRAIN steps.
struct EvaluationPoint {
  Anchor at;              // the last TRAIN step before it
  double validation = 0;  // mean of its losses
  double training = 0;    // mean of the losses of the TRAIN steps since the previous evaluation
  void VisitFields(Fields& io);
};

/// A loss that has one name in training and evaluation, followed over all evaluations. Constant memory.
class ValidationCurve {
 public:
  static constexpr std::size_t kRecent = 16;   // newest points that are kept
  static constexpr std::size_t kPicture = 64;  // points of the plot
  static constexpr std::int64_t kFirst = 16;   // training losses that start() averages

  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  [[nodiscard]] double start() const noexcept { return first_count_ > 0 ? first_sum_ / first_count_ : 0; }
  [[nodiscard]] const std::deque<EvaluationPoint>& recent() const noexcept { return recent_; }
  [[nodiscard]] const EvaluationPoint& best() const noexcept { return best_; }
  [[nodiscard]] std::int64_t since_best() const noexcept { return count_ - best_count_; }
  /// Some value was below zero: ratios of such losses mean nothing.
  [[nodiscard]] bool unfit() const noexcept { return unfit_; }
  /// Evaluations only count right answers, and the newest share of them is as good as the best one, but for
  /// chance: what is measured gets no worse.
  [[nodiscard]] bool answers_hold() const noexcept;
  [[nodiscard]] std::vector<std::pair<std::int64_t, double>> Picture() const;
  void VisitFields(Fields& io);

 private:
  friend class Evaluations;
  void Train(double value);
  void Validate(double value, bool own);
  void Answered(double rows, double right);
  bool Close(const Anchor& at);  // adds a point, unless values are missing

  std::int64_t count_ = 0, best_count_ = 0;
  double first_sum_ = 0, first_count_ = 0;
  double train_sum_ = 0, train_count_ = 0, validation_sum_ = 0, validation_count_ = 0;
  double other_sum_ = 0, other_count_ = 0;                  // of models that are not trained
  bool own_ = false;                                        // some evaluation was of one that is trained
  double rows_ = 0, right_ = 0;                             // of the evaluation that goes on
  double last_rows_ = 0, last_share_ = 0, best_share_ = 0;  // of answers that were right; no rows: not known
  bool unfit_ = false;
  EvaluationPoint best_;
  std::deque<EvaluationPoint> recent_;
  std::int64_t stride_ = 1;
  std::vector<std::pair<std::int64_t, double>> picture_;
};

/// Detects optimizers that take turns, as adversaries do; their losses and inputs move with each other.
class OptimizerTurns {
 public:
  void OnTrainStep(const StepView& view);
  /// An optimizer has stepped after another one: adversaries, or a phase that follows another.
  [[nodiscard]] bool taken() const noexcept { return taken_; }
  /// One has come back after another: adversaries.
  [[nodiscard]] bool alternate() const noexcept { return alternate_; }
  void VisitFields(Fields& io);

 private:
  bool taken_ = false, alternate_ = false;
  std::set<std::uint32_t> last_;  // optimizers of the last step that had any update
  std::set<std::uint32_t> seen_;
};

/// **Thread-compatible.** The curves of a run, from the first worker that reports losses in a step. A loss of
/// a known formula has one more, under the key of its call (loss_call.h), where evaluations have samples of
/// it and no value: they reduce it themselves, or only count right answers. Where models that are trained are
/// evaluated, what others answer (a teacher, say) is left out.
class Evaluations {
 public:
  static constexpr std::size_t kMaxCurves = 8;

  /// Adds a step. Returns true if it ended an evaluation and some curve has a new point.
  bool OnStep(const StepView& view);
  /// Call at the end of the run. Returns the same as OnStep.
  bool OnEnd();
  [[nodiscard]] const std::vector<std::pair<std::string, ValidationCurve>>& curves() const noexcept {
    return curves_;
  }
  /// Whether the last call of OnStep or OnEnd added a point to the curve.
  [[nodiscard]] bool IsNew(const ValidationCurve& curve) const noexcept;
  [[nodiscard]] bool takes_turns() const noexcept { return turns_.taken(); }
  [[nodiscard]] std::int64_t train_steps() const noexcept { return train_steps_; }

  void VisitFields(Fields& io);

 private:
  bool Close();
  [[nodiscard]] ValidationCurve* CurveOf(const std::string& name);  // null beyond kMaxCurves
  void Calls(const StepView& view, bool train, bool own);
  [[nodiscard]] bool AsksTrained(const StepView& view);
  LossReader reader_;
  std::vector<std::pair<std::string, ValidationCurve>> curves_;
  std::vector<std::string> new_;
  Anchor last_train_;
  bool evaluating_ = false;
  std::int64_t train_steps_ = 0;
  bool asks_trained_ = true;  // the newest step of an evaluation whose model is known
  OptimizerTurns turns_;
};

}  // namespace luff::rules
