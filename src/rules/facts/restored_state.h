#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "luff/rules/rule.h"
#include "rules/facts/sample.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Finds out which state of the training was brought back after its last update.
///
/// An evaluation of a state that was kept has the outputs of an earlier one, to the last bit, for all rows
/// that samples hold, and a state was loaded after the last update into a model of its class. Losses and
/// shares of right answers of all evaluations of that model since it was trained say how good that one was.
class RestoredState {
 public:
  static constexpr std::size_t kMost = 64;  // newest evaluations that are remembered
  static constexpr std::size_t kLeast = 4;  // evaluations of which one is the worst
  static constexpr std::size_t kMaxModels = 64;
  static constexpr std::size_t kMaxPasses = 512;  // of an evaluation; longer ones are not compared

  /// The evaluation whose state was brought back.
  struct Found {
    Anchor at;              // the last TRAIN step
    std::int64_t step = 0;  // the TRAIN step before that evaluation
    std::size_t evaluations = 0;
    std::optional<double> loss, best_loss;    // means: of it, and the least of all; where losses are known
    std::optional<double> right, best_right;  // shares of right answers likewise
    std::vector<std::pair<std::int64_t, double>> curve;  // losses, or else shares, by TRAIN step
  };

  void OnStep(const StepView& view);
  /// Call at the end of the run. Returns the evaluation that came back, if it is the worst of all.
  [[nodiscard]] std::optional<Found> OnEnd(const query::Trial& trial);

  void VisitFields(Fields& io);

 private:
  struct Pass {  // a step of an evaluation
    std::uint64_t outputs = 0;
    std::int64_t model = -1;  // number of its module; -1: not one model
    double loss = 0, losses = 0, rows = 0, right = 0;
    bool told = true;    // its rows and right answers are known
    bool errors = true;  // its losses are errors of numbers: there are no right answers
    void VisitFields(Fields& io);
  };
  struct Evaluation {
    std::int64_t step = 0, model = -1;
    std::uint64_t outputs = 0;
    std::size_t passes = 0;
    bool errors = true;
    std::optional<double> loss, right;
    void VisitFields(Fields& io);
  };

  [[nodiscard]] static Evaluation Sum(const Pass* passes, std::size_t count, std::int64_t step);
  void Close();
  [[nodiscard]] bool IsLoaded(const query::Trial& trial, std::int64_t model) const;
  [[nodiscard]] bool IsWorst(const Evaluation& one) const;

  Anchor last_;
  std::deque<Evaluation> evaluations_;
  std::vector<Pass> now_;            // since the last TRAIN step
  std::set<std::uint32_t> trained_;  // numbers of models that were called with gradients
  std::set<std::string> loaded_;     // classes of models that were given a state since the last update
  bool whole_ = true;                // all of them are in now_
};

}  // namespace luff::rules
