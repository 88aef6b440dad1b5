#include "server/patience.h"

#include <gtest/gtest.h>

#include "query/testing.h"

namespace luff::server::patience_test {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(Patience, ReadsCheapCardsEveryTwoSeconds) {
  Patience patience;
  EXPECT_FALSE(patience.Leave("/a", 0));
  patience.Spent(1'000'000, 1);
  EXPECT_TRUE(patience.Leave("/a", kSecond));
  EXPECT_FALSE(patience.Leave("/a", 2 * kSecond));
  EXPECT_FALSE(patience.Leave("/new", 2 * kSecond));
}

TEST(Patience, ManyRunsTakeAHundredthOfACoreAndLagAMinuteAtMost) {
  Patience patience;
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(patience.Leave("/" + std::to_string(i), 0));
  patience.Spent(200 * 1'000'000LL, 200);  // 1 ms each: 0.2 s in 20 s
  EXPECT_EQ(patience.pause_ns(), 20 * kSecond);
  EXPECT_TRUE(patience.Leave("/7", 19 * kSecond));
  EXPECT_FALSE(patience.Leave("/7", 20 * kSecond));
  patience.Spent(900 * kSecond, 1);
  EXPECT_EQ(patience.pause_ns(), 60 * kSecond);
}

TEST(Patience, ARunThatHasEndedIsReadAtOnce) {
  const query::testing::TempRun run;
  query::testing::Writing w(run.path(), 0, 1);
  w.Step();
  Patience patience;
  EXPECT_FALSE(patience.Leave(run.path(), 0));
  EXPECT_TRUE(patience.Leave(run.path(), kSecond));
  w.Close();
  EXPECT_FALSE(patience.Leave(run.path(), kSecond));
}

}  // namespace
}  // namespace luff::server::patience_test
