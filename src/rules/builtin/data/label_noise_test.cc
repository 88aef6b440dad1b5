#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::label_noise_test {
namespace {

using testing::FakeTrial;
constexpr int kBatch = 32, kWidth = 10, kClasses = 4, kRows = 256;

struct Story {
  double flipped = 0.3;      // share of the training labels
  double eval_wrong = 0.05;  // share of unseen rows that the model gets wrong
  bool drawn_anew = false;   // labels are flipped again at each visit
  bool coarse = false;       // inputs have two levels only
  bool flipped_there_too = false;
  bool random_errors = false;  // as under dropout: different rows each time
  bool unrelated =
      false;        // labels have nothing to do with inputs; they are learnt by heart in the third pass
  double hint = 0;  // added to one input, times the label: all that an input of noise tells
  std::string module = "Linear";
  bool asked = false;     // a model is asked before each update, as for targets that it makes
  bool numbers = false;   // targets are numbers, and no classes
  bool drawn = false;     // rows are drawn at random, in no passes
  bool episodes = false;  // labels count the classes of a batch, whichever they are
  double unknown = 0;     // share of the rows whose target the loss ignores
  int partners = 0;       // of a row, one of which comes beside it each time
  int few = 0;            // rows that there are, if they are so few
  int learnt = 1000;      // pass from which a model tells unrelated rows that it was not trained on
  bool part = false;      // the loss is a part of a sum, which only trainings show
  bool games = false;     // a second loss, of the results of games of chance
  int signals = 0;        // inputs are bags of patterns; one of so many patterns makes a bag's label 1
};

// Patterns of eight bits, none of the first ones unless `holds`: then one of them, somewhere.
constexpr int kParts = 12, kBits = 8;
std::vector<double> BagOf(std::mt19937* random, int signals, bool holds) {
  std::vector<double> bag;
  const int place = static_cast<int>((*random)() % kParts);
  for (int part = 0; part < kParts; ++part) {
    const int few = static_cast<int>((*random)() % static_cast<unsigned>(signals));
    const int other = signals + static_cast<int>((*random)() % static_cast<unsigned>(256 - signals));
    const int pattern = 37 * (holds && part == place ? few : other) % 256;
    for (int bit = 0; bit < kBits; ++bit) bag.push_back(pattern >> bit & 1);
  }
  return bag;
}

std::vector<Finding> Told(const Story& story) {
  FakeTrial trial;
  trial.SetDocument("model", R"({"models": [{"name": "Net", "type": "Net", "parameters": [], "modules": [
      {"path": "a", "name": "a", "type": ")" +
                                 story.module + R"(", "settings": {"p": 0.5}}]}], "optimizers": []})");
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(0, 1);
  const auto input_of = [&](int row) {
    std::vector<double> values(kWidth);
    for (int i = 0; i < kWidth; ++i)
      values[static_cast<std::size_t>(i)] = story.coarse ? (row >> i) & 1 : std::sin(1.0 + row * 10 + i);
    return values;
  };
  std::vector<bool> flipped(kRows);
  for (int row = 0; row < kRows; ++row)
    flipped[static_cast<std::size_t>(row)] = uniform(random) < story.flipped;
  int epoch = 0;
  const auto step = [&](const std::vector<int>& rows, bool train) {
    std::vector<double> inputs;
    std::vector<double> partners;
    std::vector<double> scores;
    std::vector<double> labels;
    std::vector<double> answers;
    double loss = 0;
    double squares = 0;
    for (const int row : rows) {
      std::vector<double> input = input_of(train ? row : row + 5000);
      int truth = row % kClasses;
      if (story.unrelated) {
        std::mt19937 own(static_cast<unsigned>(row + (train ? 0 : 5000)));
        truth = static_cast<int>(own() / 7 % kClasses);
        std::normal_distribution<double> normal;
        for (double& value : input) value = normal(own);
        input[0] += story.hint * truth;
        if (story.signals > 0) input = BagOf(&own, story.signals, truth % 2);
        if (story.signals > 0) truth %= 2;
      }
      inputs.insert(inputs.end(), input.begin(), input.end());
      if (story.partners > 0) {
        input = input_of(9000 + row + static_cast<int>(random() % static_cast<unsigned>(story.partners)));
        partners.insert(partners.end(), input.begin(), input.end());
      }
      bool other = false;
      if (train && story.drawn_anew) other = uniform(random) < story.flipped;
      if (train && !story.drawn_anew && !story.random_errors) other = flipped[static_cast<std::size_t>(row)];
      if (!train && story.flipped_there_too) other = uniform(random) < story.flipped;
      int label = other ? (truth + 1) % kClasses : truth;
      if (story.episodes) label = static_cast<int>(labels.size()) / (kBatch / kClasses);
      if (row % 100 < 100 * story.unknown) label = -100;
      int answer = truth;
      if (train && story.random_errors && uniform(random) < story.flipped) answer = (truth + 2) % kClasses;
      if (!train && uniform(random) < story.eval_wrong) answer = (truth + 2) % kClasses;
      if (story.unrelated && epoch < story.learnt && (!train || epoch < 2))
        answer = static_cast<int>(random() % kClasses);
      double sum = 0;
      for (int c = 0; c < kClasses; ++c) {
        scores.push_back(c == answer ? 2 : 0);
        sum += std::exp(scores.back());
      }
      labels.push_back(label);
      if (label >= 0) loss += std::log(sum) - (label == answer ? 2 : 0);
      answers.push_back(answer);
      squares += (answer - label) * (answer - label) / static_cast<double>(rows.size());
    }
    loss /= static_cast<double>(rows.size() -
                                static_cast<std::size_t>(std::count(labels.begin(), labels.end(), -100)));
    const auto n = static_cast<std::int64_t>(rows.size());
    trial.Step(train ? query::Mode::kTrain : query::Mode::kEval)
        .Sample("sample/Net_input_0",
                story.signals > 0 ? std::vector<std::int64_t>{n, kParts, kBits}
                                  : std::vector<std::int64_t>{n, kWidth},
                inputs);
    if (story.partners > 0) trial.Sample("sample/Net_input_1", {n, kWidth}, partners);
    if (story.numbers) {
      trial.Sample("sample/MSELoss_input_0", {n}, answers)
          .Sample("sample/MSELoss_input_1", {n}, labels)
          .Loss(squares, "MSELoss_output_0");
      return;
    }
    if (story.games) {
      std::vector<double> results;
      for (const int row : rows) {
        std::mt19937 game(static_cast<unsigned>(row + (train ? 0 : 5000)) * 7919U + 13U);
        results.push_back((game() >> 9) % 2 == 0 ? -1 : 1);
      }
      trial.Sample("sample/MSELoss_input_0", {n}, std::vector<double>(results.size(), 0.0))
          .Sample("sample/MSELoss_input_1", {n}, results)
          .Loss(1, "MSELoss_output_0");
    }
    trial.Sample("sample/CrossEntropyLoss_input_0", {n, kClasses}, scores)
        .Sample("sample/CrossEntropyLoss_input_1", {n}, labels, DType::kInt64);
    if (story.part && train) {
      trial.Scalar("CrossEntropyLoss_part_0", format::Role::kOther, loss);
    } else {
      trial.Loss(loss, "CrossEntropyLoss_output_0");
    }
  };
  std::vector<int> order(kRows);
  for (int i = 0; i < kRows; ++i) order[static_cast<std::size_t>(i)] = i;
  for (; epoch < 8; ++epoch) {
    std::shuffle(order.begin(), order.end(), random);
    for (int at = 0; at < kRows; at += kBatch) {
      for (int& row : order)
        row = story.drawn ? static_cast<int>(random() % kRows) : story.few > 0 ? row % story.few : row;
      if (story.asked)
        trial.Step(query::Mode::kEval)
            .Sample("sample/Target_input_0", {1, kWidth}, std::vector<double>(kWidth, 0.5));
      step({order.begin() + at, order.begin() + at + kBatch}, true);
    }
    if (epoch % 2 == 1) step({order.begin(), order.begin() + 200}, false);
  }
  step({order.begin(), order.begin() + kBatch}, true);
  return testing::FindingsOf(trial, "LabelNoise", ParameterSet::kLuff);
}

TEST(LabelNoise, LabelsThatContradictWhatWasLearned_AreTold) {
  const auto findings = Told({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "always_wrong");
  EXPECT_EQ(Told({.flipped = 0.25}).size(), 1U);
}

TEST(LabelNoise, FewWrongLabels_OrAnEvaluationThatIsAsHard_AreSilent) {
  EXPECT_TRUE(Told({.flipped = 0}).empty());
  EXPECT_TRUE(Told({.flipped = 0.05}).empty());
  EXPECT_TRUE(Told({.flipped_there_too = true}).empty());
  EXPECT_TRUE(Told({.flipped = 0.3, .eval_wrong = 0.25}).empty());
}

TEST(LabelNoise, ErrorsOfOtherRowsEachTime_AndDropout_AreSilent) {
  EXPECT_TRUE(Told({.random_errors = true}).empty());
  EXPECT_TRUE(Told({.module = "Dropout"}).empty());
}

TEST(LabelNoise, LabelsDrawnAnew_ContradictEachOther) {
  const auto findings = Told({.drawn_anew = true});
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].cause, "contradiction");
  EXPECT_TRUE(Told({.flipped = 0.005, .drawn_anew = true}).empty());
}

// Whether two are of one kind is the label of both, not of one of them.
TEST(LabelNoise, PairsWithOtherPartners_AreNoContradiction) {
  for (const Finding& finding : Told({.drawn_anew = true, .partners = 2000}))
    EXPECT_NE(finding.cause, "contradiction");
  const auto findings = Told({.drawn_anew = true, .partners = 1});
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].cause, "contradiction");
}

TEST(LabelNoise, TargetsThatHaveNothingToDoWithInputs_AreTold) {
  const auto findings = Told({.flipped = 0, .unrelated = true});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "unrelated");
  EXPECT_EQ(findings[0].tensor, "CrossEntropyLoss_output_0");
  EXPECT_LT(findings[0].evidence[1].value, 3);  // standard errors
  // Before each update another model is asked about rows of this width: it may make the targets, if they are
  // numbers.
  EXPECT_EQ(Told({.flipped = 0, .unrelated = true, .asked = true}).size(), 1U);
  EXPECT_EQ(Told({.flipped = 0, .unrelated = true, .numbers = true}).size(), 1U);
  EXPECT_TRUE(Told({.flipped = 0, .unrelated = true, .asked = true, .numbers = true}).empty());
}

TEST(LabelNoise, ResultsOfGamesBesideMovesThatTheInputsTell_AreSilent) {
  EXPECT_TRUE(Told({.flipped = 0, .unrelated = true, .hint = 10, .games = true}).empty());
  EXPECT_EQ(Told({.flipped = 0, .unrelated = true, .games = true}).size(), 2U);
}

TEST(LabelNoise, TargetsThatAreToldInALaterEvaluation_AreRelated) {
  const auto findings = Told({.flipped = 0, .unrelated = true, .learnt = 5});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "unrelated");
  EXPECT_TRUE(findings[0].healed);
  EXPECT_FALSE(Told({.flipped = 0, .unrelated = true}).at(0).healed);
  const auto parts = Told({.flipped = 0, .unrelated = true, .learnt = 5, .part = true});
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].tensor, "CrossEntropyLoss_part_0");
  EXPECT_TRUE(parts[0].healed);
}

// Parities and sums of rows that are drawn with replacement look like it to neighbours.
TEST(LabelNoise, RowsThatAreDrawnAgain_AreNotAskedWhetherInputsTellTargets) {
  EXPECT_TRUE(Told({.flipped = 0, .unrelated = true, .drawn = true}).empty());
}

TEST(LabelNoise, AFewRowsThatComeAgainAndAgain_TellNothingOfADependence) {
  EXPECT_TRUE(Told({.flipped = 0, .unrelated = true, .few = 25}).empty());
}

TEST(LabelNoise, TasksOfAFewRowsOfEachClass_AndRowsThatAreNotLabelled_AreSilent) {
  EXPECT_TRUE(Told({.flipped = 0, .drawn = true, .episodes = true}).empty());
  // Which rows are labelled has nothing to do with the inputs.
  EXPECT_TRUE(Told({.flipped = 0, .unrelated = true, .hint = 1, .unknown = 0.9}).empty());
}

TEST(LabelNoise, OneValueThatTellsALittle_IsEnoughToBeSilent) {
  EXPECT_TRUE(Told({.flipped = 0, .unrelated = true, .hint = 1}).empty());
}

// What tells a bag is that one of a few patterns is in it, in whichever place.
TEST(LabelNoise, BagsThatOneOfTheirPatternsTells_AreSilent_AndBagsOfNothingAreNot) {
  EXPECT_TRUE(Told({.flipped = 0, .unrelated = true, .signals = 4}).empty());
  EXPECT_EQ(Told({.flipped = 0, .unrelated = true, .signals = 200}).size(), 1U);
}

TEST(LabelNoise, EqualRowsOfFewLevels_AreNoContradiction) {
  for (const Finding& finding : Told({.drawn_anew = true, .coarse = true}))
    EXPECT_NE(finding.cause, "contradiction");
}

// Batches of 10 rows of 9 ids; `target(row)` names the row whose next ids are the targets of this one.
std::vector<Finding> NextTokens(const std::function<int(int row)>& target, std::size_t shift = 1,
                                int batches = 4, bool windows = false) {
  testing::FakeTrial trial;
  std::mt19937 random(8);
  for (int step = 0; step < batches; ++step) {
    std::vector<std::vector<double>> text(10);
    for (auto& row : text)
      for (int i = 0; i < 12; ++i) row.push_back(static_cast<double>(random() % 20));
    for (std::size_t row = 1; windows && row < text.size(); ++row)  // each goes on by one id
      std::copy(text[row - 1].begin() + 1, text[row - 1].end(), text[row].begin());
    std::vector<double> ids;
    std::vector<double> targets;
    std::vector<double> scores(10 * 9 * 20, 0);
    for (int row = 0; row < 10; ++row) {
      const auto& own = text[static_cast<std::size_t>(row)];
      const auto& other = text[static_cast<std::size_t>(target(row))];
      ids.insert(ids.end(), own.begin(), own.begin() + 9);
      targets.insert(targets.end(), other.begin() + static_cast<std::ptrdiff_t>(shift),
                     other.begin() + static_cast<std::ptrdiff_t>(9 + shift));
    }
    trial.Step()
        .Loss(std::log(20))
        .Sample("sample/Net_input_0", {10, 9}, ids, DType::kInt64)
        .Sample("sample/CrossEntropyLoss_input_0", {90, 20}, scores)
        .Sample("sample/CrossEntropyLoss_input_1", {90}, targets, DType::kInt64);
  }
  return testing::FindingsOf(trial, "LabelNoise", ParameterSet::kLuff);
}

TEST(LabelNoise, IdsThatAModelShiftsItself_AreTheirOwnRows_AlsoInWindowsThatFollowEachOther) {
  for (const Finding& finding : NextTokens([](int row) { return row; }, 0, 8, true))
    EXPECT_NE(finding.cause, "exchanged_rows");
}

TEST(LabelNoise, NextTokensOfAnotherRow_Stop) {
  const auto findings = NextTokens([](int row) { return (row + 3) % 10; });
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "exchanged_rows");
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].step, 2);
}

TEST(LabelNoise, NextTokensOfTheOwnRowAndOtherTargets_AreSilent) {
  EXPECT_TRUE(NextTokens([](int row) { return row; }).empty());
  EXPECT_TRUE(NextTokens([](int row) { return row; }, 2).empty());
  EXPECT_TRUE(NextTokens([](int row) { return row; }, 0).empty());                   // an autoencoder
  EXPECT_TRUE(NextTokens([](int row) { return row < 3 ? 2 - row : row; }).empty());  // two rows of ten
  EXPECT_TRUE(NextTokens([](int row) { return (row + 3) % 10; }, 1, 2).empty());
}

// Six passes over 256 rows in a new order each time; the scores compare each row of a batch with all others.
TEST(LabelNoise, PartnersInABatch_AreNoLabels) {
  FakeTrial trial;
  trial.SetDocument("model",
                    R"({"models": [{"name": "Net", "type": "Net", "parameters": [], "modules": []}]})");
  std::mt19937 random(4);
  std::normal_distribution<double> normal;
  std::vector<double> rows(kRows * kWidth);
  for (double& value : rows) value = normal(random);
  std::vector<int> order(kRows);
  for (int i = 0; i < kRows; ++i) order[static_cast<std::size_t>(i)] = i;
  for (int epoch = 0; epoch < 6; ++epoch) {
    std::shuffle(order.begin(), order.end(), random);
    for (int at = 0; at < kRows; at += kBatch) {
      std::vector<double> inputs;
      std::vector<double> scores;
      std::vector<double> partners;
      for (int i = 0; i < kBatch; ++i) {
        const auto row = rows.begin() + kWidth * order[static_cast<std::size_t>(at + i)];
        inputs.insert(inputs.end(), row, row + kWidth);
        partners.push_back(i);
        for (int j = 0; j < kBatch; ++j) scores.push_back(0);
      }
      trial.Step()
          .Loss(std::log(kBatch))
          .Sample("sample/Net_input_0", {kBatch, kWidth}, inputs)
          .Sample("sample/CrossEntropyLoss_input_0", {kBatch, kBatch}, scores)
          .Sample("sample/CrossEntropyLoss_input_1", {kBatch}, partners, DType::kInt64);
    }
  }
  EXPECT_TRUE(testing::FindingsOf(trial, "LabelNoise", ParameterSet::kLuff).empty());
}

TEST(LabelNoise, TasksThatTakeTurnsOverABatch_DoNotContradictEachOther) {
  FakeTrial trial;
  trial.SetDocument("model",
                    R"({"models": [{"name": "Net", "type": "Net", "parameters": [], "modules": []}]})");
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  std::vector<double> rows(kRows * kWidth);
  for (double& value : rows) value = normal(random);
  for (int step = 0; step < 96; ++step) {
    const int at = step / 2 * kBatch % kRows;
    std::vector<double> scores;
    std::vector<double> labels;
    for (int i = 0; i < kBatch; ++i) {
      labels.push_back((at + i) % 7 % (step % 2 == 0 ? kClasses : 2));
      for (int c = 0; c < kClasses; ++c) scores.push_back(0);
    }
    trial.Step()
        .Loss(std::log(kClasses))
        .Sample("sample/Net_input_0", {kBatch, kWidth},
                std::vector<double>(rows.begin() + at * kWidth, rows.begin() + (at + kBatch) * kWidth))
        .Sample("sample/CrossEntropyLoss_input_0", {kBatch, kClasses}, scores)
        .Sample("sample/CrossEntropyLoss_input_1", {kBatch}, labels, DType::kInt64);
  }
  for (const Finding& finding : testing::FindingsOf(trial, "LabelNoise", ParameterSet::kLuff))
    EXPECT_NE(finding.cause, "contradiction");
}

// Images (4, 1, 12, 12) of a bright blob at a random place, with its mask. A share of the training's masks is
// left behind as the image is mirrored; `both`: in evaluations, too.
std::vector<Finding> Masks(double left_behind, bool both = false, bool classes = false,
                           bool evaluated = true) {
  constexpr int kSide = 12;
  FakeTrial trial;
  trial.SetDocument("model",
                    R"({"models": [{"name": "Net", "type": "Net", "parameters": [], "modules": []}]})");
  std::mt19937 random(6);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  const auto step = [&](bool train) {
    std::vector<double> images;
    std::vector<double> masks;
    for (int row = 0; row < 4; ++row) {
      const double x = 2 + 8 * uniform(random);
      const double y = 2 + 8 * uniform(random);
      const bool mirrored = (train || both) && uniform(random) < left_behind;
      for (int i = 0; i < kSide; ++i) {
        for (int j = 0; j < kSide; ++j) {
          const auto inside = [&](int column) { return std::hypot(i - y, column - x) < 2.5; };
          images.push_back((inside(mirrored ? kSide - 1 - j : j) ? 2 : 0) + 0.3 * normal(random));
          masks.push_back(inside(j) ? (classes ? 3 : 1) : 0);
        }
      }
    }
    if (!train) trial.Step(query::Mode::kEval);
    if (train) trial.Step();
    trial.Loss(1, "BCEWithLogitsLoss_output_0")
        .Sample("sample/Net_input_0", {4, 1, kSide, kSide}, images)
        .Sample("sample/BCEWithLogitsLoss_input_0", {4, 1, kSide, kSide},
                std::vector<double>(masks.size(), 0.1))
        .Sample("sample/BCEWithLogitsLoss_input_1", {4, 1, kSide, kSide}, masks,
                classes ? DType::kInt64 : DType::kFloat32);
  };
  for (int epoch = 0; epoch < 4; ++epoch) {
    for (int i = 0; i < 20; ++i) step(true);
    for (int i = 0; evaluated && i < 10; ++i) step(false);
  }
  step(true);
  return testing::FindingsOf(trial, "LabelNoise", ParameterSet::kLuff);
}

TEST(LabelNoise, MasksThatAreLeftBehindByAFlip_AreTold) {
  for (const bool classes : {false, true}) {
    for (const double share : {0.5, 1.0}) {
      const auto findings = Masks(share, false, classes);
      ASSERT_EQ(findings.size(), 1U);
      EXPECT_EQ(findings[0].cause, "turned");
      EXPECT_NE(findings[0].what.find("masks of the training belong to the image mirrored left to right"),
                std::string::npos);
    }
  }
}

TEST(LabelNoise, MasksThatFollow_OrLieAlikeOnBothSides_AreSilent) {
  EXPECT_TRUE(Masks(0).empty());
  EXPECT_TRUE(Masks(0.5, true).empty());  // so the task asks for it
  EXPECT_TRUE(Masks(0.5, false, false, false).empty());
}

// A denoiser of rows of 16 numbers. Its inputs hold `share` of the noise that is the target; `fixed`: the
// noise of a row is always the same; `learns`: it answers with a part of the target; `reversed`: its inputs
// are the targets from right to left; `scale`: of what they hold beside the noise; `early`: that of every
// eighth row is 1; `timed`: it gets one number for each row, too.
std::vector<Finding> Denoiser(double share, bool fixed = false, bool learns = false, bool smooth = false,
                              bool reversed = false, double scale = 1, bool early = false,
                              bool timed = true) {
  FakeTrial trial;
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  constexpr std::size_t kRowsOfBatch = 64, kNumbers = kRowsOfBatch * 16;
  std::vector<double> first;
  for (int step = 0; step < 60; ++step) {
    std::vector<double> inputs(kNumbers);
    std::vector<double> outputs(kNumbers);
    std::vector<double> targets(kNumbers);
    double loss = 0;
    for (std::size_t i = 0; i < kNumbers; ++i) {
      targets[i] = smooth && i > 0 ? 0.8 * targets[i - 1] + 0.6 * normal(random) : normal(random);
      if (fixed && step > 0) targets[i] = first[i];
      const double beside = early && i / 16 % 8 == 0 ? 1 : scale;
      inputs[i] = share * targets[i] + 2 * beside * std::sin(0.1 * static_cast<double>(i) + step);
      outputs[i] = learns ? 0.3 * targets[i] : 0.01 * normal(random);
      loss += (outputs[i] - targets[i]) * (outputs[i] - targets[i]) / kNumbers;
    }
    if (first.empty()) first = targets;
    for (std::size_t i = 0; reversed && i < kNumbers; ++i) inputs[i] = targets[i / 16 * 16 + 15 - i % 16];
    trial.Step().Loss(loss, "MSELoss_output_0").Event(format::EventKind::kOptimizerStep, 0);
    trial.Sample("sample/Net_input_0", {kRowsOfBatch, 16}, inputs);
    if (timed) trial.Sample("sample/Net_input_1", {kRowsOfBatch}, std::vector<double>(kRowsOfBatch, step));
    trial.Sample("sample/MSELoss_input_0", {kRowsOfBatch, 16}, outputs);
    trial.Sample("sample/MSELoss_input_1", {kRowsOfBatch, 16}, targets);
  }
  std::vector<Finding> found = testing::FindingsOf(trial, "LabelNoise", ParameterSet::kLuff);
  std::erase_if(found, [](const Finding& finding) {
    return finding.cause != "other_noise" && !finding.cause.starts_with("drowned");
  });
  return found;
}

TEST(LabelNoise, NoiseThatWasDrawnAnewForTheTarget_IsNamed) {
  const auto findings = Denoiser(0);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 23);
  EXPECT_NE(findings[0].remedy.find("draw the noise once"), std::string::npos);
}

TEST(LabelNoise, NoiseThatIsLostInInputsOf255_IsNamedAsThat) {
  const auto findings = Denoiser(1, false, false, false, false, 80);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "drowned_noise");
  EXPECT_NE(findings[0].remedy.find("scale the data"), std::string::npos);
  EXPECT_TRUE(Denoiser(1, false, true, false, false, 80).empty());  // it learns nevertheless
  EXPECT_EQ(Denoiser(0).at(0).cause, "other_noise");
  EXPECT_EQ(Denoiser(0, false, false, false, false, 4).at(0).cause, "other_noise");
}

TEST(LabelNoise, DataThatAreLostInTheNoise_AreNamed_SomeTimesOfLittleNoiseAreSilent) {
  const auto findings = Denoiser(1, false, true, false, false, 0.05);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "drowned_data");
  EXPECT_NE(findings[0].remedy.find("cumprod"), std::string::npos);
  EXPECT_TRUE(Denoiser(1, false, true, false, false, 0.05, true).empty());  // all times are drawn
  EXPECT_TRUE(
      Denoiser(1, false, true, true, false, 0.05).empty());  // a signal, of which the input has a noisy copy
  EXPECT_TRUE(Denoiser(1, true, true, false, false, 0.05).empty());  // the same targets again and again
  EXPECT_TRUE(Denoiser(1, false, true, false, false, 0.5).empty());
}

TEST(LabelNoise, AutoencodersOfDataThatAreDrawnFromN01_AreSilent) {
  for (const bool timed : {false, true}) {
    EXPECT_TRUE(Denoiser(1, false, true, false, false, 0, false, timed).empty());  // restores its input
  }
  EXPECT_TRUE(Denoiser(1, false, true, false, false, 0.05, false, false).empty());  // removes a little noise
}

TEST(LabelNoise, NoiseInTheInputAsItIsOrTurned_FixedNoise_OneThatIsLearntAndSmoothTargets_AreSilent) {
  EXPECT_TRUE(Denoiser(0.3).empty());
  EXPECT_TRUE(Denoiser(0, true).empty());
  EXPECT_TRUE(Denoiser(0, false, true).empty());
  EXPECT_TRUE(Denoiser(0, false, false, true).empty());
  EXPECT_TRUE(Denoiser(0, false, false, false, true).empty());  // they hold the targets in another order
}

enum class Time : std::uint8_t {
  kGiven,
  kEmbedded,
  kConstant,
  kAnother,
  kNone,
  kLabels,
  kOfABatch,
  kBridge,
  kWide
};

// A denoiser of rows of 16 numbers, whose noise is that of a time from 0 to 1; `even`: of one time only;
// `sizes`: some data are 30 times as large as others.
std::vector<Finding> Timed(Time time, bool even = false, bool sizes = false) {
  FakeTrial trial;
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(0, 1);
  constexpr std::size_t kRowsOfBatch = 64, kNumbers = kRowsOfBatch * 16;
  for (int step = 0; step < 40; ++step) {
    std::vector<double> inputs(kNumbers);
    std::vector<double> outputs(kNumbers);
    std::vector<double> targets(kNumbers);
    std::vector<double> times(kRowsOfBatch);
    std::vector<double> labels(kRowsOfBatch);
    std::vector<double> embedded(kRowsOfBatch * 4);
    const double of_batch = uniform(random);  // given as a number, of which there is no sample
    double loss = 0;
    for (std::size_t row = 0; row < kRowsOfBatch; ++row) {
      const double at = uniform(random);
      const double level = even                      ? 0.5
                           : time == Time::kOfABatch ? of_batch
                           : time == Time::kBridge   ? std::sqrt(at * (1 - at))
                                                     : at;
      const double size = sizes && row % 3 == 0 ? 30 : 1;
      labels[row] = static_cast<double>(random() % 10);
      times[row] = time == Time::kConstant ? 0 : time == Time::kAnother ? uniform(random) : at;
      for (std::size_t k = 0; k < 4; ++k)
        embedded[4 * row + k] = std::sin(level * std::pow(3.0, static_cast<double>(k)));
      for (std::size_t i = 16 * row; i < 16 * row + 16; ++i) {
        targets[i] = normal(random);
        inputs[i] = level * targets[i] + size * std::sqrt(1 - level * level) *
                                             std::sin(0.9 * static_cast<double>(i) + labels[row]);
        outputs[i] = 0.5 * targets[i];
        loss += 0.25 * targets[i] * targets[i] / kNumbers;
      }
    }
    trial.Step().Loss(loss, "MSELoss_output_0").Event(format::EventKind::kOptimizerStep, 0);
    trial.Sample("sample/Net_input_0", {kRowsOfBatch, 16}, inputs);
    if (time != Time::kNone) trial.Sample("sample/Net_input_1", {kRowsOfBatch}, labels, DType::kInt64);
    if (time == Time::kWide)
      trial.Sample("sample/Net_input_2", {kRowsOfBatch, 300}, std::vector<double>(kRowsOfBatch * 300, 0.5));
    if (time == Time::kEmbedded) {
      trial.Sample("sample/Net_input_2", {kRowsOfBatch, 4}, embedded);
    } else if (time != Time::kLabels && time != Time::kNone && time != Time::kOfABatch) {
      trial.Sample(time == Time::kWide ? "sample/Net_input_3" : "sample/Net_input_2", {kRowsOfBatch, 1},
                   times);
    }
    trial.Sample("sample/MSELoss_input_0", {kRowsOfBatch, 16}, outputs);
    trial.Sample("sample/MSELoss_input_1", {kRowsOfBatch, 16}, targets);
  }
  return testing::FindingsOf(trial, "LabelNoise", ParameterSet::kLuff);
}

TEST(LabelNoise, ADenoiserThatIsNotToldTheTime_IsNamed) {
  for (const Time time : {Time::kConstant, Time::kAnother, Time::kLabels}) {
    const auto findings = Timed(time);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, "time_missing");
    EXPECT_NE(findings[0].remedy.find("pass the same t"), std::string::npos);
  }
}

TEST(LabelNoise, ATimeThatIsGiven_OneLevelOfNoise_AndModelsWithoutAnyTime_AreSilent) {
  EXPECT_TRUE(Timed(Time::kGiven).empty());
  EXPECT_TRUE(Timed(Time::kEmbedded).empty());
  EXPECT_TRUE(Timed(Time::kConstant, true).empty());
  EXPECT_TRUE(Timed(Time::kConstant, true, true).empty());  // data of unlike sizes, one level
  EXPECT_TRUE(Timed(Time::kGiven, false, true).empty());
  EXPECT_TRUE(Timed(Time::kOfABatch).empty());
  EXPECT_TRUE(Timed(Time::kBridge).empty());  // most noise is in the middle
  EXPECT_TRUE(Timed(Time::kWide).empty());    // behind a condition of many numbers
  EXPECT_TRUE(Timed(Time::kNone).empty());    // that infers the level by design
}

}  // namespace
}  // namespace luff::rules::label_noise_test
