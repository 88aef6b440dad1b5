#include "profile/step_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace luff::profile {
namespace {

constexpr std::size_t kMany = 100'000;  // several times what is kept exactly

std::vector<double> Lengths(std::size_t count) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> lengths(-4, 0.5);  // about 18 ms
  std::vector<double> all(count);
  for (double& one : all) one = lengths(random);
  return all;
}

TEST(StepTimes, QuantilesOfFewValuesAreThoseValues) {
  TimeQuantiles times;
  EXPECT_EQ(times.At(0.5), 0);
  for (const double one : {4.0, 1.0, 3.0}) times.Add(one, 1);
  times.Add(2.0, 2);
  EXPECT_EQ(times.At(0), 1);
  EXPECT_EQ(times.At(0.5), 2);
  EXPECT_EQ(times.At(1), 4);
}

TEST(StepTimes, QuantilesOfManyAreRightToAThousandth) {
  std::vector<double> all = Lengths(kMany);
  TimeQuantiles times;
  for (const double one : all) times.Add(one, 1);
  std::ranges::sort(all);
  for (const double share : {0.0, 0.01, 0.5, 0.95, 0.999, 1.0}) {
    const double exact = all[static_cast<std::size_t>(share * static_cast<double>(kMany - 1))];
    EXPECT_NEAR(times.At(share) / exact, 1, 1e-3) << share;
  }
}

TEST(StepTimes, ARowOfFourBillionStepsTakesNoMemory) {
  TimeQuantiles times;
  times.Add(1, 10);
  times.Add(2, 0xFFFFFFFF);
  times.Add(0, 1);
  EXPECT_EQ(times.At(0), 0);
  EXPECT_EQ(times.At(0.5), 2);
}

TEST(StepTimes, MeansOfManyStepsAreThoseOfTheListToAThousandth) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> share(0, 1);
  StepTimes times;
  std::vector<StepTime> list;
  EXPECT_TRUE(times.empty());
  for (const double wall : Lengths(kMany)) {
    const double wait = wall * share(random);
    const bool timed = share(random) < 0.9;
    list.push_back({wall, wait, timed ? wall * 0.02 : -1, timed ? (wall - wait) * 0.9 : -1});
    times.Add(list.back());
  }
  EXPECT_FALSE(times.empty());
  const Means exact = MeansOf(list);
  const Means found = times.Take();
  EXPECT_EQ(found.steps, exact.steps);
  EXPECT_NEAR(found.step_s / exact.step_s, 1, 1e-3);
  EXPECT_NEAR(found.wait_s / exact.wait_s, 1, 1e-3);
  ASSERT_TRUE(found.blocked_s && exact.blocked_s);
  EXPECT_NEAR(*found.blocked_s / *exact.blocked_s, 1, 1e-3);
}

TEST(StepTimes, MeansOfFewStepsAreThoseOfTheList) {
  StepTimes times;
  std::vector<StepTime> list;
  for (const double wall : Lengths(1000)) {
    list.push_back({wall, wall / 2, -1, -1});
    times.Add(list.back());
  }
  EXPECT_EQ(times.Take().step_s, MeansOf(list).step_s);
}

}  // namespace
}  // namespace luff::profile
