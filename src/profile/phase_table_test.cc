#include "luff/profile/phase_table.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "luff/query/run_pieces.h"
#include "profile/testing/phases_run.h"

namespace luff::profile {
namespace {

using format::Mode;
using format::Phase;
using testing::Written;

TEST(PhaseTable, SharesMediansAndEvaluations) {
  Written run;
  for (int i = 0; i < 100; ++i) {
    run.Step(Mode::kTrain,
             {{Phase::kDataWait, 30}, {Phase::kForward, 10}, {Phase::kOther, i == 50 ? 500 : 10}}, 5);
    if (i == 60) run.Step(Mode::kEval, {{Phase::kForward, 200}});
  }
  run.Step(Mode::kEval, {{Phase::kForward, 200}});  // after the last TRAIN step: not between them
  const auto trial = run.Read();
  const auto table = TableOf(*trial, {});
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_EQ(table->steps, 100U);
  EXPECT_NEAR(table->wall_s, 5.49, 1e-6);
  EXPECT_NEAR(table->median_s, 0.05, 1e-6);
  EXPECT_EQ(table->other_steps, 1U);
  EXPECT_NEAR(table->other_s, 0.2, 1e-9);
  EXPECT_NEAR(table->run_queue_s, 0.5, 1e-6);
  ASSERT_EQ(table->lines.size(), 3U);  // what was not seen has no line
  EXPECT_EQ(table->lines[0].phase, Phase::kDataWait);
  EXPECT_NEAR(table->lines[0].share, 3.0 / 5.49, 1e-6);
  EXPECT_EQ(table->lines[1].phase, Phase::kOther);
  EXPECT_NEAR(table->lines[1].median_s, 0.01, 1e-6);
  double sum = 0;
  for (const PhaseLine& line : table->lines) sum += line.share;
  EXPECT_NEAR(sum, 1, 1e-9);
}

TEST(PhaseTable, StepsOfAnHourAddUp) {
  constexpr std::int64_t kHour = 3'600'000;
  Written run;
  for (int i = 0; i < 20; ++i)
    run.Step(Mode::kTrain, {{Phase::kForward, kHour / 3}, {Phase::kOther, kHour - kHour / 3}}, kHour / 10);
  const auto trial = run.Read();
  const auto table = TableOf(*trial, {});
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_NEAR(table->wall_s, 20 * 3600.0, 1e-6);
  EXPECT_NEAR(table->median_s, 3600, 1e-6);
  EXPECT_NEAR(table->run_queue_s, 2 * 3600.0, 1e-6);
  ASSERT_EQ(table->lines.size(), 2U);
  EXPECT_NEAR(table->lines[0].share + table->lines[1].share, 1, 1e-12);
}

TEST(PhaseTable, StepsAndWorkersAreChosen) {
  Written run;
  for (int i = 0; i < 10; ++i) run.Step(Mode::kTrain, {{Phase::kForward, i < 5 ? 10 : 20}});
  run.Worker(1);
  for (int i = 0; i < 10; ++i) run.Step(Mode::kTrain, {{Phase::kForward, 70}});
  const auto trial = run.Read();
  const auto half = TableOf(*trial, {.worker = {}, .from = 5, .to = 8});
  ASSERT_TRUE(half.ok());
  EXPECT_EQ(half->steps, 4U);
  EXPECT_NEAR(half->median_s, 0.02, 1e-6);
  EXPECT_EQ(half->workers, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_NEAR(TableOf(*trial, {.worker = 1, .from = 0})->median_s, 0.07, 1e-6);
  const auto none = TableOf(*trial, {.worker = 7, .from = 0});
  EXPECT_FALSE(none.ok());
  EXPECT_NE(none.status().ToString().find("these did: 0, 1"), std::string::npos) << none.status().ToString();
}

// Steps without times of a device count for nothing in its columns.
TEST(PhaseTable, ADeviceHasColumnsOfItsOwn) {
  for (const bool merged : {false, true}) {
    Written run(merged ? 32 << 10 : 8 << 20, merged ? 160 << 10 : 0);
    const int steps = merged ? 3000 : 30;
    for (int i = 0; i < steps; ++i) {
      run.DeviceStep(Mode::kTrain, {{Phase::kForward, 10}, {Phase::kOther, 5}},
                     {{Phase::kOther, 1}, {Phase::kForward, 4}, {Phase::kBackward, 2}}, Phase::kForward,
                     i % 3 != 0);
    }
    run.Step(Mode::kTrain, {{Phase::kForward, 10}});
    const auto trial = run.Read();
    std::size_t rows = 0;
    ASSERT_TRUE(query::VisitPhases(*trial, [&](const auto&, const auto&) { ++rows; }).ok());
    EXPECT_EQ(rows < static_cast<std::size_t>(steps), merged);
    const auto table = TableOf(*trial, {});
    ASSERT_TRUE(table.ok()) << table.status().ToString();
    EXPECT_EQ(table->device_steps, static_cast<std::uint64_t>(steps));
    EXPECT_EQ(table->idle_steps, static_cast<std::uint64_t>(steps) * 2 / 3);
    EXPECT_NEAR(table->device_s, 0.007 * steps, 1e-6);
    EXPECT_NEAR(table->device_wall_s, 0.015 * steps, 1e-6);
    ASSERT_EQ(table->lines.size(), 2U);  // what the host has no time of has no line
    EXPECT_EQ(table->lines[0].phase, Phase::kForward);
    EXPECT_NEAR(table->lines[0].device_s, 0.004 * steps, 1e-6);
    EXPECT_NE(DeviceText(*table).find("67 %"), std::string::npos) << DeviceText(*table);
  }
  Written none;
  none.Step(Mode::kTrain, {{Phase::kForward, 10}});
  EXPECT_EQ(DeviceText(*TableOf(*none.Read(), {})), "");
}

TEST(PhaseTable, MergedStepsKeepTheirTimes) {
  Written run(32 << 10, 160 << 10);
  for (int i = 0; i < 3000; ++i) {
    run.Step(Mode::kTrain, {{Phase::kForward, 10}, {Phase::kOther, 5}}, 1);
    if (i % 100 == 99) run.Step(Mode::kEval, {{Phase::kForward, 50}});
  }
  run.Step(Mode::kTrain, {{Phase::kCheckpoint, 700}}, 1);
  const auto trial = run.Read();
  const auto table = TableOf(*trial, {});
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  std::size_t rows = 0;
  ASSERT_TRUE(query::VisitPhases(*trial, [&](const auto&, const auto&) { ++rows; }).ok());
  EXPECT_LT(rows, 2000U);  // most were merged
  EXPECT_EQ(table->steps, 3001U);
  EXPECT_NEAR(table->wall_s, 45.7, 1e-6);
  EXPECT_NEAR(table->median_s, 0.015, 1e-6);
  EXPECT_NEAR(table->run_queue_s, 3.001, 1e-6);
  EXPECT_EQ(table->other_steps, 30U);
  EXPECT_TRUE(trial->Problems().empty());
}

TEST(PhaseTable, RanksAreSummedUp_AndTheSlowOneIsNamed) {
  Written run;
  for (int i = 0; i < 10; ++i) run.Step(Mode::kTrain, {{Phase::kDataWait, 1}, {Phase::kBackward, 40}}, 5);
  run.Worker(1);
  for (int i = 0; i < 10; ++i) run.Step(Mode::kTrain, {{Phase::kDataWait, 36}, {Phase::kBackward, 5}}, 5);
  const auto table = TableOf(*run.Read(), {});
  ASSERT_TRUE(table.ok());
  ASSERT_EQ(table->ranks.size(), 2U);
  EXPECT_NEAR(table->ranks[1].seconds[static_cast<std::size_t>(Phase::kDataWait)], 0.36, 1e-9);
  EXPECT_NEAR(table->ranks[1].wall_s, 0.41, 1e-9);
  EXPECT_NEAR(table->ranks[0].run_queue_s, 0.05, 1e-9);
  EXPECT_EQ(SkewOf(table->ranks),
            "rank 1 takes 36 ms a step in data_wait; the median of 2 ranks is 1.0 ms. Rank 0 waits for it in "
            "backward: 40 ms, the median is 5.0 ms");
}

TEST(PhaseTable, RanksThatAreAlikeAreNotBlamed) {
  std::vector<RankTimes> ranks(3);
  EXPECT_EQ(SkewOf(ranks), "");  // none has steps
  for (RankTimes& rank : ranks) {
    rank.steps = 10;
    rank.wall_s = 1;
    rank.seconds[static_cast<std::size_t>(Phase::kForward)] = rank.worker == 2 ? 0.55 : 0.5;
  }
  EXPECT_EQ(SkewOf(ranks), "3 ranks take as long as each other in every phase, to a tenth of a step");
  EXPECT_EQ(SkewOf({ranks[0]}), "");
}

TEST(PhaseTable, GlobalStepsChooseToo) {
  Written run;
  for (int i = 0; i < 10; ++i) {
    run.Step(Mode::kTrain, {{Phase::kForward, 10}});
    run.Step(Mode::kEval, {{Phase::kForward, 1}});
  }
  const auto trial = run.Read();
  const auto table = TableOf(*trial, {.worker = {}, .from = 4, .to = 9, .global = true});  // TRAIN 2, 3, 4
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->steps, 3U);
  EXPECT_EQ(table->other_steps, 2U);
  EXPECT_EQ(table->begin_unix_ns, Written::kBegin + 22'000'000);
  EXPECT_EQ(table->end_unix_ns, Written::kBegin + 54'000'000);
}

TEST(PhaseTable, ARunWithoutPhasesIsEmpty) {
  Written run;
  run.Step(Mode::kTrain, {});
  const auto table = TableOf(*run.Read(), {});
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->steps, 0U);
  EXPECT_TRUE(table->workers.empty());
}

}  // namespace
}  // namespace luff::profile
