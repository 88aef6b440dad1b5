#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "rules/engine/grouping.h"
#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

namespace luff::rules::worse_than_simple_test {
namespace {

using testing::FakeTrial;

std::vector<Finding> FindingsOf(const FakeTrial& trial, const char* rules = "WorseThanSimple") {
  return testing::FindingsOf(trial, rules, ParameterSet::kLuff);
}

std::string CauseOf(const FakeTrial& trial) {
  const std::vector<Finding> findings = FindingsOf(trial);
  if (findings.empty()) return "";
  return findings.size() == 1 && !findings[0].healed ? findings[0].cause : "several";
}

constexpr const char* kDropout =
    R"({"models": [{"name": "Net", "modules": [{"path": "", "type": "Net"},
        {"path": "drop", "type": "Dropout", "p": 0.5}]}]})";

enum class Given : std::uint8_t { kNothing, kIds, kOtherIds, kOneHot, kColumn };  // labels, to the model

// Rows of eight numbers, three classes that a line tells. A model answers a share of them rightly, and the
// others with a class at random.
struct Telling {
  int steps = 640;
  std::size_t rows = 1024;  // of the training, in batches of 32
  double knows = 0.05,
         by_the_end = -1;  // share that the model answers in training, at first and at the end (-1: the same)
  double evaluated = -1;   // the same in evaluations, each 80 steps of 320 rows; -1: there are none
  bool unrelated = false;  // targets have nothing to do with inputs, nor are answers better than chance
  bool turned = false;     // inputs of evaluations are the negative of those of the training
  bool shuffled = false;   // targets of evaluations are shuffled
  bool dummies = false;    // they are all 0
  double factor = 1;       // of the loss: weights of classes
  bool twice = false;      // the same answers are compared with targets of other rows, too
  bool adversaries = false;  // two optimizers take turns
  const char* document = "";
  int warm_up = 0;            // steps over which the rate rises
  bool leaves_class = false;  // the second half of the training has nothing of class 2
  int phase_at = 1 << 30;     // from this step on another optimizer updates
  int learns_at = -1;         // from this step on all answers are right
  double second = -1;         // share that a second head answers rightly, which learns the same (-1: none)
  bool unread = false;        // another loss, of which nothing is known
  Given given = Given::kNothing;
};

FakeTrial Classes(const Telling& telling) {
  FakeTrial trial;
  if (*telling.document != '\0') trial.SetDocument("model", telling.document);
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<double> weights(24);
  for (double& weight : weights) weight = normal(random);
  struct Row {
    std::vector<double> x;
    double id;
  };
  const auto draw = [&] {
    Row row{std::vector<double>(8), 0};
    std::vector<double> scores(3);
    for (std::size_t j = 0; j < 8; ++j) {
      row.x[j] = normal(random);
      for (std::size_t c = 0; c < 3; ++c) scores[c] += weights[8 * c + j] * row.x[j];
    }
    row.id = static_cast<double>(std::max_element(scores.begin(), scores.end()) - scores.begin());
    if (telling.unrelated) row.id = static_cast<double>(random() % 3);
    return row;
  };
  const auto tell = [&](const std::vector<Row>& rows, double knows, bool train) {
    testing::Batch batch;
    std::vector<double> inputs;
    for (const Row& row : rows) {
      for (const double x : row.x) inputs.push_back(!train && telling.turned ? -x : x);
      batch.ids.push_back(!train && telling.dummies ? 0 : row.id);
      const auto answer =
          uniform(random) < knows ? static_cast<std::size_t>(row.id) : static_cast<std::size_t>(random() % 3);
      for (std::size_t c = 0; c < 3; ++c) batch.scores.push_back(c == answer ? 3 + 0.1 * normal(random) : 0);
    }
    if (!train && telling.shuffled) std::shuffle(batch.ids.begin(), batch.ids.end(), random);
    testing::TellClasses(&trial, batch, 3, train ? query::Mode::kTrain : query::Mode::kEval, telling.factor);
    const auto count = static_cast<std::int64_t>(rows.size());
    const bool column = telling.given == Given::kColumn;
    if (column) {
      std::vector<double> wider;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        wider.insert(wider.end(), &inputs[8 * i], &inputs[8 * i] + 8);
        wider.push_back(rows[i].id);
      }
      inputs = wider;
    }
    trial.Sample("sample/Net_input_0", {count, column ? 9 : 8}, inputs);
    if (telling.given == Given::kIds) trial.Sample("sample/Net_input_1", {count}, batch.ids, DType::kInt64);
    std::vector<double> others;
    for (const double id : batch.ids) others.push_back(id == 0 ? 7 : id + 1);
    if (telling.given == Given::kOtherIds)
      trial.Sample("sample/Net_input_1", {count, 1}, others, DType::kInt64);
    std::vector<double> one_hot;
    for (const double id : batch.ids)
      for (int c = 0; c < 3; ++c) one_hot.push_back(c == static_cast<int>(id) ? 1 : 0);
    if (telling.given == Given::kOneHot) trial.Sample("sample/Net_input_1", {count, 3}, one_hot);
    if (telling.second >= 0) {
      std::vector<double> scores;
      for (const Row& row : rows) {
        const std::size_t id = static_cast<std::size_t>(row.id);
        const std::size_t answer = uniform(random) < telling.second ? id : random() % 3;
        for (std::size_t c = 0; c < 3; ++c) scores.push_back(c == answer ? 3 + 0.1 * normal(random) : 0);
      }
      trial.Loss(testing::CrossEntropy(scores, batch.ids, 3), "CrossEntropyLoss_output_1")
          .Sample("sample/CrossEntropyLoss_input_2", {count, 3}, scores)
          .Sample("sample/CrossEntropyLoss_input_3", {count}, batch.ids, DType::kInt64);
    }
    if (telling.unread)
      trial.Loss(2, "MSELoss_output_0")
          .Sample("sample/MSELoss_input_0", {7}, {1, 2, 3, 4, 5, 6, 7})
          .Sample("sample/MSELoss_input_1", {7}, {7, 6, 5, 4, 3, 2, 1});
    if (telling.twice) {
      const std::vector<double> reversed(batch.ids.rbegin(), batch.ids.rend());
      trial.Loss(1, "CrossEntropyLoss_output_1")
          .Sample("sample/CrossEntropyLoss_input_2", {count, 3}, batch.scores)
          .Sample("sample/CrossEntropyLoss_input_3", {count}, reversed, DType::kInt64);
    }
  };
  std::vector<Row> all;
  for (std::size_t i = 0; i < telling.rows; ++i) all.push_back(draw());
  std::vector<Row> others;
  std::copy_if(all.begin(), all.end(), std::back_inserter(others),
               [](const Row& row) { return row.id != 2; });
  std::vector<Row> held;
  for (int i = 0; i < 320; ++i) held.push_back(draw());
  for (int step = 0; step < telling.steps; ++step) {
    const double done = static_cast<double>(step) / telling.steps;
    const double end = telling.by_the_end < 0 ? telling.knows : telling.by_the_end;
    std::vector<Row> batch;
    const std::vector<Row>& from = telling.leaves_class && 2 * step >= telling.steps ? others : all;
    for (std::size_t i = 0; i < 32; ++i)
      batch.push_back(from[(static_cast<std::size_t>(step) * 32 + i) % from.size()]);
    const bool learnt = telling.learns_at >= 0 && step >= telling.learns_at;
    tell(batch, learnt ? 1 : telling.knows + done * (end - telling.knows), true);
    if (telling.warm_up > 0)
      trial.Scalar("optimizer/SGD.group0.lr", format::Role::kOptimizerSetting,
                   0.1 * std::min(1.0, static_cast<double>(step + 1) / telling.warm_up));
    trial.Event(format::EventKind::kOptimizerStep, telling.adversaries ? static_cast<std::uint32_t>(step % 2)
                                                   : step >= telling.phase_at ? 1U
                                                                              : 0U);
    if (telling.evaluated >= 0 && step % 80 == 79) tell(held, telling.evaluated, false);
  }
  return trial;
}

TEST(WorseThanSimple, AModelThatExplainsLessThanHalfOfALine_IsTold) {
  const auto findings = FindingsOf(Classes({}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "model");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].tensor, "CrossEntropyLoss_output_0");
  EXPECT_EQ(findings[0].step, 639);  // at the end
  EXPECT_GT(findings[0].evidence[2].value, 0.7);
  EXPECT_EQ(CauseOf(Classes({.evaluated = 0.05})), "model");
}

TEST(WorseThanSimple, AModelThatDoesAsWellOrNearlySo_IsSilent) {
  for (const double knows : {0.6, 0.8, 1.0}) EXPECT_EQ(CauseOf(Classes({.knows = knows})), "") << knows;
  EXPECT_EQ(CauseOf(Classes({.knows = 0.9, .evaluated = 0.6})), "");  // it overfits a little
}

TEST(WorseThanSimple, OneThatStillLearnsFastEnough_IsSilent) {
  EXPECT_EQ(CauseOf(Classes({.knows = 0, .by_the_end = 0.515})), "");
  EXPECT_EQ(CauseOf(Classes({.knows = 0, .by_the_end = 0.03})), "model");
}

TEST(WorseThanSimple, FewStepsOrRows_AreSilent) {
  EXPECT_EQ(CauseOf(Classes({.steps = 100})), "");
  EXPECT_EQ(CauseOf(Classes({.rows = 64})), "");  // they come again and again
}

TEST(WorseThanSimple, AModelThatLeavesThreeTimesAsMuchAsALine_IsNamed) {
  EXPECT_EQ(CauseOf(Classes({.knows = 0.55})), "model");  // the line explains nine tenths
  EXPECT_EQ(CauseOf(Classes({.knows = 0.85})), "");       // a tenth is left, which is not much
  EXPECT_EQ(CauseOf(Classes({.knows = 0.55, .evaluated = 0.95})), "");
}

TEST(WorseThanSimple, AShortTrainingIsJudgedWhereItEnds) {
  EXPECT_EQ(CauseOf(Classes({.steps = 200})), "model");
  EXPECT_EQ(CauseOf(Classes({.steps = 200, .knows = 0, .by_the_end = 0.4})), "");  // it may speed up
}

TEST(WorseThanSimple, WhatALineCannotTell_IsSilent) {
  EXPECT_EQ(CauseOf(Classes({.evaluated = 0, .unrelated = true})), "");
}

TEST(WorseThanSimple, DropoutAnswersWorseInTraining_SoEvaluationsDecide) {
  EXPECT_EQ(CauseOf(Classes({.document = kDropout})), "");
  EXPECT_EQ(CauseOf(Classes({.evaluated = 0.9, .document = kDropout})), "");
  EXPECT_EQ(CauseOf(Classes({.evaluated = 0.05, .document = kDropout})), "model");
}

TEST(WorseThanSimple, WeightedAndMixedTargetsAndAdversaries_AreSilent) {
  EXPECT_EQ(CauseOf(Classes({.factor = 3})), "");
  EXPECT_EQ(CauseOf(Classes({.twice = true})), "");
  EXPECT_EQ(CauseOf(Classes({.adversaries = true})), "");
}

// As a model that returns its own loss gets them.
TEST(WorseThanSimple, LabelsThatTheModelIsGiven_AreNoInputsOfTheLine) {
  for (const Given given : {Given::kIds, Given::kOtherIds, Given::kOneHot, Given::kColumn}) {
    const int name = static_cast<int>(given);
    EXPECT_EQ(CauseOf(Classes({.unrelated = true, .given = given})), "") << name;
    const char* of_others = given == Given::kColumn ? "" : "model";  // the whole input is left out
    EXPECT_EQ(CauseOf(Classes({.given = given})), of_others) << name;
  }
}

TEST(WorseThanSimple, AHeadBesideOneThatDoesWell_MayBeMeantToFail) {
  EXPECT_EQ(CauseOf(Classes({.second = 1})), "");
  EXPECT_EQ(FindingsOf(Classes({.second = 0.05})).size(), 2U);
  EXPECT_EQ(CauseOf(Classes({.unread = true})), "");
}

TEST(WorseThanSimple, EvaluationsThatTheLineDoesWellIn_AreAskedInTheWrongWay) {
  EXPECT_EQ(CauseOf(Classes({.knows = 0.95, .evaluated = 0})), "evaluation");
}

TEST(WorseThanSimple, EvaluationsThatOnlyALineOfTheirOwnTells_HaveOtherData) {
  EXPECT_EQ(CauseOf(Classes({.knows = 0.95, .evaluated = 0, .turned = true})), "evaluation_data");
  EXPECT_EQ(CauseOf(Classes({.knows = 0.95, .evaluated = 0.4, .turned = true})),
            "");  // it carries over in part
}

TEST(WorseThanSimple, EvaluationsThatNothingTells_HaveOtherLabels) {
  EXPECT_EQ(CauseOf(Classes({.knows = 0.95, .evaluated = 0, .shuffled = true})), "evaluation_labels");
  EXPECT_EQ(CauseOf(Classes({.knows = 0.95, .evaluated = 0, .dummies = true})), "");  // they have none
}

TEST(WorseThanSimple, ALongTrainingIsToldOnTheWay_AndHealsOnceItLearns) {
  const auto whole = FindingsOf(Classes({.steps = 4100, .learns_at = 2100}));
  ASSERT_EQ(whole.size(), 1U);
  EXPECT_EQ(whole[0].step, 2047);
  EXPECT_TRUE(whole[0].healed);
}

TEST(WorseThanSimple, ASecondPhaseIsJudgedByItself) {
  const auto findings = FindingsOf(Classes({.steps = 700, .phase_at = 100}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].since_step, 100);
  EXPECT_EQ(CauseOf(Classes({.steps = 220, .phase_at = 100})), "");  // too short
}

// As where a part of a model is trained in a second stage.
TEST(WorseThanSimple, OneLookOnTheWayIsNotEnough) {
  EXPECT_EQ(CauseOf(Classes({.steps = 2050, .learns_at = 1100})), "");
}

TEST(WorseThanSimple, AWarmUpThatHasNotEnded_IsSilent) {
  EXPECT_EQ(CauseOf(Classes({.warm_up = 1000})), "");
  EXPECT_EQ(CauseOf(Classes({.warm_up = 100})), "model");
}

TEST(WorseThanSimple, ClassesThatTheTrainingHadLongBefore_MayBeForgotten) {
  EXPECT_EQ(CauseOf(Classes({.knows = 0.95, .evaluated = 0, .leaves_class = true})), "");
}

TEST(WorseThanSimple, ItFollowsFromAFaultThatExplainsIt) {
  Finding cause;
  cause.id = "1";
  cause.rule = "NoGradient";
  cause.cause = "no_gradient";
  cause.global_step = 3;
  const std::vector<Finding> findings = FindingsOf(Classes({}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(LeaderOf(findings[0], std::vector<Finding>{cause}), "1");
}

// Regressions

struct Numbers {
  double knows = 0.05;  // share of the deviation of the target that the answer follows
  double drifts = 0;    // level of the targets in evaluations, in deviations
  double evaluated = -1;
  std::size_t targets = 1, columns = 6;
  bool asked = false;  // the model is asked before each step, and nothing is measured
  double noise = 4;    // deviation of the targets around what the inputs tell, beside 57
  // What the model is given of its target, "" for nothing: "same", "unit" (of others), "rank" (rises with it)
  const char* given = "";
  int rows = 32;
  const char* kind = "MSELoss";
};

FakeTrial Regression(const Numbers& telling) {
  FakeTrial trial;
  std::mt19937 random(6);
  std::normal_distribution<double> normal;
  const auto tell = [&](int rows, double knows, double level, query::Mode mode) {
    std::vector<double> inputs;
    std::vector<double> targets;
    std::vector<double> answers;
    double loss = 0;
    for (int i = 0; i < rows; ++i) {
      std::vector<double> x(telling.columns);
      for (double& value : x) value = normal(random);
      for (std::size_t t = 0; t < telling.targets; ++t) {
        const double y = 40 * (x[t % x.size()] - x[(t + 1) % x.size()]) + telling.noise * normal(random);
        targets.push_back(200 + y + 56 * level);
        answers.push_back(200 + knows * y);
        const double d = answers.back() - targets.back();
        loss += std::string(telling.kind) == "L1Loss" ? std::abs(d) : d * d;
      }
      inputs.insert(inputs.end(), x.begin(), x.end());
    }
    const std::string kind = telling.kind;
    std::vector<std::int64_t> shape = {rows};
    if (telling.targets > 1) shape.push_back(static_cast<std::int64_t>(telling.targets));
    trial.Step(mode)
        .Loss(loss / static_cast<double>(targets.size()), kind + "_output_0")
        .Sample("sample/" + kind + "_input_0", shape, answers)
        .Sample("sample/" + kind + "_input_1", shape, targets)
        .Sample("sample/Net_input_0", {rows, static_cast<std::int64_t>(telling.columns)}, inputs);
    if (*telling.given == '\0') return;
    std::vector<double> given;
    for (const double target : targets)
      given.push_back(std::string_view(telling.given) == "same"   ? target
                      : std::string_view(telling.given) == "unit" ? 32 + 1.8 * target
                                                                  : std::atan(target / 500));
    trial.Sample("sample/Net_input_1", {rows}, given);
  };
  for (int step = 0; step < 600; ++step) {
    if (telling.asked) trial.Step(query::Mode::kEval).Sample("sample/Net_input_0", {1, 1}, {0.0});
    tell(telling.rows, telling.knows, 0, query::Mode::kTrain);
    if (telling.evaluated >= 0 && step % 50 == 49)
      tell(320, telling.evaluated, telling.drifts, query::Mode::kEval);
  }
  return trial;
}

TEST(WorseThanSimple, NumbersAreJudgedInTheirOwnLoss) {
  EXPECT_EQ(CauseOf(Regression({})), "model");
  EXPECT_EQ(CauseOf(Regression({.kind = "L1Loss"})), "model");
  EXPECT_EQ(CauseOf(Regression({.targets = 3})), "model");
  EXPECT_EQ(CauseOf(Regression({.knows = 0.4})), "model");  // it leaves a third; a line nearly nothing
  EXPECT_EQ(CauseOf(Regression({.knows = 0.6})), "");
  EXPECT_EQ(CauseOf(Regression({.knows = 0.95})), "");
}

TEST(WorseThanSimple, NumbersThatTheModelIsGiven_AreNoInputsOfTheLine) {
  for (const char* given : {"same", "unit", "rank"}) {
    EXPECT_EQ(CauseOf(Regression({.noise = 400, .given = given})), "") << given;
    EXPECT_EQ(CauseOf(Regression({.given = given})), "model") << given;
  }
  for (const char* given : {"same", "unit"})
    EXPECT_EQ(CauseOf(Regression({.noise = 400, .given = given, .rows = 4})), "") << given;
}

TEST(WorseThanSimple, NumbersThatDrift_AreSilent) {
  EXPECT_EQ(CauseOf(Regression({.knows = 0.95, .drifts = 3, .evaluated = 0.95})), "");
}

TEST(WorseThanSimple, WhatRestoresItsInputOrMakesItsTargets_IsSilent) {
  EXPECT_EQ(CauseOf(Regression({.targets = 3, .columns = 3})), "");
  EXPECT_EQ(CauseOf(Regression({.asked = true})), "");
}

// Tokens

// Texts of eight ids, each of which mostly follows from the one before.
FakeTrial Tokens(double knows, bool copies, bool flat) {
  FakeTrial trial;
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int step = 0; step < 600; ++step) {
    std::vector<double> ids;
    testing::Batch batch;
    for (int row = 0; row < 8; ++row) {
      std::size_t id = random() % 8;
      for (int place = 0; place < 12; ++place) {
        const std::size_t next = uniform(random) < 0.7 ? (3 * id + 1) % 8 : random() % 8;
        ids.push_back(static_cast<double>(id));
        batch.ids.push_back(static_cast<double>(copies ? id : next));
        const auto answer =
            uniform(random) < knows ? static_cast<std::size_t>(batch.ids.back()) : random() % 8;
        for (std::size_t c = 0; c < 8; ++c) batch.scores.push_back(c == answer ? 2 : 0);
        id = next;
      }
    }
    const double loss = testing::CrossEntropy(batch.scores, batch.ids, 8);
    trial.Step()
        .Loss(loss)
        .Sample("sample/CrossEntropyLoss_input_0", {96, 8}, batch.scores)
        .Sample("sample/CrossEntropyLoss_input_1",
                flat ? std::vector<std::int64_t>{96} : std::vector<std::int64_t>{8, 12}, batch.ids,
                DType::kInt64)
        .Sample("sample/Net_input_0", {8, 12}, ids, DType::kInt64);
  }
  return trial;
}

TEST(WorseThanSimple, ModelsOfTokensAreComparedWithWhatFollowsEachId) {
  EXPECT_EQ(CauseOf(Tokens(0.05, false, true)), "model");
  EXPECT_EQ(CauseOf(Tokens(0.05, false, false)), "model");
  EXPECT_EQ(CauseOf(Tokens(0.6, false, true)), "");
  EXPECT_EQ(CauseOf(Tokens(0.05, true, true)), "");  // what restores its input
}

}  // namespace
}  // namespace luff::rules::worse_than_simple_test
