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
FakeTrial Story(const Row& row, const std::function<int(int)>& validation, int batches = 2) {
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
  for (int batch = 0; batch < batches; ++batch) {
    trial.Step(Mode::kEval);
    sample([&](int i) { return validation(20 * batch + i); });
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
      trial.Step(Mode::kEval).Event(format::EventKind::kBatch, 1, other_batch ? 77 : batch);
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

TEST(DataLeak, OverlappingSplits_AreNamed) {
  const auto findings = Findings(Story(Measured, [](int i) { return i % 4 == 0 ? i : 1000 + i; }));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 39);
  EXPECT_EQ(findings[0].evidence.at(0).name, "share");
  EXPECT_DOUBLE_EQ(findings[0].evidence.at(0).value, 0.25);
  EXPECT_EQ(Findings(Story(Measured, [](int i) { return i; })).size(), 1U);
}

TEST(DataLeak, NewRows_AndFewDuplicates_AreSilent) {
  EXPECT_TRUE(Findings(Story(Measured, [](int i) { return 1000 + i; })).empty());
  EXPECT_TRUE(Findings(Story(Measured, [](int i) { return i < 3 ? i : 1000 + i; })).empty());
}

TEST(DataLeak, RowsThatRepeatByChance_AreSilent) {
  EXPECT_TRUE(Findings(Story(Bits, [](int i) { return 1000 + i; })).empty());
}

TEST(DataLeak, TrainingSetEvaluatedBeside_IsSilent) {
  EXPECT_TRUE(Findings(Story(Measured, [](int i) { return i < 20 ? i : 1000 + i; })).empty());
}

}  // namespace
}  // namespace luff::rules::data_leak_test
