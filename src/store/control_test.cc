#include "luff/store/control.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "store/test_run.h"

namespace luff::store {
namespace {

class ControlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RunInfo info;
    info.run_id = {1, 2, 3};
    ASSERT_TRUE(CreateRun(path, info, false, false).ok());
  }
  ControlRecord Record(const std::string& phase, std::uint64_t proposal) const {
    ControlRecord record;
    record.kind = "lower_lr";
    record.phase = phase;
    record.proposal = proposal;
    record.author = phase;
    return record;
  }
  std::vector<ControlRecord> Read(std::uint64_t after = 0) const {
    auto records = ReadControl(path, after, nullptr);
    return records.ok() ? std::move(records).value() : std::vector<ControlRecord>{};
  }

  TemporaryDirectory directory;
  const std::string path = directory.path() + "/run";
};

TEST_F(ControlTest, TheFirstDecisionCounts) {
  const auto proposal = WriteControl(path, Record("propose", 0));
  ASSERT_TRUE(proposal.ok());
  const auto first = DecideControl(path, Record("abort", *proposal));
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->phase, "abort");
  const auto second = DecideControl(path, Record("commit", *proposal));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->phase, "abort");
  EXPECT_EQ(second->number, first->number);
  EXPECT_EQ(Read().size(), 2U);
  EXPECT_FALSE(DecideControl(path, Record("commit", 0)).ok());
}

TEST_F(ControlTest, DecidersAtOnceAllSeeTheSame) {
  for (int round = 0; round < 40; ++round) {
    const auto proposal = WriteControl(path, Record("propose", 0));
    ASSERT_TRUE(proposal.ok());
    std::atomic<bool> go{false};
    std::vector<std::string> seen(3);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      threads.emplace_back([&, i] {
        while (!go) std::this_thread::yield();
        const auto counts = DecideControl(path, Record(i == 0 ? "commit" : "abort", *proposal));
        if (counts.ok()) seen[i] = counts->phase;
      });
    }
    go = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_FALSE(seen[0].empty());
    EXPECT_EQ(seen[0], seen[1]) << round;
    EXPECT_EQ(seen[0], seen[2]) << round;
  }
}

TEST_F(ControlTest, AReaderNeverSeesARecordBeforeThoseInFrontOfIt) {
  std::atomic<bool> done{false};
  std::vector<std::thread> writers;
  for (int i = 0; i < 2; ++i) {
    writers.emplace_back([&] {
      for (int n = 0; n < 150; ++n) EXPECT_TRUE(WriteControl(path, Record("propose", 0)).ok());
    });
  }
  std::thread reader([&] {
    std::uint64_t after = 0;
    while (!done || after < 300) {
      for (const ControlRecord& record : Read(after)) {
        ASSERT_EQ(record.number, after + 1);
        after = record.number;
      }
    }
  });
  for (std::thread& writer : writers) writer.join();
  done = true;
  reader.join();
}

}  // namespace
}  // namespace luff::store
