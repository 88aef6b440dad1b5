#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::train_val_skew_test {
namespace {

using query::Mode;
using testing::FakeTrial;

struct Side {
  double shift = 0, spread = 1;
  std::int64_t features = 6;
};

// Features have mean 3 and deviation 2 in training. In evaluations they are shifted and scaled as `side`
// says, in units of that deviation.
FakeTrial Story(const Side& side, std::size_t concerned = 99, bool rare = false,
                const std::string& event = "") {
  FakeTrial trial;
  std::mt19937 noise(5);
  std::normal_distribution<double> normal(0, 1);
  for (int step = 0; step < 60; ++step) {
    const bool train = step % 20 < 18;
    trial.Step(train ? Mode::kTrain : Mode::kEval);
    if (step == 0 && !event.empty()) trial.EventJson(event);
    const std::int64_t features = train ? 6 : side.features;
    std::vector<double> values;
    for (int row = 0; row < 32; ++row) {
      for (std::int64_t f = 0; f < features; ++f) {
        const bool other = !train && static_cast<std::size_t>(f) < concerned;
        double value = normal(noise);
        if (rare) value = train && row == 7 && step % 5 == f ? 1 : 0;
        values.push_back(3 + 2 * (other ? side.shift + side.spread * value : value));
      }
    }
    trial.Sample("sample/Net_input_0", {32, features}, values);
  }
  return trial;
}

std::vector<Finding> Findings(const FakeTrial& trial) {
  return testing::FindingsOf(trial, "TrainValSkew", ParameterSet::kLuff);
}

TEST(TrainValSkew, OtherScale_IsToldAfterTheFirstEvaluation) {
  for (const Side side : {Side{4, 1}, Side{0, 6}, Side{0, 0.1}}) {
    const auto findings = Findings(Story(side));
    ASSERT_EQ(findings.size(), 1U) << side.shift << " " << side.spread;
    EXPECT_EQ(findings[0].step, 17);
    EXPECT_EQ(findings[0].mode, "TRAIN");
    EXPECT_EQ(findings[0].tensor, "sample/Net_input_0");
  }
}

// Images of 4 x 4 in [0, 1] in training, of 0 to 255 in evaluations.
std::vector<Finding> Pixels(DType training, DType evaluation, bool scaled, const std::string& document) {
  FakeTrial trial;
  trial.SetDocument("model", document);
  std::mt19937 noise(5);
  std::uniform_int_distribution<int> pixel(0, 255);
  for (int step = 0; step < 60; ++step) {
    const bool train = step % 20 < 18;
    std::vector<double> values(512);
    for (double& value : values) value = pixel(noise) / (train || scaled ? 255.0 : 1.0);
    if (training == DType::kUInt8 && train)
      for (double& value : values) value = std::round(value);
    trial.Step(train ? Mode::kTrain : Mode::kEval);
    trial.Sample("sample/net_input_0", {32, 4, 4, 1}, values, train ? training : evaluation);
  }
  return Findings(trial);
}

TEST(TrainValSkew, IntegersThatKerasMakesFloatsOf_AreCompared) {
  const auto document = [](const char* framework, const char* type, const char* layer) {
    return std::string(R"({"framework": ")") + framework + R"(", "models": [{"name": "net", "modules": [
      {"path": "", "type": ")" +
           type + R"("}, {"path": "first", "type": ")" + layer + R"("}]}]})";
  };
  const std::string keras = document("keras", "Sequential", "Linear");
  const auto findings = Pixels(DType::kFloat32, DType::kUInt8, false, keras);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "skew");
  EXPECT_NE(findings[0].causes.at(0).find("255"), std::string::npos);
  EXPECT_EQ(Pixels(DType::kFloat32, DType::kInt64, false, keras).size(), 1U);
  EXPECT_EQ(Pixels(DType::kUInt8, DType::kUInt8, false, keras).size(), 1U);
  EXPECT_TRUE(Pixels(DType::kFloat32, DType::kFloat32, true, keras).empty());
  EXPECT_TRUE(Pixels(DType::kInt64, DType::kInt64, false, keras).empty());  // ids, for all that is known
  EXPECT_TRUE(
      Pixels(DType::kUInt8, DType::kUInt8, false, document("keras", "Functional", "Embedding")).empty());
  // A model of its own, and torch's, may divide bytes itself.
  EXPECT_TRUE(Pixels(DType::kFloat32, DType::kUInt8, false, document("keras", "Net", "Linear")).empty());
  EXPECT_TRUE(
      Pixels(DType::kFloat32, DType::kUInt8, false, document("torch", "Sequential", "Linear")).empty());
}

TEST(TrainValSkew, AModelThatGoesOnFromItsOwnResults_IsNotJudged) {
  for (const char* model : {"Net", "Other"}) {
    FakeTrial trial =
        Story({0, 6}, 99, false, std::string(R"({"kind": "made_inputs", "model": ")") + model + "\"}");
    EXPECT_EQ(Findings(trial).size(), model == std::string("Net") ? 0U : 1U);
  }
  EXPECT_EQ(Findings(Story({0, 6}, 99, false, R"({"kind": "made_inputs", "model": 3})")).size(), 1U);
}

TEST(TrainValSkew, AlikeDrift_FewFeatures_OtherTasks_AndRareFlags_AreSilent) {
  EXPECT_TRUE(Findings(Story({})).empty());
  EXPECT_TRUE(Findings(Story({1, 1.8})).empty());
  EXPECT_TRUE(Findings(Story({9, 1}, 2)).empty());
  EXPECT_TRUE(Findings(Story({9, 9, 4})).empty());
  EXPECT_TRUE(Findings(Story({0, 1}, 99, true)).empty());
}

// Twenty features, the first `lost` of which are constant in training. In evaluations they vary, or
// (`rarely`) do so in one row per batch only.
FakeTrial Lost(std::size_t lost, bool rarely = false, int batches = 20) {
  FakeTrial trial;
  std::mt19937 noise(5);
  std::normal_distribution<double> normal(0, 1);
  for (int step = 0; step <= batches; ++step) {
    const bool train = step < batches;
    trial.Step(train ? Mode::kTrain : Mode::kEval);
    std::vector<double> values;
    for (int row = 0; row < 32; ++row) {
      for (std::size_t f = 0; f < 20; ++f) {
        const bool still = f < lost && (train || (rarely && row != 7));
        values.push_back(still ? 0 : normal(noise));
      }
    }
    trial.Sample("sample/Net_input_0", {32, 20}, values);
  }
  trial.Step();
  return trial;
}

TEST(TrainValSkew, ColumnsLostInTraining_AreNamed_OneOrRareOnesOrFewRowsAreSilent) {
  const auto findings = Findings(Lost(5));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "absent");
  EXPECT_NE(findings[0].what.find("5 of the 20"), std::string::npos) << findings[0].what;
  EXPECT_TRUE(Findings(Lost(1)).empty());
  EXPECT_TRUE(Findings(Lost(5, true)).empty());
  EXPECT_TRUE(Findings(Lost(5, false, 3)).empty());
}

TEST(TrainValSkew, PreparationThatIsRepaired_Heals) {
  FakeTrial trial = Story({4, 1});
  std::mt19937 noise(6);
  std::normal_distribution<double> normal(3, 2);
  for (const Mode mode : {Mode::kTrain, Mode::kEval, Mode::kTrain}) {
    std::vector<double> values(192);
    for (double& value : values) value = normal(noise);
    trial.Step(mode).Sample("sample/Net_input_0", {32, 6}, values);
  }
  EXPECT_TRUE(Findings(trial).at(0).healed);
}

// Which rows hold values of several samples, as after a reshape in place of a transposition.
enum class Mixed { kNone, kTraining, kEvaluations };

// Rows of eight features that share a cause (correlation 0.8) or, with `image`, images of 8 x 8 smooth
// values. With `noise`, training rows have noise of that deviation, as augmentation adds it.
FakeTrial Together(Mixed mixed, bool image = false, double noise = 0, int rows = 32, double level = 0) {
  FakeTrial trial;
  std::mt19937 random(5);
  std::normal_distribution<double> normal(0, 1);
  const std::size_t width = image ? 64 : 8;
  const auto count = static_cast<std::size_t>(rows);
  for (int step = 0; step < 60; ++step) {
    const bool train = step % 20 < 12;
    std::vector<double> values(count * width);
    for (std::size_t row = 0; row < count; ++row) {
      const double cause = normal(random);
      double before = 0;
      for (std::size_t f = 0; f < width; ++f) {
        const double own = normal(random);
        before = image && f % 8 > 0 ? 0.95 * before + 0.31 * own : own;
        double value = image ? before : 0.9 * cause + 0.45 * own;
        if (train) value += level + noise * normal(random);
        const bool other = mixed == (train ? Mixed::kTraining : Mixed::kEvaluations);
        values[other ? f * count + row : row * width + f] = value;
      }
    }
    const std::vector<std::int64_t> shape =
        image ? std::vector<std::int64_t>{rows, 1, 8, 8} : std::vector<std::int64_t>{rows, 8};
    trial.Step(train ? Mode::kTrain : Mode::kEval).Sample("sample/Net_input_0", shape, values);
  }
  return trial;
}

TEST(TrainValSkew, RowsThatHoldValuesOfSeveralSamples_AreNamed) {
  for (const bool image : {false, true}) {
    for (const Mixed mixed : {Mixed::kTraining, Mixed::kEvaluations}) {
      const auto findings = Findings(Together(mixed, image));
      ASSERT_EQ(findings.size(), 1U) << image;
      EXPECT_EQ(findings[0].cause, "mixed");
      const std::string where = mixed == Mixed::kTraining ? "but not in training" : "but not in evaluations";
      EXPECT_NE(findings[0].what.find(where), std::string::npos) << findings[0].what;
    }
  }
}

TEST(TrainValSkew, RowsAsTheyAre_Noise_FewRows_AndOtherSamples_AreSilent) {
  for (const bool image : {false, true}) {
    EXPECT_TRUE(Findings(Together(Mixed::kNone, image)).empty());
    EXPECT_TRUE(Findings(Together(Mixed::kNone, image, 1)).empty());
    EXPECT_TRUE(Findings(Together(Mixed::kTraining, image, 0, 2)).empty());
    EXPECT_TRUE(Findings(Together(Mixed::kTraining, image, 0, 32, 1)).empty());
  }
}

// Rows of independent values, `different` of them, which come again in turn; evaluations have new ones. The
// last feature is a flag of one row in twelve, and rows lie around 3.
FakeTrial SeenAgain(std::size_t different, unsigned seed, std::size_t batch) {
  FakeTrial trial;
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(3, 1);
  constexpr std::size_t kWidth = 16;
  const auto row_of = [&](std::size_t number) {
    std::vector<double> row(kWidth);
    for (double& value : row) value = normal(random);
    row.back() = number % 12 == 11 ? 1 : 0;
    return row;
  };
  std::vector<std::vector<double>> rows;
  for (std::size_t i = 0; i < different; ++i) rows.push_back(row_of(i));
  std::size_t next = 0;
  for (int step = 0; step < 80; ++step) {
    const bool train = step % 20 < 17;
    std::vector<double> values;
    for (std::size_t i = 0; i < batch; ++i) {
      const std::vector<double> row = train ? rows[next++ % different] : row_of(i);
      values.insert(values.end(), row.begin(), row.end());
    }
    trial.Step(train ? Mode::kTrain : Mode::kEval)
        .Sample("sample/Net_input_0", {static_cast<std::int64_t>(batch), static_cast<std::int64_t>(kWidth)},
                values);
  }
  return trial;
}

// What goes together in them by chance does so each time they are seen.
TEST(TrainValSkew, FewRowsThatComeAgainAtEveryStep_CountOnce) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    for (const std::size_t different : {5U, 10U, 20U, 40U})
      EXPECT_TRUE(Findings(SeenAgain(different, seed, 40)).empty()) << different << " " << seed;
  }
}

struct TargetSide {
  double shift = 0, scale = 1;  // of evaluations' targets
  double outputs_shift = 0, outputs_scale = 1;
  double inputs_shift = 0;
  double learnt = 0.9;  // share of the targets that outputs have
};

// A regression whose targets, in evaluations, are scaled otherwise.
std::vector<Finding> TargetStory(const TargetSide& side, int calls = 1) {
  FakeTrial trial;
  std::mt19937 noise(5);
  std::normal_distribution<double> normal(0, 1);
  for (int step = 0; step < 60; ++step) {
    const bool train = step % 20 < 16;
    trial.Step(train ? Mode::kTrain : Mode::kEval);
    std::vector<double> inputs;
    std::vector<double> outputs;
    std::vector<double> targets;
    for (int row = 0; row < 40; ++row) {
      const double value = normal(noise);
      inputs.push_back(value + (train ? 0 : side.inputs_shift));
      targets.push_back(train ? value : side.shift + side.scale * value);
      const double output = side.learnt * value;
      outputs.push_back(train ? output : side.outputs_shift + side.outputs_scale * output);
    }
    trial.Sample("sample/Net_input_0", {40, 1}, inputs);
    for (int call = 0; call < (train ? calls : 1); ++call) {
      trial.Sample("sample/MSELoss_input_" + std::to_string(2 * call), {40}, outputs);
      trial.Sample("sample/MSELoss_input_" + std::to_string(2 * call + 1), {40}, targets);
      trial.Loss(1, "MSELoss_output_" + std::to_string(call));
    }
  }
  return Findings(trial);
}

TEST(TrainValSkew, TargetsThatAreScaledOtherwise_AreToldOnce) {
  for (const TargetSide side : {TargetSide{0, 0.25}, TargetSide{300, 50}, TargetSide{3, 1}}) {
    const auto findings = TargetStory(side);
    ASSERT_EQ(findings.size(), 1U) << side.shift;
    EXPECT_EQ(findings[0].cause, "targets");
    EXPECT_EQ(findings[0].tensor, "MSELoss");
    EXPECT_EQ(findings[0].step, 15);
  }
}

TEST(TrainValSkew, TargetsThatOutputsOrInputsFollow_AreSilent) {
  EXPECT_TRUE(TargetStory({}).empty());
  EXPECT_TRUE(TargetStory({0, 1.5}).empty());
  EXPECT_TRUE(TargetStory({300, 50, 300, 50}).empty());       // turned back into units
  EXPECT_TRUE(TargetStory({3, 1, 2, 1}).empty());             // another season that the model foresees
  EXPECT_TRUE(TargetStory({3, 1, 0, 1, 1}).empty());          // other data
  EXPECT_TRUE(TargetStory({0, 0.25, 0, 1, 0, 0.1}).empty());  // nothing learnt yet
  EXPECT_TRUE(TargetStory({0, 0.25}, 2).empty());             // which of the two is evaluated?
}

// Turns of six passes without gradients and six training steps. The rows of the passes are learnt next
// (`learnt`), and grow from turn to turn; `labelled`: the passes compute a loss.
FakeTrial Collects(bool learnt, bool labelled) {
  FakeTrial trial;
  std::mt19937 noise(3);
  std::normal_distribution<double> normal(0, 1);
  for (int turn = 0; turn < 6; ++turn) {
    std::vector<std::vector<double>> batches(6);
    for (auto& batch : batches) {
      for (int i = 0; i < 64 * 6; ++i) batch.push_back(normal(noise) * std::pow(4.0, turn));
    }
    for (int i = 0; turn > 0 && i < 6; ++i) {
      trial.Step(Mode::kEval).Sample("sample/Net_input_0", {64, 6}, batches[static_cast<std::size_t>(i)]);
      if (labelled) trial.Loss(1);
    }
    for (int i = 5; i >= 0; --i) {
      std::vector<double> rows = batches[static_cast<std::size_t>(i)];
      for (double& value : rows) value = learnt ? value : normal(noise);
      trial.Step().Loss(1).Sample("sample/Net_input_0", {64, 6}, rows);
    }
  }
  trial.Step();
  return trial;
}

TEST(TrainValSkew, RowsThatAPolicyCollects_AreNoEvaluation) {
  EXPECT_TRUE(Findings(Collects(true, false)).empty());
  EXPECT_FALSE(Findings(Collects(false, false)).empty());
  EXPECT_FALSE(Findings(Collects(true, true)).empty());
}

}  // namespace
}  // namespace luff::rules::train_val_skew_test
