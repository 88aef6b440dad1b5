// Steps of findings on the axis of all steps, where evaluations lie between those of the training.
#include <gtest/gtest.h>

#include "query/testing.h"
#include "server/finding_steps.h"

namespace luff::server::finding_steps_test {
namespace {

TEST(FindingSteps, EvaluationsBetweenAreCounted) {
  const query::testing::TempRun run;
  query::testing::Writing writing(run.path(), 0, 1);
  for (int epoch = 0; epoch < 4; ++epoch) {
    for (int i = 0; i < 10; ++i) writing.Step();
    for (int i = 0; i < 3; ++i) writing.Step(format::Mode::kEval);
  }
  writing.Close();
  const auto trial = query::Trial::Open(run.path());
  ASSERT_TRUE(trial.ok()) << trial.status().ToString();
  rules::Finding finding;
  finding.mode = "TRAIN";
  finding.since_step = 0;  // found at the end, and said of all steps
  finding.last_step = finding.step = 39;
  finding.global_step = 48;
  EXPECT_EQ(GlobalStepsOf(**trial, finding).since, 0);
  EXPECT_EQ(GlobalStepsOf(**trial, finding).last, 48);
  finding.since_step = 12;
  EXPECT_EQ(GlobalStepsOf(**trial, finding).since, 15);
  finding.mode = "EVAL";
  finding.since_step = 4;
  EXPECT_EQ(GlobalStepsOf(**trial, finding).since, 24);
  finding.since_step = 999;  // not in the run
  EXPECT_EQ(GlobalStepsOf(**trial, finding).since, 48);
  finding.mode = "nonsense";
  EXPECT_EQ(GlobalStepsOf(**trial, finding).since, 48);
}

}  // namespace
}  // namespace luff::server::finding_steps_test
