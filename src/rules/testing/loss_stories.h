#pragma once
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "rules/testing/fake_trial.h"

/// Builds trials of trainings: batches of samples with scores, labels and the resulting loss.
namespace luff::rules::testing {

struct Batch {
  std::vector<double> inputs;  // one number per sample
  std::vector<double> scores;  // rows x classes
  std::vector<double> ids;
};

inline double CrossEntropy(const std::vector<double>& scores, const std::vector<double>& ids,
                           std::size_t classes) {
  double sum = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    double total = 0;
    for (std::size_t c = 0; c < classes; ++c) total += std::exp(scores[i * classes + c]);
    sum += std::log(total) - scores[i * classes + static_cast<std::size_t>(ids[i])];
  }
  return sum / static_cast<double>(ids.size());
}

/// Adds a step with a call of CrossEntropyLoss. A factor other than 1 imitates weights of classes.
inline void TellClasses(FakeTrial* trial, const Batch& batch, std::size_t classes,
                        query::Mode mode = query::Mode::kTrain, double factor = 1) {
  const auto rows = static_cast<std::int64_t>(batch.ids.size());
  trial->Step(mode)
      .Loss(factor * CrossEntropy(batch.scores, batch.ids, classes))
      .Sample("sample/CrossEntropyLoss_input_0", {rows, static_cast<std::int64_t>(classes)}, batch.scores)
      .Sample("sample/CrossEntropyLoss_input_1", {rows}, batch.ids, DType::kInt64);
  if (!batch.inputs.empty()) trial->Sample("sample/Net_input_0", {rows, 1}, batch.inputs);
}

/// Adds a step with a call of an elementwise loss with one output per sample.
inline void TellPairs(FakeTrial* trial, const std::string& kind, double loss,
                      const std::vector<double>& outputs, const std::vector<double>& targets,
                      DType target_dtype = DType::kFloat32, query::Mode mode = query::Mode::kTrain) {
  const auto rows = static_cast<std::int64_t>(outputs.size());
  trial->Step(mode)
      .Loss(loss, kind + "_output_0")
      .Sample("sample/" + kind + "_input_0", {rows}, outputs)
      .Sample("sample/" + kind + "_input_1", {rows}, targets, target_dtype);
}

inline double BceWithLogits(const std::vector<double>& z, const std::vector<double>& y,
                            double pos_weight = 1) {
  double sum = 0;
  for (std::size_t i = 0; i < z.size(); ++i)
    sum += pos_weight * y[i] * std::log1p(std::exp(-z[i])) + (1 - y[i]) * std::log1p(std::exp(z[i]));
  return sum / static_cast<double>(z.size());
}

inline double SquaredError(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum / static_cast<double>(a.size());
}

}  // namespace luff::rules::testing
