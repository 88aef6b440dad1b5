#include "cli/progress.h"

#include <cmath>
#include <string>

#include <gtest/gtest.h>

namespace luff::cli::progress_test {
namespace {

constexpr std::int64_t kNow = 1'000'000'000'000'000'000, kSecond = 1'000'000'000;

Progress Known() {
  Progress progress;
  progress.step = 420;
  progress.planned = 1000;
  progress.done = 421;
  progress.has_loss = true;
  progress.loss = 0.31234;
  progress.lr_low = progress.lr_high = 0.001;
  progress.per_second = 112.4;
  progress.left_s = 5.2;
  progress.wall_unix_ns = kNow;
  return progress;
}

TEST(StatusLine, SaysWhatIsKnown) {
  EXPECT_EQ(StatusLine(Known(), {}, kNow, 200),
            "luff: step 420 of 1000, loss 0.3123, lr 0.001, 112 steps/s, 5 s left, no findings");
  Progress bare;
  bare.step = 7;
  EXPECT_EQ(StatusLine(bare, {.findings = 2}, kNow, 200), "luff: step 7, 2 findings");
  EXPECT_EQ(StatusLine({}, {}, kNow, 200), "luff: waiting for the first training step");
  EXPECT_EQ(StatusLine(bare, {.rules = false, .stopping = true}, kNow, 200),
            "luff: step 7, no rules, stopping");
}

TEST(StatusLine, NumbersOfAllKinds) {
  Progress progress = Known();
  progress.loss = NAN;
  progress.loss_name = "MSELoss_output_0\n";
  progress.lr_high = 0.01;
  progress.per_second = 0.01;
  progress.left_s = 7000;
  EXPECT_EQ(StatusLine(progress, {}, kNow, 200),
            "luff: step 420 of 1000, MSELoss_output_0\\x0a NaN, lr 0.001 to 0.01, 2 min a step, 1.9 h left, "
            "no findings");
  progress.updates = true;
  progress.done = 105;
  EXPECT_TRUE(StatusLine(progress, {}, kNow, 200).starts_with("luff: step 420, update 105 of 1000, "))
      << "of updates";
}

TEST(StatusLine, ATrainingThatGoesOnBeyondItsPlanHasNone) {
  Progress progress = Known();
  progress.done = 1001;
  progress.left_s = NAN;
  EXPECT_EQ(StatusLine(progress, {}, kNow, 200),
            "luff: step 420, loss 0.3123, lr 0.001, 112 steps/s, no findings");
}

TEST(StatusLine, SaysThatNoStepComes) {
  EXPECT_EQ(StatusLine(Known(), {}, kNow + 40 * kSecond, 200),
            "luff: step 420 of 1000, loss 0.3123, lr 0.001, no step for 40 s, no findings");
  Progress slow = Known();
  slow.per_second = 0.1;  // a step takes ten seconds
  EXPECT_NE(StatusLine(slow, {}, kNow + 40 * kSecond, 200).find("10 s a step"), std::string::npos);
}

TEST(StatusLine, IsNeverWiderThanTheTerminal_LeavesOutWhatMattersLeast) {
  EXPECT_EQ(StatusLine(Known(), {}, kNow, 75),
            "luff: step 420 of 1000, loss 0.3123, 112 steps/s, 5 s left, no findings");
  EXPECT_EQ(StatusLine(Known(), {}, kNow, 52), "luff: step 420 of 1000, loss 0.3123, no findings");
  EXPECT_EQ(StatusLine(Known(), {.before = "3 trainings, "}, kNow, 30), "luff: 3 trainings, step 420 of");
  for (std::size_t width = 0; width < 120; ++width)
    EXPECT_LE(StatusLine(Known(), {.findings = 3, .stopping = true}, kNow, width).size(), width);
}

TEST(ProgressLine, ArrivesAsItWasSent) {
  Progress sent = Known(), got;
  sent.loss_name = "a \"loss\"";
  sent.lr_high = 0.5;
  TakeProgressLine(ProgressLine(sent), &got);
  EXPECT_EQ(StatusLine(got, {}, kNow, 200), StatusLine(sent, {}, kNow, 200));
  sent.loss = -HUGE_VAL;
  sent.left_s = sent.per_second = NAN;
  TakeProgressLine(ProgressLine(sent), &got);
  EXPECT_EQ(StatusLine(got, {}, kNow, 200), StatusLine(sent, {}, kNow, 200));
}

TEST(ProgressLine, StrangeLinesChangeNothing) {
  Progress known = Known();
  for (const char* line : {"", "status", "status ", "status []", "status {", "progress 1 2", "status 7"}) {
    TakeProgressLine(line, &known);
    EXPECT_EQ(known.step, 420) << line;
  }
  TakeProgressLine(R"(status {"step": "x", "loss": {}, "lr_low": "1", "planned": 1e300, "loss_name": 7})",
                   &known);
  EXPECT_EQ(known.step, -1);
  EXPECT_FALSE(std::isfinite(known.lr_low));
}

}  // namespace
}  // namespace luff::cli::progress_test
