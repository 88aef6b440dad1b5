#include "cli/upload_ends.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "luff/base/env.h"
#include "store/test_run.h"

namespace luff::cli::upload_ends_test {
namespace {

constexpr std::int64_t kNsPerS = 1'000'000'000;

TEST(MayBeginAgain, WhatWasKilledOrFailed_NotWhatIsDoneOrRefused) {
  EXPECT_TRUE(MayBeginAgain({.code = 137, .signal = 9}));
  EXPECT_TRUE(MayBeginAgain({.code = 143, .signal = 15}));
  for (const int code : {1, 3, 7, 120, 127}) EXPECT_TRUE(MayBeginAgain({.code = code})) << code;
  for (const int code : {0, 2, 4, 5, 6}) EXPECT_FALSE(MayBeginAgain({.code = code})) << code;
}

TEST(UploadTries, OneThatAlwaysEndsAtOnceIsGivenUp) {
  UploadTries tries(kNsPerS);
  std::int64_t together = 0, before = 0;
  int count = 0;
  while (const auto pause = tries.After(0)) {
    EXPECT_EQ(tries.first(), count == 0);
    EXPECT_GE(*pause, before);
    together += before = *pause;
    ASSERT_LT(++count, 100);
  }
  EXPECT_EQ(count, 8);
  EXPECT_LT(together, 900 * kNsPerS);
  EXPECT_FALSE(tries.After(599 * kNsPerS));
}

TEST(UploadTries, OneThatLivesForLongBeginsAFreshRow) {
  UploadTries tries(kNsPerS);
  for (int i = 0; i < 6; ++i) (void)tries.After(0);
  EXPECT_EQ(tries.After(3600 * kNsPerS), kNsPerS);
  EXPECT_TRUE(tries.first());
  // A job of weeks loses an upload each hour: never given up, and never in haste.
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(tries.After(3600 * kNsPerS), kNsPerS);
}

TEST(UploadEnds, AreReadAsTheyWereWritten_AndForgotten) {
  const store::TemporaryDirectory folder;
  EXPECT_FALSE(ReadUploadEnds(folder.path()));
  ASSERT_TRUE(WriteUploadEnds(folder.path(), {"s3://bucket/team", 3, "signal 9", 17, true}).ok());
  ASSERT_TRUE(WriteUploadEnds(folder.path(), {"s3://bucket/\"team\"", 4, "exit code 1", 18, false}).ok());
  const auto read = ReadUploadEnds(folder.path());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->url, "s3://bucket/\"team\"");
  EXPECT_EQ(read->ends, 4U);
  EXPECT_EQ(read->last, "exit code 1");
  EXPECT_EQ(read->unix_ns, 18);
  EXPECT_FALSE(read->again);
  EXPECT_EQ(UploadByHand("runs/1", *read), "luff sync runs/1 s3://bucket/\"team\"");
  ASSERT_TRUE(
      WriteUploadEnds(folder.path(), {"s3://bucket", 9, "", 0, false, "a/luff.toml", "big job", 2}).ok());
  EXPECT_EQ(UploadByHand("runs/1", *ReadUploadEnds(folder.path())),
            "luff sync runs/1 s3://bucket --config a/luff.toml --job 'big job' --training 2");
  ForgetUploadEnds(folder.path());
  EXPECT_FALSE(ReadUploadEnds(folder.path()));
}

TEST(UploadEnds, WhatIsNoSuchFileSaysNothing) {
  const store::TemporaryDirectory folder;
  Env& env = Env::Real();
  ASSERT_TRUE(env.MakeDirectories(folder.path() + "/sync").ok());
  const std::string path = folder.path() + "/sync/ends.json";
  for (const std::string text : {"", "{", "[]", R"({"format": "luff-sync", "version": 1, "ends": 2})",
                                 R"({"format": "luff-sync-ends", "version": 2, "ends": 2})",
                                 R"({"format": "luff-sync-ends", "version": 1, "ends": -1})",
                                 R"({"format": "luff-sync-ends", "version": 1, "ends": "many"})"}) {
    ASSERT_TRUE(WriteWholeFile(env, path, text).ok());
    EXPECT_FALSE(ReadUploadEnds(folder.path())) << text;
  }
  ASSERT_TRUE(env.Remove(path).ok());
  ASSERT_EQ(symlink("/etc/hostname", path.c_str()), 0);
  EXPECT_FALSE(ReadUploadEnds(folder.path()));
}

TEST(FirstUploadPause, IsOneSecondUnlessTold) {
  ::unsetenv("LUFF_UPLOAD_PAUSE_S");
  EXPECT_EQ(FirstUploadPauseNs(), kNsPerS);
  for (const auto& [text, ns] :
       {std::pair{"0", 0L}, {"0.5", kNsPerS / 2}, {"-1", kNsPerS}, {"soon", kNsPerS}}) {
    ::setenv("LUFF_UPLOAD_PAUSE_S", text, 1);
    EXPECT_EQ(FirstUploadPauseNs(), ns) << text;
  }
  ::unsetenv("LUFF_UPLOAD_PAUSE_S");
}

}  // namespace
}  // namespace luff::cli::upload_ends_test
