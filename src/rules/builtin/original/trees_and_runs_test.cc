#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/builtin/original/similar_across_runs.h"
#include "rules/facts/step_memo.h"
#include "rules/testing/recorder.h"

// Rules that look at trees, and at another run.
namespace luff::rules::trees_and_runs_test {
namespace {

using format::Role;
using testing::FakeTrial;

std::vector<Finding> FindingsOf(const FakeTrial& trial, const std::string& rule,
                                ParameterSet set = ParameterSet::kLuff) {
  return testing::FindingsOf(trial, rule, set);
}

TEST(TreeDepth, DepthOfACompleteNumbering) {
  FakeTrial trial;
  trial.Step().Tensor("trees/Node", Role::kOther, {0, 1, 2, 15, 30});  // level 4
  EXPECT_TRUE(FindingsOf(trial, "TreeDepth", ParameterSet::kOriginal).empty());
  trial.Step().Tensor("trees/Node", Role::kOther, {0, 1, 2, 31});  // level 5
  const auto findings = FindingsOf(trial, "TreeDepth", ParameterSet::kOriginal);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 1);
  EXPECT_TRUE(FindingsOf(trial, "TreeDepth").empty());
  EXPECT_EQ(FindingsOf(trial, "TreeDepth:depth=4").size(), 1U);
}

TEST(FeatureImportanceOverweight, ShareOfTheLargest) {
  FakeTrial trial;
  const std::vector<double> even = {0.3, 0.25, 0.25, 0.1, 0.1};  // exactly 0.8: silent
  const std::vector<double> heavy = {0.4, 0.3, 0.2, 0.05, 0.05};
  trial.Step().Tensor("feature_importance/weight", Role::kOther, even);
  EXPECT_TRUE(
      FindingsOf(trial, "FeatureImportanceOverweight:threshold=0.81", ParameterSet::kOriginal).empty());
  trial.Step().Tensor("feature_importance/weight", Role::kOther, heavy);
  EXPECT_EQ(
      FindingsOf(trial, "FeatureImportanceOverweight:threshold=0.81", ParameterSet::kOriginal).at(0).step, 1);
  EXPECT_TRUE(FindingsOf(trial, "FeatureImportanceOverweight").empty());  // too few features
}

class Told final : public Sink {
 public:
  void Report(Finding finding) override { findings.push_back(std::move(finding)); }
  void Heal(const std::string&, const std::string&, std::int64_t) override {}
  std::vector<Finding> findings;
};

std::vector<Finding> Compared(const FakeTrial& trial, FakeTrial other, bool by_mode) {
  similar_across_runs::Others others;
  others.push_back(std::make_unique<FakeTrial>(std::move(other)));
  auto selector = TensorSelector::Make({}, true);
  const std::unique_ptr<Rule> rule =
      similar_across_runs::MakeSimilarAcrossRuns(std::move(selector).value(), std::move(others), {}, by_mode);
  Told told;
  query::Trial::StepRows rows;
  for (std::size_t n = 0; n < trial.step_count(); ++n) {
    StepMemo memo;
    if (trial.ReadStepRows(n, &rows).ok()) rule->OnStep({trial, rows, n, memo, StepIndex(trial, rows)}, told);
  }
  return told.findings;
}

FakeTrial Values(std::initializer_list<double> values) {
  FakeTrial trial;
  for (const double value : values) trial.Step().Tensor("w", Role::kWeight, {1, value});
  return trial;
}

TEST(SimilarAcrossRuns, FirstStepThatDiffersIsTold_NumpysTolerance) {
  EXPECT_TRUE(Compared(Values({1, 2, 3}), Values({1, 2 + 1e-5, 3}), true).empty());
  const auto findings = Compared(Values({1, 2, 3}), Values({1, 2.1, 3.1}), true);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 1);
  EXPECT_EQ(findings[0].tensor, "w");
  EXPECT_NE(findings[0].why.find("1 of 2 elements"), std::string::npos);
  EXPECT_EQ(Compared(Values({1, 2, 3}), Values({1, 2.1, 3.1}), false).size(), 2U);
}

TEST(SimilarAcrossRuns, WithoutAnotherRun_IsSilent_ARunThatIsNotThereIsAnError) {
  EXPECT_TRUE(FindingsOf(Values({1, 2}), "SimilarAcrossRuns").empty());
  const auto spec = FindRule("SimilarAcrossRuns");
  ASSERT_TRUE(spec.ok());
  EXPECT_FALSE(CompleteParameters(**spec, ParameterSet::kLuff, {{"other_trials", "/nowhere"}}).ok());
}

}  // namespace
}  // namespace luff::rules::trees_and_runs_test
