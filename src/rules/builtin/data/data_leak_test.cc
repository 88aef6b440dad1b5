#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::data_leak_test {
namespace {

using query::Mode;
using testing::FakeTrial;
using Row = std::function<std::vector<double>(int)>;  // the row of this number

// 400 training rows in batches of 20, twice; then an evaluation of 40 rows by number.
// `beside`: two passes of these rows that are compared with no target follow in the same evaluation.
FakeTrial Story(const Row& row, const std::function<int(int)>& validation, bool labelled = true,
                const std::function<int(int)>& beside = nullptr) {
  FakeTrial trial;
  std::int64_t width = static_cast<std::int64_t>(row(0).size());
  const auto sample = [&](const std::function<int(int)>& number) {
    std::vector<double> values;
    for (int i = 0; i < 20; ++i) {
      const std::vector<double> one = row(number(i));
      values.insert(values.end(), one.begin(), one.end());
    }
    trial.Sample("sample/Net_input_0", {20, width}, values);
  };
  for (int step = 0; step < 40; ++step) {
    trial.Step();
    sample([&](int i) { return 20 * (step % 20) + i; });
  }
  for (int batch = 0; batch < 2; ++batch) {
    trial.Step(Mode::kEval);
    if (labelled) trial.Loss(1);
    sample([&](int i) { return validation(20 * batch + i); });
  }
  for (int batch = 0; beside && batch < 2; ++batch) {
    trial.Step(Mode::kEval);
    sample([&](int i) { return beside(20 * batch + i); });
  }
  trial.Step();
  return trial;
}

std::vector<double> Measured(int number) {
  std::mt19937 noise(static_cast<unsigned>(number) + 1);
  std::normal_distribution<double> normal(0, 1);
  std::vector<double> row(8);
  for (double& value : row) value = normal(noise);
  return row;
}
std::vector<double> Bits(int number) {
  std::mt19937 noise(static_cast<unsigned>(number) + 1);
  std::vector<double> row(6);
  for (double& value : row) value = (noise() >> 7) % 2 == 0 ? -1 : 1;
  return row;
}

std::vector<Finding> Findings(const FakeTrial& trial) {
  return testing::FindingsOf(trial, "DataLeak", ParameterSet::kLuff);
}

// A teacher sees each batch before or after the student. The rows of the batch are sampled as the model's
// input.
FakeTrial Teacher(bool before, bool other_batch = false) {
  FakeTrial trial;
  const auto sample = [&](int step) {
    std::vector<double> values;
    for (int i = 0; i < 20; ++i) {
      const std::vector<double> one = Measured(20 * (step % 20) + i);
      values.insert(values.end(), one.begin(), one.end());
    }
    trial.Sample("sample/Net_input_0", {20, 8}, values);
  };
  for (int step = 0; step < 60; ++step) {
    const auto batch = static_cast<std::uint64_t>(step % 20 + 1);
    const auto look = [&] {
      trial.Step(Mode::kEval).Event(format::EventKind::kBatch, 1, other_batch ? 77 : batch).Loss(1);
      sample(step);
    };
    if (before && step >= 20) look();
    trial.Step().Event(format::EventKind::kBatch, 2, batch);
    sample(step);
    if (!before && step >= 20) look();
  }
  trial.Step();
  return trial;
}

TEST(DataLeak, ATeacherThatSeesTheBatchThatIsTrainedOn_IsSilent) {
  EXPECT_TRUE(Findings(Teacher(true)).empty());
  EXPECT_TRUE(Findings(Teacher(false)).empty());
  EXPECT_EQ(Findings(Teacher(true, true)).size(), 1U);
}

// A model is trained, and then teaches another one: it answers the rows of the training, beside an
// evaluation.
FakeTrial TrainedTeacher(int student_steps) {
  FakeTrial trial;
  const auto sample = [&](const char* model, int from) {
    std::vector<double> values;
    for (int i = 0; i < 20; ++i) {
      const std::vector<double> one = Measured(from + i);
      values.insert(values.end(), one.begin(), one.end());
    }
    trial.Sample(std::string("sample/") + model + "_input_0", {20, 8}, values);
  };
  for (int step = 0; step < 40; ++step) {
    trial.Step();
    sample("Teacher", 20 * (step % 20));
  }
  for (int step = 0; step < student_steps; ++step) {
    trial.Step();
    sample("Net", 20 * (step % 20));
  }
  for (int batch = 0; batch < 4; ++batch) {
    trial.Step(Mode::kEval).Loss(1);
    sample("Teacher", 20 * batch);
  }
  trial.Step(Mode::kEval).Loss(1);
  sample("Net", 5000);
  trial.Step();
  return trial;
}

TEST(DataLeak, ATeacherWhoseTrainingIsOver_IsSilent) {
  EXPECT_TRUE(Findings(TrainedTeacher(40)).empty());
  EXPECT_EQ(Findings(TrainedTeacher(0)).size(), 1U);
}

// Rows that are kept apart train what a second optimizer holds: `few` weights of 100.
FakeTrial Bilevel(int few) {
  FakeTrial trial;
  trial.SetDocument("model", R"({"models": [{"name": "Net", "type": "Net", "parameters": [
    {"path": "w", "name": "Net_w", "shape": [)" +
                                 std::to_string(100 - few) +
                                 R"(], "requires_grad": true, "optimizer": "Adam"},
    {"path": "a", "name": "Net_a", "shape": [)" +
                                 std::to_string(few) +
                                 R"(], "requires_grad": true, "optimizer": "Adam_1"}]}],
    "optimizers": [{"name": "Adam", "type": "Adam", "number": 0, "parameters": 1, "foreign": 0},
                   {"name": "Adam_1", "type": "Adam", "number": 1, "parameters": 1, "foreign": 0}]})");
  const auto sample = [&](int first) {
    std::vector<double> values;
    for (int i = 0; i < 20; ++i) {
      const std::vector<double> one = Measured(first + i);
      values.insert(values.end(), one.begin(), one.end());
    }
    trial.Sample("sample/Net_input_0", {20, 8}, values);
  };
  for (int step = 0; step < 40; ++step) {
    trial.Step().Event(format::EventKind::kOptimizerStep, step % 2 == 0 ? 0 : 1);
    sample(step % 2 * 1000 + 20 * (step / 2 % 10));
  }
  for (int batch = 0; batch < 4; ++batch) {
    trial.Step(Mode::kEval).Loss(1);
    sample(1000 + 20 * batch);
  }
  trial.Step();
  return trial;
}

TEST(DataLeak, RowsThatOnlyTheWeightsOfAnArchitectureHaveSeen_AreSilent) {
  EXPECT_TRUE(Findings(Bilevel(6)).empty());
  EXPECT_EQ(Findings(Bilevel(50)).size(), 1U);
}

TEST(DataLeak, OverlappingSplits_AreNamed) {
  const auto findings = Findings(Story(Measured, [](int i) { return i % 4 == 0 ? i : 1000 + i; }));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 39);
  EXPECT_EQ(findings[0].evidence.at(0).name, "share");
  EXPECT_DOUBLE_EQ(findings[0].evidence.at(0).value, 0.25);
  EXPECT_EQ(Findings(Story(Measured, [](int i) { return i; })).size(), 1U);
}

TEST(DataLeak, FeaturesOfTrainingRows_ThatNoTargetIsComparedWith_AreSilent) {
  EXPECT_TRUE(Findings(Story(Measured, [](int i) { return i; }, false)).empty());
  // A part of the rows: splits that overlap.
  EXPECT_EQ(Findings(Story(Measured, [](int i) { return i % 4 == 0 ? i : 1000 + i; }, false)).size(), 1U);
}

TEST(DataLeak, PassesWithoutTargets_BesideTheMeasuredOnes_AreSilent) {
  const auto fresh = [](int i) { return 1000 + i; };
  const auto some = [](int i) { return i % 3 == 0 ? i : 2000 + i; };
  EXPECT_TRUE(Findings(Story(Measured, fresh, true, some)).empty());  // a pool to choose from
  EXPECT_TRUE(Findings(Story(Measured, fresh, true, [](int i) { return i; })).empty());  // features of all
  EXPECT_TRUE(
      Findings(Story(Measured, fresh, true, [](int i) { return i / 8; })).empty());  // an index to search
  EXPECT_EQ(Findings(Story(Measured, some, true, fresh)).size(), 1U);
  EXPECT_EQ(Findings(Story(Measured, fresh, false, some)).size(), 1U);  // no pass shows its targets
}

TEST(DataLeak, NewRows_AndFewDuplicates_AreSilent) {
  EXPECT_TRUE(Findings(Story(Measured, [](int i) { return 1000 + i; })).empty());
  EXPECT_TRUE(Findings(Story(Measured, [](int i) { return i < 3 ? i : 1000 + i; })).empty());
}

TEST(DataLeak, RowsThatRepeatByChance_AreSilent) {
  EXPECT_TRUE(Findings(Story(Bits, [](int i) { return 1000 + i; })).empty());
}

// 1,200 training rows in batches of 60, of which 20 are recorded, once; then, in an order of their own,
// passes over `looked` (numbers of rows), 20 of each batch of 60, and passes over 300 rows of `others`.
// `size`: rows of the batches of `others`, of which there are fewer if it is another size than the
// training's.
FakeTrial Shuffled(const std::function<int(int)>& looked, const std::function<int(int)>& others,
                   std::int64_t size = 60) {
  FakeTrial trial;
  const auto sample = [&](const std::function<int(int)>& number, std::int64_t rows = 60) {
    std::vector<double> values;
    for (int i = 0; i < 20; ++i) {
      const std::vector<double> one = Measured(number(i));
      values.insert(values.end(), one.begin(), one.end());
    }
    trial.Sample("sample/Net_input_0", {20, 8}, values, DType::kFloat32, {rows, 8});
  };
  for (int step = 0; step < 20; ++step) {
    trial.Step();
    sample([&](int i) { return 60 * step + i; });
  }
  std::vector<int> order(1200);
  for (int i = 0; i < 1200; ++i) order[static_cast<std::size_t>(i)] = i;
  std::mt19937 random(5);
  std::shuffle(order.begin(), order.end(), random);
  for (int batch = 0; batch < 20; ++batch) {
    trial.Step(Mode::kEval).Loss(1);
    sample([&](int i) { return looked(order[static_cast<std::size_t>(60 * batch + i)]); });
  }
  for (int batch = 0; batch < (size == 60 ? 15 : 1); ++batch) {
    trial.Step(Mode::kEval).Loss(1);
    sample([&](int i) { return others(order[static_cast<std::size_t>(20 * batch + i)]); }, size);
  }
  trial.Step();
  return trial;
}

TEST(DataLeak, TrainingSetShuffledAnew_EvaluatedBeside_IsSilent) {
  const auto as_it_is = [](int i) { return i; };
  const auto fresh = [](int i) { return 5000 + i; };
  EXPECT_TRUE(Findings(Shuffled(as_it_is, fresh)).empty());
  EXPECT_TRUE(Findings(Shuffled(as_it_is, fresh, 1000)).empty());  // the other set in one batch
  EXPECT_EQ(Findings(Shuffled(as_it_is, as_it_is, 1000)).size(), 1U);
  EXPECT_EQ(Findings(Shuffled(as_it_is, as_it_is)).size(), 1U);  // all evaluations are of the training set
  // Splits that overlap by three fifths, beside a set that does not.
  EXPECT_EQ(Findings(Shuffled([](int i) { return i % 5 < 3 ? i : 9000 + i; }, fresh)).size(), 1U);
}
TEST(DataLeak, TrainingSetEvaluatedBeside_IsSilent) {
  EXPECT_TRUE(Findings(Story(Measured, [](int i) { return i < 20 ? i : 1000 + i; })).empty());
}

// Sixteen batches of 32 rows of four columns; column 2 is made from the target and a new number.
std::vector<Finding> TargetAmong(const std::function<double(double target, double other)>& column,
                                 std::int64_t columns = 4, int models = 1, bool classes = false) {
  FakeTrial trial;
  std::mt19937 noise(5);
  std::normal_distribution<double> normal(0, 1);
  for (int step = 0; step < 16; ++step) {
    std::vector<double> values;
    std::vector<double> targets;
    for (int row = 0; row < 32; ++row) {
      targets.push_back(classes ? std::floor(3 * std::abs(std::sin(normal(noise)))) : normal(noise));
      for (std::int64_t j = 0; j < columns; ++j)
        values.push_back(j == columns - 2 ? column(targets.back(), normal(noise)) : normal(noise));
    }
    trial.Step().Loss(1, "MSELoss_output_0");
    for (int model = 0; model < models; ++model)
      trial.Sample("sample/Net" + std::to_string(model) + "_input_0", {32, columns}, values);
    trial.Sample("sample/MSELoss_input_0", {32, 1}, std::vector<double>(32, 0));
    trial.Sample("sample/MSELoss_input_1", {32, 1}, targets, classes ? DType::kInt64 : DType::kFloat32);
  }
  return Findings(trial);
}

TEST(DataLeak, TargetThatIsAColumnOfTheInput_IsToldUpToAScale) {
  for (const bool classes : {false, true}) {
    const auto findings = TargetAmong([](double y, double) { return 3 * y - 20; }, 4, 1, classes);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, "target");
    EXPECT_EQ(findings[0].step, 7);
    EXPECT_EQ(findings[0].what, "column 2 of sample/Net0_input_0 is the target of MSELoss");
  }
}

TEST(DataLeak, ColumnsThatOnlyTellOfTheTarget_AreSilent) {
  EXPECT_TRUE(TargetAmong([](double y, double x) { return y + 0.01 * x; }).empty());  // last week's value
  EXPECT_TRUE(TargetAmong([](double y, double) { return y > 0 ? y : 0; }).empty());
  EXPECT_TRUE(
      TargetAmong([](double y, double x) { return x > 0.3 ? 0 : y; }).empty());  // masked now and then
  EXPECT_TRUE(TargetAmong([](double y, double) { return 2 * y; }, 2).empty());   // a toy of two columns
  EXPECT_TRUE(
      TargetAmong([](double y, double) { return 2 * y; }, 4, 2).empty());  // conditions of a generator
}

// Windows of 12 steps of two series, and the next `horizon` values of the first from `begin` steps after the
// window's end on.
std::vector<Finding> Windows(std::int64_t horizon, std::int64_t begin, std::int64_t steps = 12) {
  FakeTrial trial;
  std::mt19937 noise(6);
  std::normal_distribution<double> normal(0, 1);
  std::vector<double> first(1200);
  std::vector<double> second(1200);
  for (std::size_t i = 1; i < first.size(); ++i) {
    first[i] = 0.9 * first[i - 1] + normal(noise);
    second[i] = normal(noise);
  }
  for (int step = 0; step < 16; ++step) {
    std::vector<double> values;
    std::vector<double> targets;
    for (int row = 0; row < 32; ++row) {
      const std::size_t at = 20 + noise() % 1100;
      for (std::int64_t i = 0; i < steps; ++i) {
        values.push_back(first[at + static_cast<std::size_t>(i)]);
        values.push_back(second[at + static_cast<std::size_t>(i)]);
      }
      for (std::int64_t h = 0; h < horizon; ++h)
        targets.push_back(first[at + static_cast<std::size_t>(steps + begin + h)]);
    }
    trial.Step().Loss(1, "MSELoss_output_0").Sample("sample/Net_input_0", {32, steps, 2}, values);
    trial.Sample("sample/MSELoss_input_0", {32, horizon},
                 std::vector<double>(values.begin(), values.begin() + 32 * horizon));
    trial.Sample("sample/MSELoss_input_1", {32, horizon}, targets);
  }
  return Findings(trial);
}

TEST(DataLeak, WindowsThatReachIntoTheirTargets_AreTold) {
  const auto findings = Windows(4, -3);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "target");
  EXPECT_EQ(findings[0].what, "3 of the 4 targets of each row are values of its input sample/Net_input_0");
  EXPECT_NE(findings[0].remedy.find("windows"), std::string::npos);
  EXPECT_EQ(Windows(1, -1).size(), 1U);
  EXPECT_EQ(Windows(4, -4).size(), 1U);
}

TEST(DataLeak, WindowsThatEndBeforeTheirTargets_AreSilent) {
  EXPECT_TRUE(Windows(4, 0).empty());
  EXPECT_TRUE(Windows(1, 0).empty());
  EXPECT_TRUE(Windows(4, -1).empty());    // one of four: it may be a state that hardly changes
  EXPECT_TRUE(Windows(11, -11).empty());  // each next step, as a causal model predicts it
  EXPECT_TRUE(Windows(12, -12).empty());  // an autoencoder of one series
}

// Four folds of 80 rows each: each is evaluated after a training on the three others.
FakeTrial Folds(const char* sets_back, bool other_optimizer, std::uint32_t first_optimizer = 0) {
  FakeTrial trial;
  const auto sample = [&](int from) {
    std::vector<double> values;
    for (int i = 0; i < 20; ++i) {
      const std::vector<double> one = Measured(from + i);
      values.insert(values.end(), one.begin(), one.end());
    }
    trial.Sample("sample/Net_input_0", {20, 8}, values);
  };
  for (int fold = 0; fold < 4; ++fold) {
    for (int step = 0; step < 24; ++step) {
      trial.Step().Event(format::EventKind::kOptimizerStep,
                         first_optimizer + static_cast<std::uint32_t>(other_optimizer ? fold : 0));
      if (sets_back != nullptr && step == 0) trial.EventJson(sets_back);
      sample(80 * ((fold + 1 + step % 12 / 4) % 4) + 20 * (step % 4));
    }
    for (int batch = 0; batch < 4; ++batch) {
      trial.Step(Mode::kEval).Loss(1);
      sample(80 * fold + 20 * batch);
    }
  }
  trial.Step();
  return trial;
}

TEST(DataLeak, FoldsBeforeWhichTheWeightsAreSetBack_AreSilent) {
  const auto findings = [](const FakeTrial& trial) {
    return testing::FindingsOf(trial, "DataLeak", ParameterSet::kLuff).size();
  };
  constexpr const char* kLoad = R"({"kind": "load_state_dict", "model": "Net", "matched": 9})";
  EXPECT_EQ(findings(Folds(kLoad, true)), 0U);
  EXPECT_EQ(findings(Folds(kLoad, true, 1000)), 0U);
  EXPECT_EQ(findings(Folds(R"({"kind": "weights_written", "weights": 4})", true)), 0U);
  EXPECT_EQ(findings(Folds(nullptr, true)), 1U);
  EXPECT_EQ(findings(Folds(kLoad, false)), 1U);  // the best weights, say
  const auto back = [](const char* to) {
    return std::string(R"({"kind": "weights_set_back", "optimizer": 0, "updates": 24, "to": ")") + to + "\"}";
  };
  EXPECT_EQ(findings(Folds(back("drawn").c_str(), false)), 0U);
  EXPECT_EQ(findings(Folds(back("first").c_str(), false)), 0U);
  EXPECT_EQ(findings(Folds(back("").c_str(), false)), 1U);
}

}  // namespace
}  // namespace luff::rules::data_leak_test
