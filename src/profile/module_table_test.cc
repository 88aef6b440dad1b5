// Tables of modules over written runs.
#include "luff/profile/module_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "luff/profile/time_report.h"
#include "profile/testing/phases_run.h"

namespace luff::profile::module_table_test {
namespace {

using format::Mode;
using format::Phase;
using ::testing::HasSubstr;
using testing::Written;
constexpr const char* kModel = R"({"models":[{"name":"Net","modules":[
  {"path":"","name":"Net","type":"Net","number":0},{"path":"fc","name":"fc","type":"Linear","number":1}, 7]}]})";
constexpr std::int64_t kMs = 1'000'000;

TEST(ModuleTable, AddsUpTimedStepsAndNamesTheModules) {
  Written run;
  run.Document("model", kModel);
  for (int i = 0; i < 3; ++i) run.Step(Mode::kTrain, {{Phase::kForward, 10}});
  for (int i = 0; i < 2; ++i)
    run.TimedStep({{Phase::kForward, 30}}, {1, 0, 3, format::kModulesHidden},
                  {{0, 1, 30 * kMs, 10 * kMs, 50 * kMs, 20 * kMs},
                   {1, 2, 20 * kMs, 20 * kMs, 30 * kMs, 30 * kMs},
                   {9, 1, 1 * kMs, 1 * kMs, -1, -1},
                   {format::kNoId, 4, -1, 1 * kMs, -1, -1}});
  const auto trial = run.Read();
  const auto table = ModulesOf(*trial, {});
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_EQ(table->steps, 2U);
  EXPECT_EQ(table->modules, 3U);
  EXPECT_TRUE(table->hidden);
  ASSERT_EQ(table->lines.size(), 4U);
  EXPECT_EQ(table->lines[0].name, "fc");
  EXPECT_EQ(table->lines[0].type, "Linear");
  EXPECT_EQ(table->lines[0].calls, 4U);
  EXPECT_DOUBLE_EQ(*table->lines[0].forward_s, 0.04);
  EXPECT_DOUBLE_EQ(*table->lines[0].backward_own_s, 0.06);
  EXPECT_NEAR(table->lines[0].share, 100.0 / 164, 1e-12);
  EXPECT_EQ(table->lines[1].name, "Net");
  EXPECT_DOUBLE_EQ(*table->lines[1].backward_s, 0.1);
  EXPECT_EQ(table->lines[2].name, "");
  EXPECT_FALSE(table->lines[2].forward_s);
  EXPECT_EQ(table->lines[3].name, "module 9");  // not in the document
  EXPECT_FALSE(table->lines[3].backward_s);
  EXPECT_THAT(NotSeen(*table), ::testing::ElementsAre(HasSubstr("compiled or scripted graph")));
  Scope scope;
  scope.to = 3;
  EXPECT_EQ(ModulesOf(*trial, scope)->steps, 1U);
  scope.worker = 4;
  EXPECT_EQ(ModulesOf(*trial, scope)->steps, 0U);
}

TEST(ModuleTable, MergedStepsKeepTheSums) {
  Written run(4096, 16384);
  for (int i = 0; i < 1500; ++i)
    run.TimedStep({{Phase::kForward, 2}}, {1, 0, 2, 0},
                  {{0, 1, 2 * kMs, 1 * kMs, 3 * kMs, 1 * kMs}, {1, 2, 1 * kMs, 1 * kMs, 2 * kMs, 2 * kMs}});
  const auto trial = run.Read();
  const auto phases = TableOf(*trial, {});
  const auto table = ModulesOf(*trial, {});
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->steps, phases->steps);
  EXPECT_GT(table->steps, 1000U);
  ASSERT_EQ(table->lines.size(), 2U);
  EXPECT_EQ(table->lines[0].calls, 2 * table->steps);
  EXPECT_NEAR(*table->lines[0].backward_s, 2e-3 * static_cast<double>(table->steps), 1e-9);
  EXPECT_NEAR(*table->lines[1].forward_s, 2e-3 * static_cast<double>(table->steps), 1e-9);
}

TEST(ModuleTable, MergedStepsKeepBackwardTimesThatSomeDidNotSee) {
  Written run(4096, 16384);
  for (int i = 0; i < 1500; ++i) {
    const std::int64_t backward = i % 2 == 0 ? 2 * kMs : -1;  // e.g. an expert that no sample was sent to
    run.TimedStep({{Phase::kForward, 2}}, {1, 0, 1, 0}, {{0, 1, 1 * kMs, 1 * kMs, backward, backward}});
  }
  const auto table = ModulesOf(*run.Read(), {});
  ASSERT_TRUE(table.ok());
  ASSERT_EQ(table->lines.size(), 1U);
  ASSERT_TRUE(table->lines[0].backward_s.has_value());
  EXPECT_NEAR(*table->lines[0].backward_s, 1e-3 * static_cast<double>(table->steps), 0.01);
  EXPECT_NEAR(*table->lines[0].backward_own_s, *table->lines[0].backward_s, 1e-9);
}

TEST(ModuleTable, TracedStepsCountForNothingElse) {
  Written run;
  for (int i = 0; i < 4; ++i) run.Step(Mode::kTrain, {{Phase::kForward, 10}});
  run.TracedStep({{Phase::kForward, 20}, {Phase::kTrace, 3000}});
  run.Step(Mode::kTrain, {{Phase::kForward, 10}});
  const auto trial = run.Read();
  const auto table = TableOf(*trial, {});
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->steps, 5U);
  EXPECT_DOUBLE_EQ(table->wall_s, 0.05);
  EXPECT_EQ(table->traced_steps, 1U);
  EXPECT_DOUBLE_EQ(table->traced_s, 3.02);
  EXPECT_EQ(table->lines.size(), 1U);
  Scope only;
  only.from = only.to = 4;
  EXPECT_THAT(WhyNoSteps(*trial, *TableOf(*trial, only)), HasSubstr("traced"));
}

TEST(ModuleTable, TracedStepsAreNotMergedWithOthers) {
  Written run(4096, 8192);
  for (int i = 0; i < 1500; ++i) {
    if (i % 500 == 7)
      run.TracedStep({{Phase::kForward, 1000}});
    else
      run.Step(Mode::kTrain, {{Phase::kForward, 1}});
  }
  const auto trial = run.Read();
  const auto table = TableOf(*trial, {});
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->traced_steps, 3U);
  EXPECT_EQ(table->steps + table->traced_steps, 1500U);
  EXPECT_NEAR(table->wall_s, 1.497, 1e-9);
}

}  // namespace
}  // namespace luff::profile::module_table_test
