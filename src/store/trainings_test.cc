#include "luff/store/trainings.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "store/test_run.h"

namespace luff::store::trainings_test {
namespace {

namespace fs = std::filesystem;

class TrainingsTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directory(run); }
  std::string Find(const std::string& world, const std::string& job = "a", bool resume = false,
                   const std::string& command = "[]", std::uint32_t rank = format::kNoId) const {
    const auto found = FindTraining(run, {0, job, world, command, ""}, rank, resume);
    return found.ok() ? *found : found.status().ToString();
  }
  void Write(const std::string& name, const std::string& text) const {
    fs::create_directory(run + "/trainings");
    std::ofstream(run + "/trainings/" + name) << text;
  }

  TemporaryDirectory directory;
  const std::string run = directory.path() + "/run";
};

TEST_F(TrainingsTest, TheFirstHasTheNamedRunAndTheOthersRunsBesideIt) {
  EXPECT_EQ(Find("p1"), run);
  EXPECT_EQ(Find("p2"), run + "-2");
  EXPECT_EQ(Find("p3"), run + "-3");
  EXPECT_EQ(Find("p2"), run + "-2");  // another rank of the same world
  EXPECT_TRUE(fs::is_directory(run + "-3"));
  const std::vector<Training> listed = ReadTrainings(run, 1);
  ASSERT_EQ(listed.size(), 2U);
  EXPECT_EQ(listed[0].number, 2U);
  EXPECT_EQ(listed[0].job, "a");
  EXPECT_EQ(listed[0].world, "p2");
  EXPECT_EQ(listed[1].run, run + "-3");
}

TEST_F(TrainingsTest, ADirectoryThatExistsIsNotTaken) {
  fs::create_directory(run + "-2");
  EXPECT_EQ(Find("p1"), run);
  EXPECT_EQ(Find("p2"), run + "-3");
}

TEST_F(TrainingsTest, AResumedJobGoesOnWithItsRunsInTheirOrder) {
  for (const char* world : {"p1", "p2", "p3"}) Find(world);
  EXPECT_EQ(Find("q1", "b", true), run);
  EXPECT_EQ(Find("q2", "b", true), run + "-2");
  EXPECT_EQ(Find("r1", "c", true), run);  // a third part, before the second has come so far
  EXPECT_EQ(Find("q3", "b", true), run + "-3");
  EXPECT_EQ(Find("q4", "b", true), run + "-4");  // the job has more trainings now
}

TEST_F(TrainingsTest, AResumedTrainingGoesOnWithTheRunOfItsCommand) {
  Find("p1", "a", false, "one");
  Find("p2", "a", false, "two");
  Find("p3", "a", false, "two");
  EXPECT_EQ(Find("q2", "b", true, "two"), run + "-2");  // the script has skipped the first
  EXPECT_EQ(Find("q3", "b", true, "two"), run + "-3");
  EXPECT_EQ(Find("q1", "b", true, "changed"), run);
}

TEST_F(TrainingsTest, ARankThatHasCompletedBeginsAnotherTrainingAndOneThatFailedGoesOn) {
  for (const auto reason : {format::EndReason::kException, format::EndReason::kCompleted}) {
    EXPECT_EQ(Find("w", "a", false, "[]", 0), run);
    const auto info = CreateRun(run, TestRun(), true, false);
    ASSERT_TRUE(info.ok());
    WriterOptions options;
    options.run_path = run;
    const auto writer = WorkerWriter::Open(options, *info);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Close(reason).ok());
  }
  EXPECT_EQ(Find("w", "a", false, "[]", 0), run + "-2");
  EXPECT_EQ(Find("w", "a", false, "[]", 0), run + "-2");
  EXPECT_EQ(Find("w", "a", false, "[]", 1), run);  // a rank that has not begun
}

TEST_F(TrainingsTest, TrainingsThatBeginAtOnceNeverShareARun) {
  constexpr int kWorlds = 24;
  constexpr int kRanks = 2;
  std::vector<std::string> found(kWorlds * kRanks);
  std::vector<std::thread> threads;
  for (int i = 0; i < kWorlds * kRanks; ++i)
    threads.emplace_back(
        [&, i] { found[static_cast<std::size_t>(i)] = Find("w" + std::to_string(i / kRanks)); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<std::string>(found.begin(), found.end()).size(), std::size_t{kWorlds});
  for (std::size_t i = 0; i < found.size(); i += kRanks) EXPECT_EQ(found[i], found[i + 1]);
  std::size_t runs = 0;
  for (const auto& entry : fs::directory_iterator(directory.path())) runs += entry.is_directory() ? 1 : 0;
  EXPECT_EQ(runs, std::size_t{kWorlds});
  EXPECT_TRUE(fs::exists(run + "-" + std::to_string(kWorlds)));  // no name was left out
}

TEST_F(TrainingsTest, EntriesThatAreNoneAreSkippedAndOverwriteNothing) {
  EXPECT_EQ(Find("p1"), run);
  Write("0002.json", "{");
  Write("0003.json", R"({"job":"a","world":"x","command":"[]","run":"../elsewhere"})");
  Write("0004.json", R"({"job":"a","world":"x","command":"[]","run":"/etc"})");
  Write("0005.json", R"({"job":"a","world":"x","command":"[]","run":"run-2/../other"})");
  Write("0006.json", R"({"job":"a","world":"x","command":"[]","run":"run-"})");
  Write("0007.json", R"({"job":"a","world":7,"command":"[]","run":"run-2"})");
  Write("0008.json", std::string(100 << 10, ' '));
  Write("note.txt", "");
  EXPECT_EQ(ReadTrainings(run, 0).size(), 1U);
  EXPECT_EQ(Find("x"), run + "-2");
  EXPECT_EQ(ReadTrainings(run, 0).back().number, 9U);
}

TEST_F(TrainingsTest, APlaceThatIsFullOrMissingIsAnError) {
  Write("9999.json", "{}");
  EXPECT_EQ(FindTraining(run, {0, "a", "p1", "", ""}, 0, false).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_TRUE(ReadTrainings(directory.path() + "/missing", 0).empty());
  std::ofstream(directory.path() + "/file") << "";
  EXPECT_FALSE(FindTraining(directory.path() + "/file", {0, "a", "p1", "", ""}, 0, false).ok());
  fs::remove_all(run);  // while the job runs
  EXPECT_EQ(Find("p2"), run);
}

}  // namespace
}  // namespace luff::store::trainings_test
