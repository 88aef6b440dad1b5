// What steps are called, read back from the bytes of the answer.
#include "server/spans_api.h"

#include <gtest/gtest.h>

#include "query/testing.h"
#include "server/testing.h"

namespace luff::server::spans_api_test {
namespace {

using format::Mode;
using query::testing::TempRun;
using query::testing::Writing;
using Numbers = std::vector<std::int64_t>;

PayloadReader Ask(const std::string& path, std::size_t from, std::size_t most) {
  const auto trial = query::Trial::Open(path);
  EXPECT_TRUE(trial.ok());
  Payload payload;
  AddSpans(**trial, from, most, &payload);
  return PayloadReader(payload.Bytes());
}

TEST(Spans, StepsOfAModeThatFollowEachOtherAreOne) {
  const TempRun run;
  Writing writing(run.path(), 0, 1);
  for (int evaluation = 0; evaluation < 2; ++evaluation) {
    for (int i = 0; i < 3; ++i) writing.Step(Mode::kTrain);
    for (int i = 0; i < 2; ++i) writing.Step(Mode::kEval);
  }
  writing.Close();
  const PayloadReader all = Ask(run.path(), 0, 100);
  EXPECT_EQ(all.Get<std::int64_t>("first"), (Numbers{0, 3, 5, 8}));
  EXPECT_EQ(all.Get<std::int64_t>("mode_step"), (Numbers{0, 0, 3, 2}));
  EXPECT_EQ(all.Get<std::int64_t>("count"), (Numbers{3, 2, 3, 2}));
  EXPECT_EQ(all.Get<std::uint8_t>("mode"), (std::vector<std::uint8_t>{1, 2, 1, 2}));
  EXPECT_EQ(all.Text("next"), "10");
}

TEST(Spans, LongAnswersEndAndGoOnFromWhereTheySay) {
  const TempRun run;
  Writing writing(run.path(), 0, 1);
  for (int i = 0; i < 6; ++i) writing.Step(i % 2 == 0 ? Mode::kTrain : Mode::kEval);
  writing.Close();
  const PayloadReader begin = Ask(run.path(), 0, 4);
  EXPECT_EQ(begin.Get<std::int64_t>("first"), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(begin.Text("next"), "4");
  EXPECT_EQ(Ask(run.path(), 4, 4).Get<std::int64_t>("first"), (Numbers{4, 5}));
  EXPECT_EQ(Ask(run.path(), 4, 4).Text("next"), "6");
}

TEST(Spans, AHoleInTheStepsBeginsAnother) {
  const TempRun run;
  Writing writing(run.path(), 0, 1);
  writing.Step();
  writing.global_step = 7;  // what lay between is lost
  writing.Step();
  writing.Close();
  const PayloadReader all = Ask(run.path(), 0, 100);
  EXPECT_EQ(all.Get<std::int64_t>("first"), (Numbers{0, 7}));
  EXPECT_EQ(all.Get<std::int64_t>("mode_step"), (Numbers{0, 1}));
}

}  // namespace
}  // namespace luff::server::spans_api_test
