#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

namespace luff::rules::loss_input_contract_test {
namespace {

using testing::Batch;
using testing::FakeTrial;

std::vector<Finding> FindingsOf(const FakeTrial& trial) {
  return testing::FindingsOf(trial, "LossInputContract", ParameterSet::kLuff);
}

// `change` turns scores of 6 samples x 3 classes into the input of the loss.
FakeTrial Story(const std::function<void(std::vector<double>*)>& change, int steps = 8) {
  FakeTrial trial;
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  for (int step = 0; step < steps; ++step) {
    Batch batch{{}, std::vector<double>(18), {0, 1, 2, 0, 1, 2}};
    for (double& score : batch.scores) score = normal(random);
    change(&batch.scores);
    testing::TellClasses(&trial, batch, 3);
  }
  return trial;
}

// Softmax (or its logarithm) along the classes or along the samples.
void Normalise(std::vector<double>* scores, bool over_classes, bool logarithm) {
  for (std::size_t line = 0; line < (over_classes ? 6U : 3U); ++line) {
    const std::size_t count = over_classes ? 3 : 6;
    const auto at = [&](std::size_t i) -> double& {
      return (*scores)[over_classes ? line * 3 + i : i * 3 + line];
    };
    double total = 0;
    for (std::size_t i = 0; i < count; ++i) total += std::exp(at(i));
    for (std::size_t i = 0; i < count; ++i)
      at(i) = logarithm ? at(i) - std::log(total) : std::exp(at(i)) / total;
  }
}

// The same with NLLLoss instead of cross entropy.
FakeTrial NllStory(const std::function<void(std::vector<double>*)>& change) {
  FakeTrial trial;
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  for (int step = 0; step < 8; ++step) {
    std::vector<double> scores(18);
    const std::vector<double> ids = {0, 1, 2, 0, 1, 2};
    for (double& score : scores) score = normal(random);
    change(&scores);
    double loss = 0;
    for (std::size_t i = 0; i < 6; ++i) loss -= scores[i * 3 + static_cast<std::size_t>(ids[i])] / 6;
    trial.Step()
        .Loss(loss, "NLLLoss_output_0")
        .Sample("sample/NLLLoss_input_0", {6, 3}, scores)
        .Sample("sample/NLLLoss_input_1", {6}, ids, DType::kInt64);
  }
  return trial;
}

TEST(LossInputContract, SoftmaxBeforeCrossEntropy_IsToldAtTheThirdCall) {
  const auto findings = FindingsOf(Story([](auto* scores) { Normalise(scores, true, false); }));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "softmax_before_cross_entropy");
  EXPECT_EQ(findings[0].step, 2);
  EXPECT_EQ(findings[0].since_step, 0);
}

TEST(LossInputContract, LogitsAndLogSoftmax_AreSilentBeforeCrossEntropy) {
  EXPECT_TRUE(FindingsOf(Story([](auto*) {})).empty());
  EXPECT_TRUE(FindingsOf(Story([](auto* scores) { Normalise(scores, true, true); })).empty());
}

TEST(LossInputContract, LabelsThatAreSmoothedAway_AreNamed_AndUsualSmoothingIsSilent) {
  for (const char* smoothing : {"0.9", "0.1"}) {
    FakeTrial trial = Story([](auto*) {});
    trial.SetDocument(
        "model", std::string(R"({"losses": [{"type": "CrossEntropyLoss", "settings": {"label_smoothing": )") +
                     smoothing + "}}]}");
    const auto findings = FindingsOf(trial);
    ASSERT_EQ(findings.size(), std::string_view(smoothing) == "0.9" ? 1U : 0U);
    for (const Finding& finding : findings) EXPECT_EQ(finding.cause, "smoothed_away");
  }
}

TEST(LossInputContract, KerasLossOfProbabilities_WantsThem) {
  const auto findings = [](const std::vector<double>& row) {
    FakeTrial trial;
    for (int step = 0; step < 6; ++step) {
      std::vector<double> scores = row;
      scores.insert(scores.end(), row.begin(), row.end());
      trial.Step()
          .Loss(0.4, "SparseCategoricalCrossentropy_output_0")
          .Sample("sample/SparseCategoricalCrossentropy_input_0", {2, 3}, scores)
          .Sample("sample/SparseCategoricalCrossentropy_input_1", {2}, {0, 2}, DType::kInt64);
    }
    return FindingsOf(trial);
  };
  ASSERT_EQ(findings({1.4, -0.2, 0.3}).size(), 1U);
  EXPECT_EQ(findings({1.4, -0.2, 0.3})[0].cause, "logits_into_categorical");
  EXPECT_NE(findings({1.4, -0.2, 0.3})[0].remedy.find("from_logits"), std::string::npos);
  EXPECT_TRUE(findings({0.7, 0.2, 0.1}).empty());
  EXPECT_TRUE(findings({1, 0, 0}).empty());
  EXPECT_TRUE(findings({7, 2.5, 1}).empty());      // of a softplus: likewise
  EXPECT_TRUE(findings({0.9, 0.8, 0.4}).empty());  // of a sigmoid: Keras makes shares of them
}

TEST(LossInputContract, SoftmaxOfOneScore_IsNamed_AndASaturatedSigmoidIsNot) {
  const auto findings = [](const char* last, double value) {
    FakeTrial trial;
    trial.SetDocument("model",
                      std::string(R"({"models": [{"name": "Net", "modules": [{"path": "", "type": "Net"},
        {"path": "0", "type": "Linear"}, {"path": "1", "type": ")") +
                          last + R"("}]}]})");
    for (int step = 0; step < 6; ++step) {
      trial.Step()
          .Loss(8, "BCELoss_output_0")
          .Sample("sample/BCELoss_input_0", {3, 1}, {1, 1, value})
          .Sample("sample/BCELoss_input_1", {3, 1}, {1, 0, 1});
    }
    return FindingsOf(trial);
  };
  ASSERT_EQ(findings("Softmax", 1).size(), 1U);
  EXPECT_EQ(findings("Softmax", 1)[0].cause, "softmax_of_one");
  EXPECT_TRUE(findings("Sigmoid", 1).empty());
  EXPECT_TRUE(findings("Softmax", 0.5).empty());
}

TEST(LossInputContract, SoftmaxOfOneNumber_IsNamed_ByTheGraph) {
  const auto findings = [](const char* maker, std::vector<std::int64_t> shape) {
    FakeTrial trial;
    for (int step = 0; step < 6; ++step) {
      trial.Step()
          .Loss(0.5, "MSELoss_output_0")
          .Sample("sample/MSELoss_input_0", shape, {1, 1, 1, 1})
          .Sample("sample/MSELoss_input_1", shape, {0, 1, 0, 1});
      if (step == 0)
        trial.EventJson(std::string(R"({"kind": "loss_input", "loss": "MSELoss", "call": 0, "made_by": ")") +
                        maker + "\"}");
    }
    return FindingsOf(trial);
  };
  ASSERT_EQ(findings("softmax", {4, 1}).size(), 1U);
  EXPECT_EQ(findings("softmax", {4, 1})[0].cause, "softmax_of_one");
  EXPECT_TRUE(findings("sigmoid", {4, 1}).empty());
  EXPECT_TRUE(findings("softmax", {2, 2}).empty());
}

TEST(LossInputContract, SoftmaxOverTheBatch_IsNamed) {
  for (const bool logarithm : {true, false}) {
    const auto findings = FindingsOf(Story([&](auto* scores) { Normalise(scores, false, logarithm); }));
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, "softmax_over_batch");
  }
  const auto findings = FindingsOf(NllStory([](auto* scores) { Normalise(scores, false, true); }));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "softmax_over_batch");
}

TEST(LossInputContract, NllWantsLogProbabilities) {
  EXPECT_TRUE(FindingsOf(NllStory([](auto* scores) { Normalise(scores, true, true); })).empty());
  const auto logits = FindingsOf(NllStory([](auto*) {}));
  ASSERT_EQ(logits.size(), 1U);
  EXPECT_EQ(logits[0].cause, "logits_into_nll");
  EXPECT_EQ(logits[0].severity, Severity::kStop);
  const auto shares = FindingsOf(NllStory([](auto* scores) { Normalise(scores, true, false); }));
  ASSERT_EQ(shares.size(), 1U);
  EXPECT_EQ(shares[0].cause, "probabilities_into_nll");
}

FakeTrial BinaryStory(double low, double high, int steps, const char* last_module, bool zeros = false) {
  FakeTrial trial;
  trial.SetDocument("model", std::string(R"({"models": [{"name": "Net", "modules": [
    {"path": "", "type": "Sequential", "name": "Net", "number": 0},
    {"path": "0", "type": ")") + last_module +
                                 R"(", "name": "Net_0", "number": 1}]}]})");
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform(low, high);
  for (int step = 0; step < steps; ++step) {
    std::vector<double> scores(64);
    std::vector<double> targets(64);
    for (std::size_t i = 0; i < 64; ++i) {
      scores[i] = zeros && i % 5 == 0 ? 0 : uniform(random);
      targets[i] = i % 2 == 0 ? 1 : 0;
    }
    testing::TellPairs(&trial, "HandBCE", testing::BceWithLogits(scores, targets), scores, targets);
  }
  return trial;
}

// Scores of 16 samples x 4 classes behind a last module; `drawn`: others are 0 at each step, else those of
// the first column (a mask), or (`sign`) all that are below 0, or (`padding`) the last rows.
FakeTrial Zeros(const char* last_module, bool drawn, bool mask, bool sign, bool padding = false,
                double p = 0.25) {
  FakeTrial trial;
  trial.SetDocument("model", std::string(R"({"models": [{"name": "Net", "modules": [
    {"path": "", "type": "Net", "name": "Net", "number": 0},
    {"path": "last", "type": ")") +
                                 last_module + R"(", "name": "Net_last", "number": 1, "settings": {"p": )" +
                                 std::to_string(p) + "}}]}]}");
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  for (int step = 0; step < 6; ++step) {
    Batch batch{{}, std::vector<double>(64), {}};
    for (std::size_t i = 0; i < 64; ++i) {
      double& score = batch.scores[i];
      score = normal(random);
      if ((drawn && normal(random) > 0.7) || (mask && i % 4 == 0) || (sign && score < 0) ||
          (padding && i >= 48))
        score = 0;
      if (i % 4 == 0) batch.ids.push_back(static_cast<double>(i / 4 % 3 + 1));
    }
    testing::TellClasses(&trial, batch, 4);
  }
  return trial;
}

TEST(LossInputContract, DropoutBehindTheLastLayer_IsTold_MasksAndDropoutElsewhereAreSilent) {
  const auto findings = FindingsOf(Zeros("Dropout", true, false, false));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "dropout_before_scores");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_TRUE(FindingsOf(Zeros("Dropout", false, false, false)).empty());  // registered last, used before
  EXPECT_TRUE(FindingsOf(Zeros("Dropout", false, true, false)).empty());
  EXPECT_TRUE(FindingsOf(Zeros("Dropout", false, false, true)).empty());
  EXPECT_TRUE(FindingsOf(Zeros("Dropout", false, false, false, true)).empty());
  EXPECT_TRUE(FindingsOf(Zeros("Dropout", true, false, false, false, 0.75)).empty());  // labels that lack
  EXPECT_TRUE(FindingsOf(Zeros("Linear", true, false, false)).empty());
}

TEST(LossInputContract, SigmoidBeforeLogits_NeedsTheGraphOrManyBatches) {
  const auto by_graph = FindingsOf(BinaryStory(0.4, 0.6, 8, "Sigmoid"));
  ASSERT_EQ(by_graph.size(), 1U);
  EXPECT_EQ(by_graph[0].cause, "sigmoid_before_logits");
  EXPECT_EQ(by_graph[0].step, 2);
  EXPECT_TRUE(FindingsOf(BinaryStory(0.4, 0.6, 40, "Linear")).empty());
  EXPECT_TRUE(FindingsOf(BinaryStory(0.01, 0.99, 12, "Linear")).empty());
  EXPECT_EQ(FindingsOf(BinaryStory(0.01, 0.99, 30, "Linear")).size(), 1U);
  EXPECT_TRUE(FindingsOf(BinaryStory(-0.2, 0.99, 30, "Linear")).empty());
  EXPECT_TRUE(FindingsOf(BinaryStory(0.01, 0.99, 30, "Linear", true)).empty());  // behind a pooled ReLU
}

TEST(LossInputContract, OnePartialBatchOfOneSampleIsNoEvidence) {
  FakeTrial trial;
  for (int step = 0; step < 8; ++step) testing::TellClasses(&trial, {{}, {step == 3 ? 1.0 : 2.0, 0}, {0}}, 2);
  EXPECT_TRUE(FindingsOf(trial).empty());
}

// Two calls of one kind in each step; `change` makes the scores of the first.
FakeTrial TwoHeads(const std::function<void(std::vector<double>*)>& change, const std::string& event = "") {
  FakeTrial trial;
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  for (int step = 0; step < 8; ++step) {
    trial.Step();
    if (step == 0 && !event.empty()) trial.EventJson(event);
    for (int call = 0; call < 2; ++call) {
      std::vector<double> scores(18);
      const std::vector<double> ids = {0, 1, 2, 0, 1, 2};
      for (double& score : scores) score = normal(random);
      if (call == 0) change(&scores);
      const std::string name = "CrossEntropyLoss_output_" + std::to_string(call);
      trial.Loss(testing::CrossEntropy(scores, ids, 3), name)
          .Sample("sample/CrossEntropyLoss_input_" + std::to_string(2 * call), {6, 3}, scores)
          .Sample("sample/CrossEntropyLoss_input_" + std::to_string(2 * call + 1), {6}, ids, DType::kInt64);
    }
  }
  return trial;
}

TEST(LossInputContract, ACorrectCallBesideIt_DoesNotHideAFaultyOne) {
  const auto findings = FindingsOf(TwoHeads([](auto* scores) { Normalise(scores, true, false); }));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "softmax_before_cross_entropy");
  EXPECT_EQ(findings[0].tensor, "CrossEntropyLoss_output_0");
}

std::string MadeBy(const std::string& operation, int call = 0, const std::string& behind = "",
                   const std::string& loss = "CrossEntropyLoss") {
  return R"({"kind": "loss_input", "loss": ")" + loss + R"(", "call": )" + std::to_string(call) +
         R"(, "made_by": ")" + operation + "\"" + (behind.empty() ? "" : R"(, "behind": ")" + behind + "\"") +
         "}";
}

TEST(LossInputContract, TwoInARow_AreAFactOfTheGraph) {
  const auto plain = [](auto*) {};
  const auto cause = [&](const std::string& maker, const std::string& behind) {
    const auto findings = FindingsOf(TwoHeads(plain, MadeBy(maker, 0, behind)));
    return findings.empty() ? std::string() : findings[0].cause;
  };
  EXPECT_EQ(cause("log_softmax", "softmax"), "squashed_twice");
  EXPECT_EQ(cause("log_softmax", "sigmoid"), "squashed_twice");
  EXPECT_EQ(cause("log_softmax", "relu"), "activation_before_scores");
  EXPECT_EQ(cause("clamp", ""), "activation_before_scores");
  EXPECT_EQ(cause("sigmoid", "relu"), "sigmoid_before_logits");  // which is one too many already
  EXPECT_EQ(cause("log_softmax", ""), "");
  EXPECT_EQ(cause("log_softmax", "log_softmax"), "");  // changes nothing
  EXPECT_EQ(cause("log_softmax", "exp"), "");
  EXPECT_EQ(cause("exp", "softmax"), "");
}

TEST(LossInputContract, WhatKerasGraphSaysOfProbabilities_IsAFact) {
  const auto told = [](const std::string& maker, const std::string& behind, const std::vector<double>& row) {
    FakeTrial trial;
    for (int step = 0; step < 6; ++step) {
      std::vector<double> scores = row;
      scores.insert(scores.end(), row.begin(), row.end());
      trial.Step()
          .Loss(0.4, "CategoricalCrossentropy_output_0")
          .Sample("sample/CategoricalCrossentropy_input_0", {2, 3}, scores)
          .Sample("sample/CategoricalCrossentropy_input_1", {2, 3}, {1, 0, 0, 0, 0, 1});
      if (step == 0) trial.EventJson(MadeBy(maker, 0, behind, "CategoricalCrossentropy"));
    }
    const auto findings = FindingsOf(trial);
    return findings.empty() ? std::string() : findings[0].cause;
  };
  EXPECT_EQ(told("relu", "", {2.5, 0, 0.4}), "relu_into_probabilities");
  EXPECT_EQ(told("softplus", "", {2.5, 0.1, 0.4}), "");  // positive numbers are right
  EXPECT_EQ(told("softmax", "", {0.7, 0.2, 0.1}), "");
  EXPECT_EQ(told("softmax", "dropout", {0.7, 0.2, 0.1}), "dropout_before_scores");
  EXPECT_EQ(told("softmax", "relu", {0.7, 0.2, 0.1}), "activation_before_scores");
}

TEST(LossInputContract, WhatTheGraphSays_IsAFact) {
  const auto plain = [](auto*) {};
  for (const std::string operation : {"relu", "tanh", "gelu"}) {
    const auto findings = FindingsOf(TwoHeads(plain, MadeBy(operation)));
    ASSERT_EQ(findings.size(), 1U) << operation;
    EXPECT_EQ(findings[0].cause, "activation_before_scores");
    EXPECT_EQ(findings[0].tensor, "CrossEntropyLoss_output_0");
  }
  EXPECT_EQ(FindingsOf(TwoHeads(plain, MadeBy("relu", 1))).at(0).tensor, "CrossEntropyLoss_output_1");
  EXPECT_EQ(FindingsOf(TwoHeads(plain, MadeBy("sigmoid"))).at(0).cause, "sigmoid_before_logits");
  for (const std::string& event : {MadeBy(""), MadeBy("exp"), MadeBy("relu", 5), MadeBy("relu", -1),
                                   std::string(R"({"kind": "loss_input", "made_by": 3})")})
    EXPECT_TRUE(FindingsOf(TwoHeads(plain, event)).empty()) << event;
}

// A loss of 6 rows of 3 classes whose targets are shares. They are one-hot, or those of a teacher.
FakeTrial Shares(const std::string& loss, bool hard, const std::string& event) {
  FakeTrial trial;
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  for (int step = 0; step < 8; ++step) {
    std::vector<double> scores(18);
    std::vector<double> target(18);
    for (double& score : scores) score = normal(random);
    for (double& score : target) score = normal(random);
    Normalise(&scores, true, true);
    if (loss == "BCELoss")
      for (double& score : scores) score = std::exp(score);
    Normalise(&target, true, false);
    for (std::size_t i = 0; hard && i < target.size(); ++i) target[i] = i % 3 == i / 3 % 3 ? 1 : 0;
    trial.Step();
    if (step == 0) trial.EventJson(event);
    trial.Loss(1, loss + "_output_0")
        .Sample("sample/" + loss + "_input_0", {6, 3}, scores)
        .Sample("sample/" + loss + "_input_1", {6, 3}, target);
  }
  return trial;
}

TEST(LossInputContract, LimitsOfWhatMeetsSoftTargets_AreSilent) {
  for (const std::string behind : {"softmax", "sigmoid", "relu", "tanh"}) {
    for (const auto& [loss, maker] : {std::pair("KLDivLoss", "log_softmax"), std::pair("BCELoss", "softmax"),
                                      std::pair("CrossEntropyLoss", "log_softmax")}) {
      EXPECT_EQ(FindingsOf(Shares(loss, true, MadeBy(maker, 0, behind, loss))).size(), 1U) << loss << behind;
      EXPECT_TRUE(FindingsOf(Shares(loss, false, MadeBy(maker, 0, behind, loss))).empty()) << loss << behind;
    }
    if (behind == "softmax") continue;
    EXPECT_EQ(FindingsOf(Shares("CrossEntropyLoss", true, MadeBy(behind))).size(), 1U) << behind;
    EXPECT_TRUE(FindingsOf(Shares("CrossEntropyLoss", false, MadeBy(behind))).empty()) << behind;
  }
}

// A divergence of 6 rows of 3 shares; `first` and `second` change scores into the two arguments.
FakeTrial Divergences(const std::function<void(std::vector<double>*)>& first,
                      const std::function<void(std::vector<double>*)>& second, bool log_target = false) {
  FakeTrial trial;
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  for (int step = 0; step < 8; ++step) {
    std::vector<double> output(18);
    std::vector<double> target(18);
    for (double& score : output) score = normal(random);
    for (double& score : target) score = normal(random);
    first(&output);
    second(&target);
    trial.Step()
        .Loss(1, "KLDivLoss_output_0")
        .Sample("sample/KLDivLoss_input_0", {6, 3}, output)
        .Sample("sample/KLDivLoss_input_1", {6, 3}, target);
  }
  trial.SetDocument("model", std::string(R"({"losses": [{"type": "KLDivLoss", "settings": {"log_target": )") +
                                 (log_target ? "true" : "false") + "}}]}");
  return trial;
}

TEST(LossInputContract, ArgumentsOfADivergence_AreNamedByWhatTheyHold) {
  const auto shares = [](auto* scores) { Normalise(scores, true, false); };
  const auto logarithms = [](auto* scores) { Normalise(scores, true, true); };
  const auto over_batch = [](auto* scores) { Normalise(scores, false, true); };
  EXPECT_TRUE(FindingsOf(Divergences(logarithms, shares)).empty());
  EXPECT_TRUE(FindingsOf(Divergences(logarithms, logarithms, true)).empty());
  const auto cause = [](const FakeTrial& trial) {
    const auto findings = FindingsOf(trial);
    return findings.size() == 1 ? findings[0].cause : std::to_string(findings.size());
  };
  EXPECT_EQ(cause(Divergences(shares, shares)), "no_log_probabilities_into_kl");
  EXPECT_EQ(cause(Divergences(shares, logarithms)), "arguments_of_kl_swapped");
  int calls = 0;  // such a loss is NaN, and so are the outputs after its first update
  EXPECT_EQ(cause(Divergences(shares,
                              [&](auto* scores) {
                                logarithms(scores);
                                if (calls++ > 0) scores->assign(scores->size(), NAN);
                              })),
            "arguments_of_kl_swapped");
  EXPECT_EQ(cause(Divergences(logarithms, shares, true)), "probabilities_as_log_target");
  EXPECT_EQ(cause(Divergences(over_batch, shares)), "softmax_over_batch");
}

TEST(LossInputContract, TargetsOfZeroAndOneWhereSignsAreDue_AreNamed) {
  const auto told = [](const std::vector<std::string>& values) {
    FakeTrial trial;
    for (std::size_t step = 0; step < 12; ++step) {
      trial.Step().Loss(1, "CosineEmbeddingLoss_output_0");
      if (step < values.size())
        trial.EventJson(R"({"kind": "loss_target", "loss": "CosineEmbeddingLoss", "call": 0, "values": ")" +
                        values[step] + "\"}");
    }
    return FindingsOf(trial);
  };
  const auto findings = told({"zeros_and_ones"});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "targets_of_zero");
  EXPECT_EQ(findings[0].step, 2);
  EXPECT_TRUE(told({}).empty());
  EXPECT_TRUE(told({"others"}).empty());
  EXPECT_TRUE(told({"zeros_and_ones", "others"}).empty());
  EXPECT_TRUE(told({"others", "zeros_and_ones"}).empty());  // -1 was there: zeros are left out on purpose
}

TEST(LossInputContract, WhatCtcCannotLearnFrom_IsNamed) {
  // `breaks`: what the event tells in each of the first steps; "-": no event.
  const auto told = [](const std::vector<std::string>& breaks) {
    FakeTrial trial;
    for (std::size_t step = 0; step < breaks.size() + 12; ++step) {
      trial.Step().Loss(1, "CTCLoss_output_0");
      if (step < breaks.size() && breaks[step] != "-")
        trial.EventJson(R"({"kind": "loss_ctc", "loss": "CTCLoss", "call": 0, "breaks": [)" + breaks[step] +
                        "]}");
    }
    return FindingsOf(trial);
  };
  const std::vector<std::pair<std::string, std::string>> all = {
      {R"("scores")", "logits_into_ctc"},
      {R"("probabilities")", "probabilities_into_ctc"},
      {R"("blank")", "blank_in_ctc_targets"},
      {R"("short")", "too_few_steps_for_ctc"}};
  for (const auto& [word, cause] : all) {
    const auto findings = told({word, "-", word, "-", "-", word});
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, cause);
    EXPECT_EQ(findings[0].step, 5);
    EXPECT_TRUE(told({word}).empty());  // CTC loss in one of many steps
    EXPECT_TRUE(told({word, word, "", word, word}).empty());
  }
  const std::string both = R"("blank", "short")";
  EXPECT_EQ(told({both, both, both}).size(), 2U);
  EXPECT_TRUE(told({}).empty());
  EXPECT_TRUE(told({""}).empty());
  EXPECT_TRUE(told({R"("short")", "-", ""}).empty());  // a batch of the longest words
  EXPECT_TRUE(told(std::vector<std::string>(4, R"("another word")")).empty());
  std::vector<std::string> later(33, "-");  // in the only batch between steps 32 and 64 that is looked at
  later.back() = R"("short")";
  EXPECT_TRUE(told(later).empty());
  later.resize(65, "-");
  later.back() = R"("short")";
  EXPECT_EQ(told(later).size(), 1U);
  EXPECT_TRUE(told(std::vector<std::string>(4, "1, null")).empty());
}

// Scores of 8 rows and 8 partners: cosines times `factor`, of which those of a row with itself may be masked.
// From step `until` on they are times 10.
FakeTrial Cosines(double factor, double told, double masked = 0, std::size_t classes = 8, int until = 80) {
  FakeTrial trial;
  std::mt19937 random(3);
  std::uniform_real_distribution<double> cosine(-0.9, 0.9);
  for (int step = 0; step < 80; ++step) {
    if (step == until) factor = told = 10;
    Batch batch;
    for (std::size_t i = 0; i < 8; ++i) {
      for (std::size_t c = 0; c < classes; ++c)
        batch.scores.push_back(masked != 0 && i == c ? masked : factor * cosine(random));
      batch.ids.push_back(static_cast<double>((i + 1) % classes));
    }
    testing::TellClasses(&trial, batch, classes);
    if (step == 0 || step == until)
      trial.EventJson(
          R"({"kind": "loss_input", "loss": "CrossEntropyLoss", "call": 0, "made_by": "", "bound": )" +
          std::to_string(told) + "}");
  }
  return trial;
}

TEST(LossInputContract, CosinesTimesATemperature_AreTold) {
  const auto findings = FindingsOf(Cosines(0.1, 0.1));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "bounded_scores");
  EXPECT_EQ(findings[0].step, 65);
  EXPECT_NE(findings[0].remedy.find("temperature"), std::string::npos);
  EXPECT_EQ(FindingsOf(Cosines(0.1, 0.1, -1e9)).size(), 1U);
  EXPECT_EQ(FindingsOf(Cosines(0.1, 0.1, 0, 2)).size(), 1U);
}

TEST(LossInputContract, CosinesThatCanTellApart_AreSilent) {
  EXPECT_TRUE(FindingsOf(Cosines(0, 0)).empty());  // no cosines: scores of a last layer whose ReLU is dead
  EXPECT_TRUE(FindingsOf(Cosines(0.1, 0.1, 0, 8, 40)).empty());  // a temperature that falls
  EXPECT_TRUE(FindingsOf(Cosines(10, 10)).empty());
  EXPECT_TRUE(FindingsOf(Cosines(2, 2, -1e9)).empty());
  EXPECT_TRUE(FindingsOf(Cosines(1, 1)).empty());          // without a temperature: weak, and it learns
  EXPECT_TRUE(FindingsOf(Cosines(0.1, 0)).empty());        // of a young model, which may grow
  EXPECT_TRUE(FindingsOf(Cosines(1, 0.1)).empty());        // something was added
  EXPECT_TRUE(FindingsOf(Cosines(0.1, 0.1, -5)).empty());  // a margin, no mask
}

FakeTrial InOrder(const std::vector<bool>& exchanged) {
  FakeTrial trial = Story([](auto*) {}, 12);
  for (std::size_t step = 0; step < exchanged.size(); ++step)
    trial.steps()[2 * step].event_json.push_back(
        std::string(R"({"kind": "loss_exchanged", "loss": "BCELoss", "call": 0, "exchanged": )") +
        (exchanged[step] ? "true}" : "false}"));
  return trial;
}

TEST(LossInputContract, LabelsInThePlaceOfOutputs_SayNothingElse) {
  FakeTrial trial = BinaryStory(0.01, 0.99, 40, "Sigmoid");
  EXPECT_EQ(FindingsOf(trial).size(), 1U);
  trial.steps()[0].event_json.push_back(
      R"({"kind": "loss_exchanged", "loss": "HandBCE", "call": 0, "exchanged": true})");
  const auto findings = FindingsOf(trial);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "arguments_exchanged");
}

TEST(LossInputContract, LabelsInThePlaceOfOutputs_AreTold) {
  const auto findings = FindingsOf(InOrder({true}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "arguments_exchanged");
  EXPECT_EQ(findings[0].tensor, "BCELoss");
  EXPECT_EQ(findings[0].step, 0);
  EXPECT_FALSE(findings[0].healed);
  EXPECT_TRUE(FindingsOf(InOrder({})).empty());
  const auto mended = FindingsOf(InOrder({true, false}));
  ASSERT_EQ(mended.size(), 1U);
  EXPECT_TRUE(mended[0].healed);
}

// Predictions of one number for each of 64 rows, behind a model that ends with `last`.
// `fill` stands for targets where predictions are 0: they were masked, and so were these.
FakeTrial Numbers(const std::string& last, bool drawn, bool positive = false, double kept = 1,
                  double fill = 0) {
  FakeTrial trial;
  trial.SetDocument("model", R"({"models": [{"name": "Net", "modules": [
    {"path": "", "type": "Net"}, {"path": "fc", "type": "Linear"},
    {"path": "last", "type": ")" +
                                 last + R"(", "settings": {"p": 0.25}}]}]})");
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  for (int step = 0; step < 8; ++step) {
    std::vector<double> outputs(64), targets(64);
    double error = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      outputs[i] = positive ? std::abs(normal(random)) : normal(random);
      targets[i] = normal(random);
      if (drawn && normal(random) > 0.6745) outputs[i] = 0;
      if (outputs[i] == 0 && static_cast<double>(i % 16) >= 16 * kept) targets[i] = fill;
      error += (outputs[i] - targets[i]) * (outputs[i] - targets[i]) / 64;
    }
    testing::TellPairs(&trial, "MSELoss", error, outputs, targets);
  }
  return trial;
}

TEST(LossInputContract, DropoutBehindTheLastLayerOfARegression_IsTold) {
  const auto findings = FindingsOf(Numbers("Dropout", true));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "dropout_before_scores");
  EXPECT_NE(findings[0].what.find("predictions"), std::string::npos);
  EXPECT_TRUE(FindingsOf(Numbers("Dropout", false)).empty());       // registered last, used before
  EXPECT_TRUE(FindingsOf(Numbers("Linear", true)).empty());         // zeros of a script
  EXPECT_TRUE(FindingsOf(Numbers("Dropout", true, true)).empty());  // of a ReLU, perhaps
}

TEST(LossInputContract, PredictionsAndTargetsUnderOneMask_AreSilent) {
  EXPECT_TRUE(FindingsOf(Numbers("Dropout", true, false, 0)).empty());
  EXPECT_TRUE(FindingsOf(Numbers("Dropout", true, false, 0, -1)).empty());       // a value for none
  EXPECT_TRUE(FindingsOf(Numbers("Dropout", true, false, 0.25)).empty());        // for the most part
  EXPECT_EQ(FindingsOf(Numbers("Dropout", true, false, 15.0 / 16)).size(), 1U);  // chance
}

}  // namespace
}  // namespace luff::rules::loss_input_contract_test
