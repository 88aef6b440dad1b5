#include "rules/kit/step_index.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "rules/testing/fake_trial.h"

namespace luff::rules::step_index_test {
namespace {

using format::EventKind;
using format::Role;
using testing::FakeTrial;

FakeTrial Story() {
  FakeTrial trial;
  trial.Step()
      .Tensor("fc.weight", Role::kWeight, {1.0, 2.0})
      .Tensor("gradient/fc.weight", Role::kGradient, {0.5, 0.25})
      .Tensor("conv.weight", Role::kWeight, {3.0})
      .Difference("fc.weight", 0.1, 0.2, 2.0, 7)
      .Event(EventKind::kBackward)
      .Event(EventKind::kOptimizerStep, 3)
      .Event(EventKind::kOptimizerStep, 1)
      .EventJson(R"({"kind": "reach", "reached_count": 2})")
      .EventJson(R"({"kind": "reach", "reached_count": 3})")
      .EventJson(R"({"reached_count": 4})")
      .EventJson("[{")
      .EventJson(R"({"kind": 5})");
  return trial;
}

TEST(StepIndexTest, RowsOfARoleKeepTheirOrder) {
  const FakeTrial trial = Story();
  query::Trial::StepRows rows;
  ASSERT_TRUE(trial.ReadStepRows(0, &rows).ok());
  const StepIndex index(trial, rows);
  std::vector<std::string> weights;
  for (const auto& [entry, tensor] : index.summaries(Role::kWeight)) {
    EXPECT_EQ(entry.tensor, tensor.id);
    weights.push_back(tensor.name);
  }
  EXPECT_EQ(weights, (std::vector<std::string>{"fc.weight", "conv.weight"}));
  EXPECT_EQ(index.summaries(Role::kGradient).size(), 1U);
  EXPECT_TRUE(index.summaries(Role::kBias).empty());
  EXPECT_TRUE(index.units(Role::kWeight).empty());
}

TEST(StepIndexTest, AChangeNamesWhatItsColumnsMean) {
  const FakeTrial trial = Story();
  query::Trial::StepRows rows;
  ASSERT_TRUE(trial.ReadStepRows(0, &rows).ok());
  const StepIndex index(trial, rows);
  ASSERT_EQ(index.weight_changes().size(), 1U);
  const WeightChange& change = index.weight_changes()[0];
  EXPECT_EQ(change.name, "fc.weight");
  EXPECT_EQ(change.l1, 0.1);
  EXPECT_DOUBLE_EQ(change.sum_sq, 0.04);
  EXPECT_EQ(change.largest, 0.2);
  EXPECT_EQ(change.changed, 7);
  EXPECT_EQ(change.previous_l1, 2);
  EXPECT_EQ(change.previous_sum_sq, 4);
}

TEST(StepIndexTest, EventsOfAKindAndJsonThatIsOne) {
  const FakeTrial trial = Story();
  query::Trial::StepRows rows;
  ASSERT_TRUE(trial.ReadStepRows(0, &rows).ok());
  const StepIndex index(trial, rows);
  ASSERT_EQ(index.events(EventKind::kOptimizerStep).size(), 2U);
  EXPECT_EQ(index.events(EventKind::kOptimizerStep)[0].row.subject, 3U);
  EXPECT_TRUE(index.events(EventKind::kBatch).empty());
  EXPECT_TRUE(index.events(static_cast<EventKind>(1000)).empty());
  ASSERT_EQ(index.json_events("reach").size(), 2U);
  EXPECT_EQ(index.json_events("reach")[1]->at("reached_count"), 3);
  EXPECT_TRUE(index.json_events("").empty());
}

// A loss may be recorded as a scalar, as a summary of one element, or as both.
TEST(StepIndexTest, ALossIsOneWhateverItsForms) {
  FakeTrial trial;
  trial.Step().Tensor("loss", Role::kLoss, {2.0}).Tensor("other", Role::kLoss, {std::nan("")});
  trial.Tensor("many", Role::kLoss, {1.0, 2.0});
  trial.Last().scalars.push_back({trial.Last().summaries[0].tensor, 0, 1.5});
  StepIndex index(trial, trial.Last());
  ASSERT_EQ(index.losses().size(), 2U);
  EXPECT_EQ(index.losses()[0].value, 1.5);
  EXPECT_TRUE(std::isnan(index.losses()[1].value));
  trial.Step();
  index.Build(trial, trial.Last());  // nothing of the previous step is left
  EXPECT_TRUE(index.losses().empty() && index.summaries(Role::kLoss).empty());
}

}  // namespace
}  // namespace luff::rules::step_index_test
