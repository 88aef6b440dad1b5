#include "query/step_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

namespace luff::query::step_table_test {
namespace {

StepInfo Info(std::int64_t global, Mode mode, std::int64_t mode_step) {
  StepInfo info;
  info.global_step = global;
  info.mode = mode;
  info.mode_step = mode_step;
  return info;
}

TEST(StepTableTest, FindsStepsByModeAndByGlobalNumber) {
  StepTable table;
  table.Append(Info(0, Mode::kTrain, 0), 0);
  table.Append(Info(1, Mode::kEval, 0), 0);
  table.Append(Info(2, Mode::kTrain, 1), 0);
  EXPECT_EQ(table.Find(1, Mode::kTrain), 2U);
  EXPECT_EQ(table.Find(1, Mode::kGlobal), 1U);
  EXPECT_FALSE(table.Find(1, Mode::kEval));
  EXPECT_FALSE(table.Find(0, Mode::kPredict));
  EXPECT_THAT(table.Steps(Mode::kTrain), ::testing::ElementsAre(0, 1));
}

TEST(StepTableTest, AStepSeenAgainTakesThePlaceOfTheEarlierOne) {
  StepTable table;
  table.Append(Info(0, Mode::kTrain, 0), 0);
  table.Append(Info(1, Mode::kTrain, 1), 0);
  table.Append(Info(1, Mode::kEval, 0), 1);  // even of another mode
  EXPECT_EQ(table.Find(1, Mode::kGlobal), 2U);
  EXPECT_FALSE(table.Find(1, Mode::kTrain));
  EXPECT_TRUE(table.superseded(1));
  EXPECT_TRUE(table.at(1).superseded);
  EXPECT_THAT(table.Steps(Mode::kGlobal), ::testing::ElementsAre(0, 1));
}

RC_GTEST_PROP(StepTableProperty, LooksUpTheLatestOfEachNumber, ()) {
  const auto numbers = *rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, 30));
  StepTable table;
  std::map<std::int64_t, std::uint32_t> latest;
  for (const std::int64_t number : numbers)
    latest[number] = table.Append(Info(number, Mode::kTrain, number), 0);
  for (std::int64_t number = -1; number < 31; ++number) {
    const auto found = table.Find(number, Mode::kTrain);
    const auto expected = latest.find(number);
    RC_ASSERT(found.has_value() == (expected != latest.end()));
    if (found) RC_ASSERT(*found == expected->second);
  }
  RC_ASSERT(table.Steps(Mode::kGlobal).size() == latest.size());
}

}  // namespace
}  // namespace luff::query::step_table_test
