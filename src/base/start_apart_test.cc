// A program that is started apart runs, and leaves no trace in the process that started it.
#include "base/start_apart.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <thread>

namespace luff::start_apart_test {
namespace {

std::atomic<int> g_children{0};

class StartApartTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/luff-apart-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    unlink((folder_ + "/out").c_str());
    rmdir(folder_.c_str());
  }
  /// What the program wrote, once it has written a line "end".
  std::string Output() const {
    for (int i = 0; i < 100'000; ++i) {
      std::ifstream file(folder_ + "/out");
      std::string text{std::istreambuf_iterator<char>(file), {}};
      if (text.ends_with("end\n")) return text;
      usleep(1000);
    }
    return "";
  }
  std::string folder_;
};

TEST_F(StartApartTest, ItRunsAndNobodyMeetsIt) {
  struct sigaction act{};
  struct sigaction before{};
  act.sa_handler = [](int) { g_children.fetch_add(1); };
  sigaction(SIGCHLD, &act, &before);
  signal(SIGUSR1, SIG_IGN);
  const std::string script =
      "exec > " + folder_ +
      "/out; echo $A $PPID; pwd; grep SigIgn /proc/self/status; ls /proc/self/fd; echo end";
  ASSERT_TRUE(StartApart({"/bin/sh", "-c", script}, {"A=b", "PATH=/usr/bin:/bin"}));
  const std::string text = Output();
  EXPECT_TRUE(text.starts_with("b ")) << text;
  EXPECT_EQ(text.find("b " + std::to_string(getpid()) + "\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n/\n"), std::string::npos) << text;
  EXPECT_NE(text.find("SigIgn:\t0000000000000000"), std::string::npos) << text;
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
  EXPECT_EQ(g_children.load(), 0);
  sigaction(SIGCHLD, &before, nullptr);
  signal(SIGUSR1, SIG_DFL);
}

TEST_F(StartApartTest, FromManyThreadsAtOnce) {
  std::atomic<int> started{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 5; ++k) started += StartApart({"/bin/true"}, {}) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(started.load(), 40);
}

TEST_F(StartApartTest, WhatIsNoProgramIsNotStarted) {
  EXPECT_FALSE(StartApart({"/nowhere/luff"}, {}));
  EXPECT_FALSE(StartApart({}, {}));
}

// The orphan would be a child that wait() meets, with a signal when it ends.
TEST_F(StartApartTest, WhoAdoptsOrphansStartsNone) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const bool started = StartApart({"/bin/true"}, {});
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  EXPECT_FALSE(started);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

}  // namespace
}  // namespace luff::start_apart_test
