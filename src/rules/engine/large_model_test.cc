#include <chrono>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/format.h"
#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

/// All rules on models of many tensors: their queries of a trial grow with its rows, and no faster.
namespace luff::rules::large_model_test {
namespace {

using format::EventKind;
using format::Role;
using testing::Batch;
using testing::FakeTrial;

constexpr int kSteps = 200;

// A healthy training of a network of `layers` layers: weights, biases, gradients, activations, changes of the
// weights, samples of the loss and of the input, and the events of each step.
FakeTrial LargeModel(int layers) {
  FakeTrial trial;
  std::string modules = R"({"path": "", "type": "Net", "name": "Net", "number": 0})";
  std::string parameters;
  for (int i = 0; i < layers; ++i) {
    modules += fmt::format(R"(, {{"path": "fc{0}", "type": "Linear", "name": "fc{0}", "number": {1}}})", i,
                           2 * i + 1);
    modules += fmt::format(R"(, {{"path": "relu{0}", "type": "ReLU", "name": "relu{0}", "number": {1}}})", i,
                           2 * i + 2);
    for (const char* kind : {"weight", "bias"}) {
      parameters += fmt::format(
          R"({}{{"name": "Net_fc{}.{}", "path": "fc{}.{}", "shape": [4, 4], "requires_grad": true, "optimizer": "SGD", "group": 0}})",
          parameters.empty() ? "" : ", ", i, kind, i, kind);
    }
  }
  trial.SetDocument(
      "model",
      fmt::format(
          R"({{"models": [{{"name": "Net", "type": "Net", "modules": [{}], "parameters": [{}]}}], "optimizers": [{{"number": 0, "name": "SGD", "type": "SGD", "groups": [{{"parameters": {}}}]}}]}})",
          modules, parameters, 2 * layers));
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  for (int step = 0; step < kSteps; ++step) {
    // Three classes that are separated better and better.
    Batch batch;
    for (int row = 0; row < 16; ++row) {
      const int label = static_cast<int>(random() % 3);
      batch.ids.push_back(label);
      for (int c = 0; c < 3; ++c)
        batch.scores.push_back(0.3 * normal(random) + (c == label ? 0.02 * step : 0));
      batch.inputs.push_back(normal(random));
    }
    testing::TellClasses(&trial, batch, 3);
    trial.Scalar("optimizer/SGD.group0.lr", Role::kOptimizerSetting, 0.05);
    trial.Event(EventKind::kBatch, 0, random());
    trial.Event(EventKind::kOptimizerStep, 0, 0);
    const bool whole = step < 8 || step % 16 == 0;
    for (int i = 0; i < layers; ++i) {
      const auto four = [&](double size) {
        std::vector<double> values(4);
        for (double& value : values) value = size * normal(random);
        return values;
      };
      for (const char* kind : {"weight", "bias"}) {
        const std::string name = fmt::format("Net_fc{}.{}", i, kind);
        trial.Tensor("gradient/" + name, Role::kGradient, four(0.1));
        if (!whole) continue;
        trial.Tensor(name, kind[0] == 'w' ? Role::kWeight : Role::kBias, four(0.5));
        if (step > 0 && kind[0] == 'w') trial.Difference(name, 0.01, 0.005, 1, 4);
      }
      if (whole) trial.Units(fmt::format("relu{}_output_0", i), {8, 9, 7, 8}, 16);
    }
  }
  return trial;
}

struct Work {
  std::size_t rows = 0;
  FakeTrial::Asked asked;
  double seconds = 0;
};

Work Judge(int layers) {
  FakeTrial trial = LargeModel(layers);
  Work work;
  for (const auto& step : trial.steps())
    work.rows += step.summaries.size() + step.scalars.size() + step.forms.size() + step.units.size();
  const auto start = std::chrono::steady_clock::now();
  const auto findings = testing::FindingsOf(trial, "all", ParameterSet::kLuff);
  work.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  work.asked = trial.asked();
  for (const Finding& finding : findings) ADD_FAILURE() << finding.rule << ": " << finding.what;
  return work;
}

TEST(LargeModel, WorkGrowsWithTheRows) {
  const Work small = Judge(64);   // 256 tensors
  const Work large = Judge(256);  // 1,024
  const auto each = [](std::size_t asked, const Work& work) {
    return static_cast<double>(asked) / static_cast<double>(work.rows);
  };
  fmt::print("{} rows at {:.3g} rows/s, {} at {:.3g}\n", small.rows,
             static_cast<double>(small.rows) / small.seconds, large.rows,
             static_cast<double>(large.rows) / large.seconds);
  fmt::print("tensors asked for: {} and {}, missing names {}, documents {} and {}, values {}\n",
             small.asked.tensors, large.asked.tensors, large.asked.names_missed, small.asked.documents,
             large.asked.documents, large.asked.values);
  EXPECT_LT(each(large.asked.tensors, large), 1.05 * each(small.asked.tensors, small));
  EXPECT_LT(each(large.asked.tensors, large), 49.0);  // times per row, fewer than there are rules
  // These do not depend on the size of the model: a few documents at the start and at powers of two, one
  // search for a name that is missing, and each sample read once per step.
  EXPECT_EQ(large.asked.documents, small.asked.documents);
  EXPECT_LT(large.asked.documents, 400U);
  EXPECT_LT(large.asked.names_missed, 100U);
  EXPECT_LE(large.asked.values, 3U * kSteps);
}

}  // namespace
}  // namespace luff::rules::large_model_test
