#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

namespace luff::rules::overfit_test {
namespace {

using query::Mode;
using testing::FakeTrial;

// 20 TRAIN steps, then an evaluation of two passes, of which only the second has a loss.
template <typename Training, typename Validation>
FakeTrial Story(int evaluations, Training training, Validation validation) {
  FakeTrial trial;
  for (int e = 0; e < evaluations; ++e) {
    for (int step = 0; step < 20; ++step) trial.Step().Loss(training(20 * e + step));
    trial.Step(Mode::kEval).Step(Mode::kEval).Loss(validation(e));
  }
  return trial;
}

std::vector<Finding> Findings(const FakeTrial& trial) {
  return testing::FindingsOf(trial, "Overfit", ParameterSet::kLuff);
}

TEST(Overfit, RisingValidationOverFallingTraining_IsToldAtTheThirdBadEvaluation) {
  const auto findings = Findings(
      Story(10, [](int step) { return 1.6 * std::exp(-step / 20.0); }, [](int e) { return 1.5 + 0.4 * e; }));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "rising");
  EXPECT_EQ(findings[0].mode, "TRAIN");
  EXPECT_EQ(findings[0].since_step, 19);  // the best evaluation came after step 19
  EXPECT_EQ(findings[0].step, 99);        // 1.5, 1.9, 2.3, 2.7, 3.1: the last three are 35 % above 1.5
  EXPECT_GE(findings[0].series.size(), 5U);
}

// Each TRAIN step has `batch` of `rows` different rows.
std::size_t OfRows(int rows, int batch, std::int64_t whole = 0) {
  FakeTrial trial;
  int row = 0;
  for (int e = 0; e < 10; ++e) {
    for (int step = 0; step < 20; ++step) {
      std::vector<double> values;
      for (int i = 0; i < batch; ++i, row = (row + 1) % rows) {
        values.push_back(0.5 + row);
        values.push_back(1.5 - row);
      }
      trial.Step().Loss(1.6 * std::exp(-(20 * e + step) / 20.0));
      trial.Sample("sample/Net_input_0", {batch, 2}, values, DType::kFloat32, {whole > 0 ? whole : batch, 2});
    }
    trial.Step(Mode::kEval).Loss(1.5 + 0.4 * e);
  }
  return Findings(trial).size();
}

TEST(Overfit, AHandfulOfRows_IsATrialOfTheModel_AndSilent) {
  EXPECT_EQ(OfRows(5, 5), 0U);
  EXPECT_EQ(OfRows(16, 4), 0U);
  EXPECT_EQ(OfRows(40, 8), 1U);
  EXPECT_EQ(OfRows(90, 1), 1U);
  EXPECT_EQ(OfRows(5, 5, 64), 1U);  // of 64 rows the first five are kept
}

// A training that goes over `rows` rows again and again, and an evaluation of `evaluated` others.
struct Few {
  int rows = 24, evaluated = 200, evaluations = 2, steps = 100;
  double training = 0.01, validation = 1.2;  // in the end; the training begins with 2
  int whole = 0;                             // rows of a batch, of which the first eight are kept
  bool same = false;                         // evaluations are of rows of the training
  int more = 0;                              // rows from the second evaluation on
  int batch = 8;
};
std::vector<Finding> OfFew(const Few& few) {
  FakeTrial trial;
  int row = 0;
  for (int e = 0; e < few.evaluations; ++e) {
    for (int step = 0; step < few.steps; ++step) {
      std::vector<double> values;
      const int rows = few.rows + (e > 0 ? few.more : 0);
      for (int i = 0; i < few.batch; ++i, row = (row + 1) % rows) {
        values.push_back(row);
        values.push_back(0.5);
      }
      trial.Step().Loss(e == 0 && step < 16 ? 2 : few.training);
      trial.Sample("sample/Net_input_0", {few.batch, 2}, values, DType::kFloat32,
                   {few.whole > 0 ? few.whole : few.batch, 2});
    }
    std::vector<double> values;
    for (int i = 0; i < few.evaluated; ++i) {
      values.push_back(few.same ? i % few.rows : -1 - i);
      values.push_back(0.5);
    }
    trial.Step(Mode::kEval).Sample("sample/Net_input_0", {few.evaluated, 2}, values).Loss(few.validation);
  }
  return Findings(trial);
}

TEST(Overfit, FewRowsThatAreLearntByHeart_AreToldAtTheEnd) {
  const auto findings = OfFew({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "few_rows");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_NE(findings[0].what.find("only 24 rows are trained on"), std::string::npos) << findings[0].what;
  EXPECT_NE(findings[0].what.find("200 and more are evaluated"), std::string::npos) << findings[0].what;
  EXPECT_NE(findings[0].remedy.find("subset"), std::string::npos);
  EXPECT_EQ(OfFew({.rows = 104, .evaluated = 600, .steps = 150}).size(), 1U);
}

TEST(Overfit, FewRowsOfWhichOthersAreTold_AndTrials_AreSilent) {
  EXPECT_TRUE(OfFew({.validation = 0.4}).empty());  // what few shots teach holds for others
  EXPECT_TRUE(OfFew({.training = 0.4}).empty());
  EXPECT_TRUE(OfFew({.rows = 16}).empty());
  EXPECT_TRUE(OfFew({.rows = 400, .evaluated = 2000}).empty());
  EXPECT_TRUE(OfFew({.evaluated = 60}).empty());
  EXPECT_TRUE(OfFew({.same = true}).empty());
  EXPECT_TRUE(OfFew({.whole = 64}).empty());               // not all rows are known
  EXPECT_TRUE(OfFew({.steps = 200, .more = 24}).empty());  // labelled later
  EXPECT_TRUE(OfFew({.steps = 20}).empty());               // not often enough
  EXPECT_TRUE(OfFew({.batch = 24}).empty());               // one batch that is learnt on purpose
}

// Evaluations ask the student, and now and then a teacher that nothing trains: its loss is lower.
TEST(Overfit, ATeacherThatEvaluationsAskAsWell_IsNotTheCurve) {
  const auto told = [](bool teacher, double late) {
    FakeTrial trial;
    trial.SetDocument("model", R"({"models": [
      {"name": "Net", "type": "Net", "modules": [], "parameters": [{"path": "w", "name": "Net_w", "shape": [4],
       "requires_grad": true, "optimizer": "SGD"}]},
      {"name": "Teacher", "type": "Net", "modules": [], "parameters": [{"path": "w", "name": "Teacher_w",
       "shape": [4], "requires_grad": false}]}], "optimizers": [{"number": 0, "name": "SGD"}]})");
    for (int e = 0; e < 12; ++e) {
      for (int step = 0; step < 20; ++step)
        trial.Step()
            .Loss(2 * std::exp(-(20 * e + step) / 40.0))
            .Sample("sample/Net_input_0", {2, 1}, {20.0 * e + step, -1.0 * step});
      if (teacher && e < 2)
        for (int batch = 0; batch < 6; ++batch)
          trial.Step(Mode::kEval).Loss(0.1).Sample("sample/Teacher_input_0", {2, 1}, {-1000.0 - batch, 0.5});
      trial.Step(Mode::kEval)
          .Loss(e < 6 ? 1.5 - 0.1 * e : late)
          .Sample("sample/Net_input_0", {2, 1}, {-1000, 0.5});
    }
    return Findings(trial).size();
  };
  EXPECT_EQ(told(true, 1), 0U);
  EXPECT_EQ(told(false, 1), 0U);
  EXPECT_EQ(told(true, 2), 1U);
}

TEST(Overfit, HealthyCurves_AreSilent) {
  const auto falling = [](int step) { return 1.6 * std::exp(-step / 50.0); };
  // ends 20 % above its best
  EXPECT_TRUE(Findings(Story(20, falling, [](int e) { return e < 5 ? 1.5 - 0.2 * e : 0.84; })).empty());
  // a small loss that doubles
  EXPECT_TRUE(Findings(Story(20, falling, [](int e) { return e < 5 ? 0.05 : 0.1; })).empty());
  // noise: one bad evaluation in three
  EXPECT_TRUE(Findings(Story(21, falling, [](int e) { return e % 3 == 2 ? 2.0 : 1.0; })).empty());
  // both diverge
  EXPECT_TRUE(
      Findings(Story(20, [](int step) { return 1 + step * 0.05; }, [](int e) { return 1.0 + e; })).empty());
}

TEST(Overfit, LossesBelowZeroAndAdversaries_AreSilent) {
  EXPECT_TRUE(
      Findings(Story(20, [](int step) { return std::cos(step); }, [](int e) { return 1.0 + e; })).empty());
  FakeTrial adversaries;
  for (int e = 0; e < 20; ++e) {
    for (int step = 0; step < 20; ++step)
      adversaries.Step()
          .Loss(1.6 * std::exp(-(20 * e + step) / 20.0))
          .Event(format::EventKind::kOptimizerStep, static_cast<std::uint32_t>(step % 2));
    adversaries.Step(Mode::kEval).Loss(1.0 + e);
  }
  EXPECT_TRUE(Findings(adversaries).empty());
}

TEST(Overfit, ScaledLosses_GiveTheSameVerdict) {
  for (const double scale : {1e-6, 1.0, 1e6}) {
    const auto findings = Findings(Story(
        10, [&](int step) { return scale * 1.6 * std::exp(-step / 20.0); },
        [&](int e) { return scale * (1.5 + 0.4 * e); }));
    ASSERT_EQ(findings.size(), 1U) << scale;
    EXPECT_EQ(findings[0].step, 99) << scale;
  }
}

TEST(OriginalOverfit, RatioOfMeans_KnownAnswers) {
  // Training has a mean of 1: a validation mean just below 1.1 does not fire, one just above does.
  const auto story = [](double validation) {
    FakeTrial trial;
    trial.Step().Loss(0.5).Step().Loss(1.5).Step(Mode::kEval).Loss(validation);
    return trial;
  };
  EXPECT_TRUE(testing::FindingsOf(story(1.0999), "Overfit", ParameterSet::kOriginal).empty());
  EXPECT_EQ(testing::FindingsOf(story(1.1001), "Overfit", ParameterSet::kOriginal).size(), 1U);
  EXPECT_TRUE(testing::FindingsOf(story(2), "Overfit:patience=2", ParameterSet::kOriginal).empty());
  EXPECT_TRUE(testing::FindingsOf(story(2), "Overfit:ratio_threshold=1.5", ParameterSet::kOriginal).empty());
  EXPECT_TRUE(testing::FindingsOf(story(2), "Overfit:start_step=1", ParameterSet::kOriginal).empty());
}

TEST(OriginalOverfit, ZeroTrainingLossAndNoEvaluation_AreGuarded) {
  FakeTrial zero;
  zero.Step().Loss(0).Step(Mode::kEval).Loss(1);
  EXPECT_TRUE(testing::FindingsOf(zero, "Overfit", ParameterSet::kOriginal).empty());
  FakeTrial none;
  none.Step(Mode::kEval).Loss(1).Step().Loss(1);
  EXPECT_TRUE(testing::FindingsOf(none, "Overfit", ParameterSet::kOriginal).empty());
}

// Evaluations show scores and labels, and no loss: scores of the right class, and of the others of `wrong`
// rows.
FakeTrial Answers(int evaluations, const std::function<double(int)>& surety,
                  const std::function<int(int)>& wrong, bool parts = false) {
  FakeTrial trial;
  const auto tell = [&](query::Mode mode, double right, double other, int bad) {
    testing::Batch batch;
    for (int i = 0; i < 100; ++i) {
      batch.ids.push_back(i % 4);
      for (int c = 0; c < 4; ++c) {
        const int best = i < bad ? (i + 1) % 4 : i % 4;
        batch.scores.push_back(c == best ? (i < bad ? other : right) : 0.01 * c);
      }
    }
    if (mode == Mode::kTrain) {
      testing::TellClasses(&trial, batch, 4);
      return;
    }
    trial.Step(mode)
        .Sample("sample/CrossEntropyLoss_input_0", {100, 4}, batch.scores)
        .Sample("sample/CrossEntropyLoss_input_1", {100}, batch.ids, DType::kInt64);
    if (parts)
      trial.Scalar("CrossEntropyLoss_part_0", format::Role::kOther,
                   testing::CrossEntropy(batch.scores, batch.ids, 4));
  };
  for (int e = 0; e < evaluations; ++e) {
    for (int step = 0; step < 20; ++step) tell(Mode::kTrain, 0.5 + 0.6 * e, 0.5, 0);
    tell(Mode::kEval, surety(e), surety(e), wrong(e));
  }
  return trial;
}

TEST(Overfit, EvaluationsWithoutALoss_HaveThatOfTheirAnswers) {
  const auto surer = [](int e) { return 1.0 + e; };
  const auto findings = Findings(Answers(10, surer, [](int e) { return 10 + 4 * e; }));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].tensor, "CrossEntropyLoss");
  // What is counted gets no worse: only its loss rises.
  EXPECT_TRUE(Findings(Answers(10, surer, [](int) { return 20; })).empty());
  // A loss that the evaluation reduces itself is what is looked at.
  EXPECT_EQ(Findings(Answers(10, surer, [](int) { return 20; }, true)).size(), 1U);
  EXPECT_TRUE(Findings(Answers(10, surer, [](int) { return 0; })).empty());
}

}  // namespace
}  // namespace luff::rules::overfit_test
