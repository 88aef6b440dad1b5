#include "luff/query/ranks.h"

#include <vector>

#include <gtest/gtest.h>

namespace luff::query::ranks_test {
namespace {

WorkerInfo Worker(std::int64_t first, std::int64_t last) {
  WorkerInfo info;
  info.first_global_step = first;
  info.last_global_step = last;
  return info;
}

TEST(Ranks, PartsOfAResumedJobAreOne) {
  EXPECT_EQ(RanksOf(std::vector{Worker(0, 99), Worker(100, 180), Worker(181, 181)}, 1), 1U);
}
TEST(Ranks, WorkersWithStepsInCommonAreSeveral) {
  EXPECT_EQ(RanksOf(std::vector{Worker(0, 99), Worker(99, 180)}, 1), 2U);
  EXPECT_EQ(RanksOf(std::vector{Worker(0, 9), Worker(0, 9), Worker(10, 20)}, 1), 2U);
}
TEST(Ranks, ThoseOfTheWorldCountBeforeTheirFirstStep) {
  EXPECT_EQ(RanksOf(std::vector{Worker(0, 5), Worker(-1, -1)}, 2), 2U);
  EXPECT_EQ(RanksOf(std::vector{Worker(0, 5)}, 8), 1U);                  // the others never came
  EXPECT_EQ(RanksOf(std::vector{Worker(0, 5), Worker(-1, -1)}, 1), 1U);  // a part that has just begun
  EXPECT_EQ(RanksOf(std::vector<WorkerInfo>(), 4), 0U);
}
TEST(Ranks, WhereTheFirstStepIsNotKnownItIsTheBegin) {
  EXPECT_EQ(RanksOf(std::vector{Worker(-1, 9), Worker(-1, 9)}, 1), 2U);
}

}  // namespace
}  // namespace luff::query::ranks_test
