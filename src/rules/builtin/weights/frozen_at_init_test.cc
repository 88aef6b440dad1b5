#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/loss_stories.h"
#include "rules/testing/recorder.h"

// The state that a training ends with: cause "restores_worst". The others are in model_structure_test.cc.
namespace luff::rules::frozen_at_init_test {
namespace {

using format::EventKind;
using testing::FakeTrial;
constexpr std::uint64_t kGradients = 1U << 11, kTold = 1U << 12;  // of the event `forward`

struct Story {
  std::vector<double> strengths = {0.5, 1, 2, 3, 4, 5};  // of the right class, by evaluation
  std::vector<int> after = {0};    // evaluations whose states are evaluated again at the end
  std::vector<double> wrong = {};  // shares of rows that are answered wrongly, and surely so
  double by_chance = 0;            // added to the scores at the end: another state
  int batches = 2;
  bool regression = false, own = true, trains_on = false;
  bool loads = true;       // a state, after the last update
  unsigned evaluated = 1;  // number of the model; 1 is trained
};

// Scores of a batch of an evaluation: the same rows each time.
void Evaluate(FakeTrial* trial, const Story& story, int evaluation, double other = 0) {
  const auto place = static_cast<std::size_t>(evaluation);
  const double strength = story.strengths[place];
  const double share = place < story.wrong.size() ? story.wrong[place] : 0;
  for (int batch = 0; batch < story.batches; ++batch) {
    testing::Batch rows;
    std::vector<double> outputs;
    std::vector<double> targets;
    for (int i = 0; i < 20; ++i) {
      const int id = (i + batch) % 3;
      rows.ids.push_back(id);
      const bool wrong = i < 20 * share;
      for (int c = 0; c < 3; ++c)
        rows.scores.push_back(std::sin(7 * i + c) + other +
                              (c == (id + (wrong ? 1 : 0)) % 3 ? strength * (wrong ? 3 : 1) : 0));
      rows.inputs.push_back(i + 20 * batch);
      targets.push_back(i);
      outputs.push_back(i + std::cos(i) / strength + other);
    }
    if (story.regression) {
      testing::TellPairs(trial, "MSELoss", testing::SquaredError(outputs, targets), outputs, targets,
                         DType::kFloat32, query::Mode::kEval);
    } else {
      testing::TellClasses(trial, rows, 3, query::Mode::kEval);
    }
    trial->Event(EventKind::kForward, story.evaluated, kTold);
  }
}

std::vector<Finding> Told(const Story& story) {
  FakeTrial trial;
  trial.SetDocument("model", R"({"models": [
    {"name": "Net", "type": "Net", "modules": [{"path": "", "type": "Net", "number": 1}]},
    {"name": "Net_1", "type": "Net", "modules": [{"path": "", "type": "Net", "number": 2}]}]})");
  const int count = static_cast<int>(story.strengths.size());
  for (int evaluation = 0; evaluation < count; ++evaluation) {
    for (int step = 0; step < 10; ++step)
      trial.Step()
          .Loss(1)
          .Event(EventKind::kForward, 1, kTold | kGradients)
          .Event(EventKind::kOptimizerStep, 0);
    if (evaluation + 1 < count || story.own) Evaluate(&trial, story, evaluation);
  }
  for (const int again : story.after) {
    Evaluate(&trial, story, again, story.by_chance);
    if (story.loads) trial.EventJson(R"({"kind": "load_state_dict", "model": "Net", "matched": 4})");
  }
  if (story.trains_on) trial.Step().Loss(1).Event(EventKind::kOptimizerStep, 0);
  return testing::FindingsOf(trial, "FrozenAtInit", ParameterSet::kLuff);
}

TEST(FrozenAtInit, TheWorstStateThatIsBroughtBackAtTheEnd_IsTold) {
  const auto findings = Told({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "restores_worst");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].since_step, 9);
  EXPECT_EQ(findings[0].step, 59);
  EXPECT_NE(findings[0].what.find("worst of 6"), std::string::npos) << findings[0].what;
  EXPECT_EQ(Told({.own = false}).size(), 1U);  // the last updates have no evaluation of their own
  EXPECT_EQ(Told({.regression = true}).size(), 1U);
  // A loss that rises in the end, and is kept as the best.
  EXPECT_EQ(Told({.strengths = {4, 5, 4, 3, 2, 0.5}, .after = {5}}).size(), 0U);  // the newest is no other
  EXPECT_EQ(Told({.strengths = {4, 5, 0.5, 3, 2, 2}, .after = {2}}).size(), 1U);
}

TEST(FrozenAtInit, GoodStatesThatAreBroughtBack_AreSilent) {
  EXPECT_TRUE(Told({.after = {5}}).empty());
  EXPECT_TRUE(Told({.strengths = {1, 5, 2, 3, 2, 1.5}, .after = {1}}).empty());
  EXPECT_TRUE(Told({.after = {1}}).empty());                  // not the best, but no mistake of direction
  EXPECT_TRUE(Told({.after = {}}).empty());                   // nothing
  EXPECT_TRUE(Told({.by_chance = 0.1}).empty());              // another state, as an average of several
  EXPECT_TRUE(Told({.after = {0, 5}}).empty());               // several are compared
  EXPECT_TRUE(Told({.strengths = {0.5, 1, 2}}).empty());      // too few
  EXPECT_TRUE(Told({.trains_on = true}).empty());             // weights that are rewound, and trained again
  EXPECT_TRUE(Told({.strengths = {2, 2, 2, 2, 2}}).empty());  // all alike
  EXPECT_TRUE(Told({.loads = false}).empty());  // a snapshot of its own, or a model that is not trained
  EXPECT_TRUE(Told({.evaluated = 2}).empty());
}

// The loss rises with the confidence of wrong answers, while more and more answers are right.
TEST(FrozenAtInit, AStateThatIsChosenByItsAnswers_MayHaveTheLargestLoss) {
  Story story = {.strengths = {1, 2, 3, 4, 6, 12, 2}, .after = {5}};
  story.wrong = {0.5, 0.4, 0.3, 0.25, 0.2, 0.1, 0.3};
  EXPECT_TRUE(Told(story).empty());
  story.after = {0};  // the fewest right answers, and the smallest loss
  EXPECT_TRUE(Told(story).empty());
}

}  // namespace
}  // namespace luff::rules::frozen_at_init_test
