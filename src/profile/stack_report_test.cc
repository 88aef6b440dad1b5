// A stall as a sentence, and who comes first.
#include "luff/profile/stack_report.h"

#include <gtest/gtest.h>

#include <string>

#include "profile/testing/phases_run.h"

namespace luff::profile::stack_report_test {
namespace {

using format::EndReason;
using luff::profile::testing::Written;

std::string Stopped(const std::string& call) {
  return R"({"after_step":7,"seconds":31.5,"looks":2,"same":2,"phase":"other","no_stack":"","threads":[{"thread":9,)"
         R"("trains":true,"state":"S","call":")" +
         call + R"(","frames":[{"function":"train","file":"/jobs/train.py","line":31,"own":true}]}]})";
}

TEST(StackReport, AStallIsOneSentence) {
  Stall stall = *ParseStallUntrusted(Stopped("futex"));
  const std::string stand = "train.py:31 train, which waits for a lock or another thread (futex)";
  EXPECT_EQ(StallText(stall, false),
            "the training stands still for at least 31.5 s after global step 7: in " + stand);
  stall.worker = 3;
  stall.over = true;
  EXPECT_EQ(StallText(stall, true),
            "rank 3 once stood still for at least 31.5 s after global step 7: in " + stand);
  stall.last = true;
  EXPECT_EQ(StallText(stall, false),
            "the training ended at least 31.5 s after global step 7, its last; it was in " + stand);
  Stall early;
  early.seconds = 40;
  EXPECT_EQ(StallText(early, false), "the training stands still for at least 40.0 s from its begin");
}

TEST(StackReport, WhoStandsStillComesFirst) {
  Written run;
  const auto train = [&](int steps) {
    for (int i = 0; i < steps; ++i) run.Step(format::Mode::kTrain, {{format::Phase::kOther, 1}});
  };
  for (const std::uint32_t worker : {0, 1}) {
    if (worker == 1) run.Worker(1);
    train(8);
    run.Document("stall", Stopped("read"));
    run.Document("lines", R"({"lines":[{"phase":"other","file":"/a.py","line":)" + std::to_string(worker) +
                              R"(,"function":"f","inside":"","count":1}]})");
    if (worker == 0) train(1);
  }
  const auto trial = run.Read(EndReason::kSignal);
  const StackReport report = StackReportOf(*trial, 1);
  EXPECT_TRUE(report.several);
  ASSERT_EQ(report.stalls.size(), 2U);
  EXPECT_EQ(report.stalls[0].worker, 1U);
  EXPECT_FALSE(report.stalls[0].over);
  EXPECT_TRUE(report.stalls[1].over);
  ASSERT_EQ(report.lines.size(), 1U);
  EXPECT_EQ(report.lines[0].at.line, 1);
}

}  // namespace
}  // namespace luff::profile::stack_report_test
