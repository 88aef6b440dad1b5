// What documents about stacks say in words.
#include "luff/profile/stacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "profile/testing/phases_run.h"

namespace luff::profile {
namespace {

using format::EndReason;
using ::testing::HasSubstr;

std::string Document(const std::string& thread, const std::string& more = "") {
  return R"({"after_step":7,"seconds":31.5,"looks":2,"same":2,"phase":"other","no_stack":"","threads":[)" +
         thread + "]" + more + "}";
}

std::string Thread(const std::string& kernel, const std::string& frames) {
  return R"({"thread":9,"trains":true,)" + kernel + R"(,"frames":[)" + frames + "]}";
}

const std::string kOwn = R"({"function":"train","file":"/jobs/train.py","line":31,"own":true})";

TEST(Stacks, ALockASleepAndAPipeAreTold) {
  const auto stand = [](const std::string& kernel, const std::string& frames) {
    return StandOf(*ParseStallUntrusted(Document(Thread(kernel, frames))));
  };
  EXPECT_EQ(stand(R"("state":"S","call":"futex","on":"")", kOwn),
            "train.py:31 train, which waits for a lock or another thread (futex)");
  EXPECT_EQ(stand(R"("state":"S","call":"read","on":"/tmp/pipe")", kOwn),
            "train.py:31 train, which waits in read() of /tmp/pipe");
  EXPECT_EQ(stand(R"("state":"D","call":"read","on":"/data/x.tar")", kOwn),
            "train.py:31 train, which waits for a disk or a network file system: /data/x.tar");
  EXPECT_EQ(stand(R"("state":"S","call":"clock_nanosleep","on":"")",
                  R"({"function":"wait","file":"/usr/lib/python3.11/x.py","line":2},)" + kOwn),
            "train.py:31 train, which sleeps (clock_nanosleep), in x.py:2 wait");
  EXPECT_EQ(stand(R"("state":"S","call":"","on":"","gil":true)", kOwn),
            "train.py:31 train, which is in C code that holds Python's lock (GIL), so no other Python thread "
            "runs");
}

TEST(Stacks, ACollectiveIsNamed) {
  const auto stall = ParseStallUntrusted(Document(Thread(
      R"("state":"S","call":"futex")",
      R"({"function":"all_reduce","file":"/v/site-packages/torch/distributed/distributed_c10d.py","line":9},)" +
          kOwn)));
  ASSERT_TRUE(stall);
  EXPECT_TRUE(WaitsForRanks(*stall));
  EXPECT_EQ(StandOf(*stall), "train.py:31 train, which waits in all_reduce of torch.distributed");
}

TEST(Stacks, AProcessOfALoaderIsNamedWithItsLine) {
  const std::string frames =
      R"({"function":"_try_get_data","file":"/v/site-packages/torch/utils/data/dataloader.py","line":5},)" +
      kOwn;
  const std::string process =
      R"(,"processes":[{"process":44,"thread":44,"state":"S","call":"read","on":"/data/x","frames":[)"
      R"({"function":"__getitem__","file":"/jobs/data.py","line":12,"own":true},)"
      R"({"function":"_worker_loop","file":"/v/site-packages/torch/utils/data/_utils/worker.py","line":3}]}])";
  const auto stall = ParseStallUntrusted(Document(Thread(R"("state":"S","call":"poll")", frames), process));
  ASSERT_TRUE(stall);
  EXPECT_THAT(WaitOf(*stall),
              HasSubstr("its process 44 is in data.py:12 __getitem__ and waits in read() of /data/x"));
}

TEST(Stacks, WhatATrainingDoesAfterItsLastStepIsNoStand) {
  const auto stall_of = [](int steps_later, EndReason reason) {
    testing::Written run;
    for (int i = 0; i <= 7; ++i) run.Step(format::Mode::kTrain, {{format::Phase::kOther, 1}});
    run.Document("stall", Document(Thread(R"("state":"R","call":"")", kOwn)));
    for (int i = 0; i < steps_later; ++i) run.Step(format::Mode::kTrain, {{format::Phase::kOther, 1}});
    const auto trial = run.Read(reason);
    const auto stalls = StallsOf(*trial);
    EXPECT_EQ(stalls.size(), 1U);
    return std::pair(stalls.at(0).over, stalls.at(0).last);
  };
  EXPECT_EQ(stall_of(0, EndReason::kSignal), std::pair(false, false));
  EXPECT_EQ(stall_of(1, EndReason::kSignal), std::pair(true, false));
  EXPECT_EQ(stall_of(1, EndReason::kCompleted), std::pair(true, false));
  EXPECT_EQ(stall_of(0, EndReason::kCompleted), std::pair(true, true));
}

TEST(Stacks, SharesAreThoseOfAPhase) {
  const auto lines = ParseLinesUntrusted(
      R"({"samples":8,"lines":[{"phase":"other","file":"/a.py","line":1,"function":"f","inside":"g","count":3},)"
      R"({"phase":"other","file":"/a.py","line":2,"function":"f","inside":"","count":1},)"
      R"({"phase":"data_wait","file":"/a.py","line":9,"function":"h","inside":"","count":4},{"phase":"none"},7]})");
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].at.line, 9);
  EXPECT_DOUBLE_EQ(lines[0].share, 1);
  EXPECT_DOUBLE_EQ(lines[1].share, 0.75);
}

TEST(Stacks, AnythingElseIsNone) {
  for (const char* text : {"", "[]", "{}", R"({"threads":7,"seconds":"x"})", R"({"lines":{}})"}) {
    const auto stall = ParseStallUntrusted(text);
    EXPECT_TRUE(!stall || StandOf(*stall).empty());
    EXPECT_TRUE(ParseLinesUntrusted(text).empty());
  }
}

}  // namespace
}  // namespace luff::profile
