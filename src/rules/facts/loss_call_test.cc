#include "rules/facts/loss_call.h"

#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include "rules/facts/step_memo.h"
#include "rules/testing/fake_trial.h"

namespace luff::rules::loss_call_test {
namespace {

using testing::FakeTrial;

struct Looked {
  query::Trial::StepRows rows;
  StepMemo memo;
  StepIndex index;
};

StepView View(const FakeTrial& trial, Looked* looked, std::size_t step) {
  EXPECT_TRUE(trial.ReadStepRows(step, &looked->rows).ok());
  looked->memo.Clear();
  looked->index.Build(trial, looked->rows);
  return {trial, looked->rows, step, looked->memo, looked->index};
}

struct Pair {
  std::vector<std::int64_t> output_shape;
  std::vector<double> output;
  std::vector<std::int64_t> target_shape;
  std::vector<double> target;
  DType target_dtype = DType::kFloat32;
};

void Tell(FakeTrial* trial, const std::string& kind, double loss, const Pair& pair) {
  trial->Step()
      .Loss(loss, kind + "_output_0")
      .Sample("sample/" + kind + "_input_0", pair.output_shape, pair.output)
      .Sample("sample/" + kind + "_input_1", pair.target_shape, pair.target, pair.target_dtype);
}

Recognition RecognitionOf(const std::string& kind, double loss, const Pair& pair) {
  FakeTrial trial;
  Tell(&trial, kind, loss, pair);
  Looked rows;
  LossReader reader;
  const auto calls = reader.Read(View(trial, &rows, 0));
  EXPECT_EQ(calls.size(), 1U);
  return calls.empty() ? Recognition() : reader.Recognise(calls[0]);
}

const Pair kClasses = {{2, 3}, {1, 2, 3, 0, 0, 0}, {2}, {0, 2}, DType::kInt64};
const double kFirst = std::log(1 + std::exp(1) + std::exp(2));  // -log softmax([1, 2, 3])[0]
const double kClassLoss = (kFirst + std::log(3)) / 2;

TEST(LossCall, APartOfTheLossIsACall_AndItsSamplesAreNoInputsOfAModel) {
  FakeTrial trial;
  trial.Step(query::Mode::kEval).Loss(9, "CrossEntropyLoss_output_0");
  trial.Step()
      .Loss(kClassLoss + 0.5, "loss_output_0")
      .Scalar("CrossEntropyLoss_part_0", format::Role::kOther, kClassLoss)
      .Sample("sample/CrossEntropyLoss_input_0", kClasses.output_shape, kClasses.output)
      .Sample("sample/CrossEntropyLoss_input_1", kClasses.target_shape, kClasses.target, DType::kInt64)
      .Sample("sample/MSELoss_input_0", {2}, {1, 2})  // of a loss with a value for each sample
      .Sample("sample/Net_input_0", {2, 3}, kClasses.output);
  Looked rows;
  const StepView view = View(trial, &rows, 1);
  const auto& calls = LossReader::Read(view);
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].value, kClassLoss);
  EXPECT_EQ(trial.tensor(calls[0].loss).name, "CrossEntropyLoss_part_0");
  EXPECT_TRUE(LossReader().Recognise(calls[0]).by_value);
  const auto& inputs = view.memo.ModelInputs(view);
  ASSERT_EQ(inputs.size(), 1U);
  EXPECT_EQ(inputs[0].model, "Net");
}

TEST(LossCall, CrossEntropyIsKnownByItsName_AndByItsValue) {
  for (const char* kind : {"CrossEntropyLoss", "TokenLoss"}) {
    const Recognition found = RecognitionOf(kind, kClassLoss, kClasses);
    EXPECT_EQ(found.formula, Formula::kCrossEntropy) << kind;
    EXPECT_TRUE(found.by_value);
    EXPECT_EQ(found.weights, Weights::kNone);
    ASSERT_EQ(found.per_sample.size(), 2U);
    EXPECT_NEAR(found.per_sample[0], kFirst, 1e-12);
  }
  EXPECT_EQ(RecognitionOf("CrossEntropyLoss", kClassLoss * 1.5, kClasses).weights, Weights::kSome);
  EXPECT_EQ(RecognitionOf("PolicyLoss", kClassLoss * 1.5, kClasses).formula, Formula::kUnknown);
  EXPECT_EQ(RecognitionOf("TokenLoss", 2 * kClassLoss, kClasses).formula, Formula::kCrossEntropy);  // the sum
}

TEST(LossCall, NllOfWhateverCameIn) {
  EXPECT_EQ(RecognitionOf("Mine", -(1 + 0) / 2.0, kClasses).formula, Formula::kNll);
}

TEST(LossCall, KerasLossOfProbabilities_ReadsAsALogLikelihood) {
  const double loss = -(std::log(0.7) + std::log(0.5)) / 2;
  const Pair ids = {{2, 3}, {0.7, 0.2, 0.1, 0.25, 0.25, 0.5}, {2}, {0, 2}, DType::kInt64};
  const Pair one_hot = {{2, 3}, ids.output, {2, 3}, {1, 0, 0, 0, 0, 1}, DType::kFloat32};
  const Pair floats = {{2, 3}, ids.output, {2, 1}, {0, 2}, DType::kFloat32};
  for (const auto& [kind, pair] :
       {std::pair{"SparseCategoricalCrossentropy", ids}, std::pair{"SparseCategoricalCrossentropy", floats},
        std::pair{"CategoricalCrossentropy", one_hot}}) {
    const Recognition found = RecognitionOf(kind, loss, pair);
    EXPECT_EQ(found.formula, Formula::kNll) << kind;
    EXPECT_TRUE(found.by_value) << kind;
    EXPECT_EQ(found.weights, Weights::kNone) << kind;
    ASSERT_EQ(found.per_sample.size(), 2U);
    EXPECT_NEAR(found.per_sample[1], -std::log(0.5), 1e-12);
  }
  // Keras divides each row by its sum; shares of several classes and values of no probability stay as they
  // are
  const Pair halves = {{2, 3}, {0.35, 0.1, 0.05, 0.5, 0.5, 1}, {2}, {0, 2}, DType::kInt64};
  EXPECT_TRUE(RecognitionOf("SparseCategoricalCrossentropy", loss, halves).by_value);
  const Pair counts = {{2, 3}, {7, 2, 1, 1, 1, 2}, {2}, {0, 2}, DType::kInt64};
  EXPECT_TRUE(RecognitionOf("SparseCategoricalCrossentropy", loss, counts).by_value);
  const Pair mixed = {{1, 3}, {0.7, 0.2, 0.1}, {1, 3}, {0.5, 0.5, 0}, DType::kFloat32};
  EXPECT_FALSE(RecognitionOf("CategoricalCrossentropy", loss, mixed).by_value);
  const Pair scores = {{1, 3}, {3, -2, 1}, {1}, {0}, DType::kInt64};
  EXPECT_FALSE(RecognitionOf("SparseCategoricalCrossentropy", loss, scores).by_value);
}

TEST(LossCall, KerasGivesBothArgumentsOneRank_AndTorchDoesNot) {
  const Pair column = {{3, 1}, {1, 2, 3}, {3}, {1, 2, 5}};
  const Pair other = {{3}, {1, 2, 3}, {3, 1}, {1, 2, 5}};
  for (const Pair& pair : {column, other}) {
    for (const bool keras : {true, false}) {
      FakeTrial trial;
      trial.SetDocument("model", keras ? R"({"framework": "keras", "models": []})" : R"({"models": []})");
      Tell(&trial, "MSELoss", 4.0 / 3, pair);
      Looked rows;
      LossReader reader;
      const auto calls = reader.Read(View(trial, &rows, 0));
      ASSERT_EQ(calls.size(), 1U);
      EXPECT_EQ(calls[0].output.shape == calls[0].target.shape, keras);
      EXPECT_EQ(reader.Recognise(calls[0]).by_value, keras);
    }
  }
}

TEST(LossCall, TokensOfSentences_AndImagesHaveTheirClassesElsewhere) {
  const Pair tokens = {{4, 2}, {0, 1, 0, 2, 0, 3, 0, 4}, {2, 2}, {0, 0, 0, 0}, DType::kInt64};
  double loss = 0;
  for (int k = 1; k <= 4; ++k) loss += std::log(1 + std::exp(k)) / 4;
  EXPECT_EQ(RecognitionOf("TokenLoss", loss, tokens).formula, Formula::kCrossEntropy);
  const Pair image = {{1, 2, 4}, {0, 0, 0, 0, 1, 2, 3, 4}, {1, 4}, {0, 0, 0, 0}, DType::kInt64};
  EXPECT_EQ(RecognitionOf("Mine", loss, image).formula, Formula::kCrossEntropy);
}

TEST(LossCall, BinaryLossesBySqueezedValues_AndTheirWeightFromTheSecondCallOn) {
  const Pair pair = {{2, 1}, {1, -2}, {2}, {1, 0}, DType::kInt64};
  const double positive = std::log1p(std::exp(-1.0));
  const double negative = std::log1p(std::exp(-2.0));
  const Recognition plain = RecognitionOf("HandBCE", (positive + negative) / 2, pair);
  EXPECT_EQ(plain.formula, Formula::kBceWithLogits);
  EXPECT_EQ(plain.weights, Weights::kNone);

  FakeTrial trial;
  Tell(&trial, "Weighted", (25 * positive + negative) / 2, pair);
  const Pair other = {{2, 1}, {0.5, 1}, {2}, {1, 0}, DType::kInt64};
  Tell(&trial, "Weighted", (25 * std::log1p(std::exp(-0.5)) + std::log1p(std::exp(1.0))) / 2, other);
  Looked rows;
  LossReader reader;
  EXPECT_EQ(reader.Recognise(reader.Read(View(trial, &rows, 0))[0]).formula, Formula::kUnknown);
  const std::string state = Fields::Save([&](Fields& io) { reader.VisitFields(io); });
  LossReader again;
  ASSERT_TRUE(Fields::LoadUntrusted(state, [&](Fields& io) { again.VisitFields(io); }).ok());
  const Recognition found = again.Recognise(again.Read(View(trial, &rows, 1))[0]);
  EXPECT_EQ(found.formula, Formula::kBceWithLogits);
  EXPECT_EQ(found.weights, Weights::kSome);
  EXPECT_NEAR(found.pos_weight, 25, 1e-6);
}

TEST(LossCall, ACallWithoutAValueIsAsTheLastOneWithAValue) {
  const Pair balanced{{4, 1}, {0.5, -1, 2, 0}, {4, 1}, {1, 0, 1, 0}};
  const auto weighted = [](double weight) {
    return (weight * (std::log1p(std::exp(-0.5)) + std::log1p(std::exp(-2))) + std::log1p(std::exp(-1)) +
            std::log(2)) /
           4;
  };
  for (const double weight : {1.0, 5.0}) {
    FakeTrial trial;
    for (int i = 0; i < 3; ++i) Tell(&trial, "BCEWithLogitsLoss", weighted(weight), balanced);
    trial.Step(query::Mode::kEval)
        .Sample("sample/BCEWithLogitsLoss_input_0", balanced.output_shape, balanced.output)
        .Sample("sample/BCEWithLogitsLoss_input_1", balanced.target_shape, balanced.target);
    Looked rows;
    LossReader reader;
    Recognition found;
    for (std::size_t step = 0; step < 4; ++step) {
      const auto calls = reader.Read(View(trial, &rows, step));
      ASSERT_EQ(calls.size(), 1U);
      EXPECT_EQ(calls[0].value.has_value(), step < 3);
      found = reader.Recognise(calls[0]);
    }
    EXPECT_TRUE(found.by_value);
    EXPECT_EQ(found.weights, weight == 1 ? Weights::kNone : Weights::kSome);
    EXPECT_NEAR(found.pos_weight, weight, 1e-6);
    ASSERT_EQ(found.per_sample.size(), 4U);
    EXPECT_NEAR(found.per_sample[0], weight * std::log1p(std::exp(-0.5)), 1e-6);
  }
  // Where training has another formula than its name says, nothing is known.
  FakeTrial trial;
  Tell(&trial, "BCEWithLogitsLoss", 7, balanced);
  trial.Step(query::Mode::kEval)
      .Sample("sample/BCEWithLogitsLoss_input_0", balanced.output_shape, balanced.output)
      .Sample("sample/BCEWithLogitsLoss_input_1", balanced.target_shape, balanced.target);
  Looked rows;
  LossReader reader;
  for (std::size_t step = 0; step < 2; ++step) {
    const auto calls = reader.Read(View(trial, &rows, step));
    ASSERT_EQ(calls.size(), 1U);
    EXPECT_FALSE(reader.Recognise(calls[0]).by_value);
  }
}

TEST(LossCall, ProbabilitiesAndTheirShares) {
  EXPECT_EQ(RecognitionOf("Mine", -std::log(0.25), {{2}, {0.25, 0.75}, {2}, {1, 0}}).formula, Formula::kBce);
  const Recognition shares =
      RecognitionOf("Mine", 0.5 * kFirst + 0.5 * (kFirst - 1), {{1, 3}, {1, 2, 3}, {1, 3}, {0.5, 0.5, 0}});
  EXPECT_EQ(shares.formula, Formula::kCrossEntropy);
}

TEST(LossCall, RegressionAndItsBroadcast) {
  EXPECT_EQ(RecognitionOf("MSE", 2.5, {{2}, {1, 2}, {2}, {2, 4}}).formula, Formula::kMse);
  EXPECT_EQ(RecognitionOf("Mine", 1.5, {{2}, {1, 2}, {2}, {2, 4}}).formula, Formula::kL1);
  EXPECT_EQ(RecognitionOf("Mine", (0.5 + 1.5) / 2, {{2}, {1, 2}, {2}, {2, 4}}).formula, Formula::kSmoothL1);
  // differences 1, 3, 0, 2
  const Recognition broadcast = RecognitionOf("MSE", 14.0 / 4, {{2, 1}, {1, 2}, {2}, {2, 4}});
  EXPECT_EQ(broadcast.formula, Formula::kMse);
  EXPECT_TRUE(broadcast.broadcast);
  EXPECT_FALSE(RecognitionOf("MSE", 2.5, {{2, 1}, {1, 2}, {2}, {2, 4}}).broadcast);  // squeezed inside
}

TEST(LossCall, SettingsComeFromTheDocument) {
  FakeTrial trial;
  trial.SetDocument("model", R"({"losses": [{"type": "CrossEntropyLoss",
    "settings": {"label_smoothing": 0.3, "ignore_index": 2}}]})");
  const double smooth = 0.7 * kFirst + 0.1 * (3 * (kFirst + 1) - 6);
  Tell(&trial, "CrossEntropyLoss", smooth, kClasses);
  Looked rows;
  LossReader reader;
  const auto calls = reader.Read(View(trial, &rows, 0));
  const Recognition found = reader.Recognise(calls.at(0));
  EXPECT_TRUE(found.by_value);
  EXPECT_EQ(found.per_sample.size(), 1U);
}

TEST(LossCall, WhatWasSampledInPartIsKnownByNameOnly) {
  FakeTrial trial;
  trial.Step()
      .Loss(1, "MSELoss_output_0")
      .Sample("sample/MSELoss_input_0", {2}, {1, 2}, DType::kFloat32, {100})
      .Sample("sample/MSELoss_input_1", {2}, {2, 4}, DType::kFloat32, {100});
  Looked rows;
  LossReader reader;
  const auto calls = reader.Read(View(trial, &rows, 0));
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_FALSE(calls[0].whole());
  const Recognition found = reader.Recognise(calls[0]);
  EXPECT_EQ(found.formula, Formula::kMse);
  EXPECT_FALSE(found.by_value);
  EXPECT_EQ(found.per_sample, (std::vector<double>{1, 4}));
}

TEST(LossCall, InputsOfModelsAreNoLosses) {
  FakeTrial trial;
  trial.Step().Loss(1).Sample("sample/Sequential_input_0", {2}, {1, 2}).Sample("sample/x_input_1", {1}, {1});
  Looked rows;
  LossReader reader;
  EXPECT_TRUE(reader.Read(View(trial, &rows, 0)).empty());
}

TEST(LossCall, PartnersInABatch_AreKnownByTheirTargets) {
  const auto named = [](std::int64_t scores, std::vector<double> targets) {
    const auto rows = static_cast<std::int64_t>(targets.size());
    LossCall call;
    call.output.whole_shape = {rows, scores};
    call.target.dtype = DType::kInt64;
    call.target.whole_shape = {rows};
    call.target.values = std::move(targets);
    return NamesPartners(call);
  };
  EXPECT_TRUE(named(4, {0, 1, 2, 3}));
  EXPECT_TRUE(named(4, {2, 3, 0, 1}));   // two views, one after the other
  EXPECT_TRUE(named(12, {4, 5, 6, 7}));  // scores of all ranks
  EXPECT_FALSE(named(4, {0, 1, 2, 2}));
  EXPECT_FALSE(named(12, {4, 7, 5, 6}));
}

}  // namespace
}  // namespace luff::rules::loss_call_test
