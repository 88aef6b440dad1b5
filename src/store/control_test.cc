#include "luff/store/control.h"

#include <atomic>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/testing/forwarding_env.h"
#include "store/test_run.h"

namespace luff::store::control_test {
namespace {

// A network file system that makes a link and loses the answer: the repeated request finds that the name
// exists.
class LosesAnswersEnv final : public ForwardingEnv {
 public:
  Status Link(const std::string& from, const std::string& to) override {
    ++links;
    static_cast<void>(Real().Link(from, to));
    return answer;
  }
  int links = 0;
  Status answer = AlreadyExists("link");
};

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

TEST_F(ControlTest, ALostAnswerToALinkMakesNoSecondProposal) {
  LosesAnswersEnv env;
  for (const Status& answer : {AlreadyExists("link"), IoError("link: timed out")}) {
    env.answer = answer;
    const std::size_t before = Read().size();
    const auto number = WriteControl(path, Record("propose", 0), env);
    ASSERT_TRUE(number.ok()) << number.status().ToString();
    EXPECT_EQ(*number, before + 1);
    ASSERT_EQ(Read().size(), before + 1);
    EXPECT_EQ(Read().back().number, *number);
  }
  EXPECT_EQ(env.links, 2);
  for (const auto& entry : std::filesystem::directory_iterator(path + "/control"))
    EXPECT_EQ(entry.path().extension(), ".json");  // no temporary file is left
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

TEST_F(ControlTest, NumbersAreWholeAndFit) {
  const auto parsed = [](const std::string& fields) {
    return ParseControlUntrusted(R"({"number":3,"kind":"stop",)" + fields + "}");
  };
  const auto right = parsed(R"("proposal":2,"train_step":-1,"created_unix_ns":5,"deadline_s":1.5)");
  ASSERT_TRUE(right.ok());
  EXPECT_EQ(right->proposal, 2U);
  EXPECT_EQ(right->train_step, -1);
  // A negative proposal used to be read as 18446744073709551615.
  for (const char* wrong : {R"("proposal":-1)", R"("proposal":1.5)", R"("proposal":"2")",
                            R"("train_step":18446744073709551615)", R"("created_unix_ns":null)"}) {
    EXPECT_FALSE(parsed(wrong).ok()) << wrong;
  }
  for (const char* wrong :
       {R"({"number":-3,"kind":"stop"})", R"({"number":3.0,"kind":"stop"})", R"({"kind":"stop"})"}) {
    EXPECT_FALSE(ParseControlUntrusted(wrong).ok()) << wrong;
  }
}

TEST_F(ControlTest, DepthIsBounded) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  ControlRecord record = Record("propose", 0);
  record.body = nested(15);
  ASSERT_TRUE(WriteControl(path, record).ok());
  EXPECT_EQ(Read().front().body, record.body);
  for (const std::size_t depth : {std::size_t{16}, std::size_t{1'000'000}}) {
    record.body = nested(depth);
    EXPECT_FALSE(WriteControl(path, record).ok());
    EXPECT_FALSE(ParseControlUntrusted(R"({"number":3,"kind":"stop","body":)" + nested(depth) + "}").ok());
  }
}

}  // namespace
}  // namespace luff::store::control_test
