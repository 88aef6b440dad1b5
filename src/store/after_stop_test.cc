#include "luff/store/after_stop.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "store/test_run.h"

namespace luff::store::after_stop_test {
namespace {

TEST(AfterStopTest, ANumberIsRead_AndNothingElse) {
  EXPECT_EQ(ParseUpdatesUntrusted("2840\n"), 2840U);
  EXPECT_EQ(ParseUpdatesUntrusted("9007199254740992\n"), 9007199254740992U);
  for (const char* text : {"", "\n", "28", "-3\n", "3 \n", " 3\n", "0x3\n", "3.5\n", "9007199254740993\n",
                           "99999999999999999999999\n", "3\n4\n"})
    EXPECT_EQ(ParseUpdatesUntrusted(text), 0U) << text;
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (auto left = random() % 24; left > 0; --left) text += static_cast<char>(random() % 256);
    EXPECT_EQ(ParseUpdatesUntrusted(text + "x\n"), 0U);
  }
}

TEST(AfterStopTest, OnlyAFileOfTheWorkerIsRead) {
  namespace fs = std::filesystem;
  const TemporaryDirectory folder;
  const std::string worker = folder.path() + "/w0003";
  fs::create_directories(worker);
  EXPECT_EQ(UpdatesAfterStop(folder.path(), 3), 0U);
  std::ofstream(worker + "/after_stop") << "12\n";
  EXPECT_EQ(UpdatesAfterStop(folder.path(), 3), 12U);
  EXPECT_EQ(UpdatesAfterStop(folder.path(), 4), 0U);
  fs::rename(worker + "/after_stop", folder.path() + "/elsewhere");
  fs::create_symlink(folder.path() + "/elsewhere", worker + "/after_stop");
  EXPECT_EQ(UpdatesAfterStop(folder.path(), 3), 0U);
}

}  // namespace
}  // namespace luff::store::after_stop_test
