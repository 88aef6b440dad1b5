#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::input_scale_test {
namespace {

using format::Role;
using testing::FakeTrial;

// What a feature is like.
struct Feature {
  double mean = 0, deviation = 1;
};

// Eight rows of features a step; the first layer gets the input times `passed`, less `taken`.
FakeTrial Rows(const std::vector<Feature>& features, double passed = 1, DType dtype = DType::kFloat32,
               double taken = 0) {
  FakeTrial trial;
  std::mt19937 noise(3);
  std::normal_distribution<double> normal(0, 1);
  trial.Define("0_input_0", Role::kInput, "Linear");
  for (int step = 0; step < 6; ++step) {
    std::vector<double> values;
    std::vector<double> inside;
    for (int row = 0; row < 8; ++row) {
      for (const auto& [mean, deviation] : features) {
        values.push_back(mean + deviation * normal(noise));
        inside.push_back(passed * values.back() - taken);
      }
    }
    trial.Step().Loss(1).Sample("sample/Net_input_0", {8, static_cast<std::int64_t>(features.size())}, values,
                                dtype);
    if (step > 0) trial.Tensor("0_input_0", Role::kInput, inside);  // the hook does not see step 0
  }
  return trial;
}

FakeTrial Story(const std::vector<double>& scales, double passed = 1, DType dtype = DType::kFloat32) {
  std::vector<Feature> features;
  for (const double scale : scales) features.push_back({0, scale});
  return Rows(features, passed, dtype);
}

std::vector<Finding> Findings(const FakeTrial& trial) {
  return testing::FindingsOf(trial, "InputScale", ParameterSet::kLuff);
}

TEST(InputScale, RawTable_IsNamedAtTheFirstStepWhoseLayersAreSeen) {
  const auto findings = Findings(Story({0.01, 1, 20, 4000}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 1);
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].other_tensors, std::vector<std::string>{"0_input_0"});
  EXPECT_NE(findings[0].what.find("differ in scale"), std::string::npos);
}

// The remedy for eight rows of features of 60 a step whose targets are `target`.
std::string RemedyWithTargets(double target) {
  FakeTrial trial;
  std::mt19937 noise(3);
  std::normal_distribution<double> normal(0, 60);
  trial.Define("0_input_0", Role::kInput, "Linear");
  for (int step = 0; step < 6; ++step) {
    std::vector<double> values(16);
    for (double& value : values) value = normal(noise);
    trial.Step()
        .Loss((target - 0.5) * (target - 0.5), "MSELoss_output_0")
        .Sample("sample/Net_input_0", {8, 2}, values);
    if (step > 0) trial.Tensor("0_input_0", Role::kInput, values);
    trial.Sample("sample/MSELoss_input_0", {8, 1}, std::vector<double>(8, 0.5));
    trial.Sample("sample/MSELoss_input_1", {8, 1}, std::vector<double>(8, target));
  }
  const auto findings = Findings(trial);
  return findings.size() == 1 ? findings[0].remedy : std::string();
}

// Inputs that are standardised alone leave a model farther from targets of their size than before.
TEST(InputScale, TargetsOfTheSizeOfTheInputs_AreToBeScaledWithThem) {
  EXPECT_NE(RemedyWithTargets(90).find("the targets, too (of the order of 90)"), std::string::npos);
  EXPECT_NE(RemedyWithTargets(1).find("standardise"), std::string::npos);
  EXPECT_EQ(RemedyWithTargets(1).find("targets"), std::string::npos);
}

TEST(InputScale, TinyInputs_AreNamed) { EXPECT_EQ(Findings(Story({1e-5, 1e-4})).size(), 1U); }

TEST(InputScale, OrdinaryInputs_Ids_AndInputsThatTheModelScales_AreSilent) {
  EXPECT_TRUE(Findings(Story({0.05, 0.5, 1, 16})).empty());
  EXPECT_TRUE(Findings(Story({100, 100}, 0.01, DType::kInt64)).empty());
  EXPECT_TRUE(Findings(Story({100, 100}, 1.0 / 255)).empty());
}

// Four images of bytes a step, of `batch`; the first layer gets them times `passed`.
std::vector<Finding> Images(DType dtype, double passed = 1, std::int64_t batch = 4,
                            const std::string& layer = "Conv2d") {
  FakeTrial trial;
  std::mt19937 noise(3);
  trial.Define("0_input_0", Role::kInput, layer);
  for (int step = 0; step < 6; ++step) {
    std::vector<double> values;
    std::vector<double> inside;
    for (int i = 0; i < 4 * 64; ++i) values.push_back(static_cast<double>(noise() % 256));
    for (int i = 0; i < 64 * batch; ++i) inside.push_back(passed * values[static_cast<std::size_t>(i % 256)]);
    trial.Step().Loss(1).Sample("sample/Net_input_0", {4, 8, 8}, values, dtype, {batch, 8, 8});
    if (step > 0) trial.Tensor("0_input_0", Role::kInput, inside);
  }
  return Findings(trial);
}

TEST(InputScale, WholeNumbersThatALayerMultiplies_AreNamed_IdsAreNot) {
  EXPECT_EQ(Images(DType::kUInt8).size(), 1U);
  EXPECT_EQ(Images(DType::kUInt8, 1, 16).size(), 1U);  // of a part of the batch, images of bytes
  EXPECT_EQ(Images(DType::kInt64).size(), 1U);
  EXPECT_EQ(Findings(Story({100, 4000}, 1, DType::kInt32)).size(), 1U);  // a table of whole numbers
  EXPECT_TRUE(Images(DType::kUInt8, 1.0 / 255).empty());
  EXPECT_TRUE(Images(DType::kInt64, 1, 16).empty());  // it is not known whether the layer gets these
  EXPECT_TRUE(Images(DType::kUInt8, 1, 4, "Embedding").empty());
  EXPECT_TRUE(Images(DType::kBool).empty());
  EXPECT_TRUE(Findings(Story({1, 10}, 1, DType::kInt64)).empty());  // small ones
}

TEST(InputScale, LayerThatIsFollowedByANorm_IsSilent) {
  const auto with = [](const std::string& next, const std::vector<Feature>& features) {
    FakeTrial trial = Rows(features);
    trial.SetDocument("model",
                      R"({"models": [{"name": "Net", "modules": [{"path": "0", "name": "0", "type": "Linear"},
      {"path": "1", "name": "1", "type": ")" +
                          next + R"("}, {"path": "2", "name": "2", "type": "Linear"}],
      "parameters": [{"path": "0.weight"}, {"path": "2.weight"}]}]})");
    return Findings(trial);
  };
  for (const Feature feature : {Feature{0, 200}, Feature{20, 3}}) {
    EXPECT_TRUE(with("BatchNorm1d", {feature, feature}).empty());
    EXPECT_EQ(with("ReLU", {feature, feature}).size(), 1U);
  }
}

TEST(InputScale, OneFeatureThatDrownsTheOthers_IsNamedThoughANormFollows) {
  const auto with = [](const std::vector<Feature>& features) {
    FakeTrial trial = Rows(features);
    trial.SetDocument("model", R"({"models": [{"name": "Net", "modules": [
      {"path": "0", "name": "0", "type": "Linear"}, {"path": "1", "name": "1", "type": "LayerNorm"}],
      "parameters": [{"path": "0.weight"}]}]})");
    return Findings(trial);
  };
  const auto findings = with({{0, 1}, {0, 1e5}, {0, 1}, {0, 2}});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "drowned");
  EXPECT_EQ(findings[0].step, 3);                                   // 32 rows
  EXPECT_TRUE(with({{0, 1}, {0, 1e5}, {0, 3e4}, {0, 1}}).empty());  // two of them
  EXPECT_TRUE(with({{0, 1}, {0, 300}, {0, 1}, {0, 2}}).empty());    // a norm and an optimizer cope
  EXPECT_TRUE(with({{0, 0.0001}, {0, 1}, {0, 0.0001}}).empty());    // others that are hardly there
  EXPECT_TRUE(with({{0, 1}, {1e5, 1}, {0, 1}, {0, 2}}).empty());    // far from 0: the norm takes it away
  EXPECT_TRUE(with({{0, 1e5}, {3, 0}, {0, 0}}).empty());            // nothing else varies
}

// Eight rows of 32 bytes each, times `scale`.
std::vector<Finding> Bytes(double scale, int levels = 256, double off = 0) {
  FakeTrial trial;
  trial.Define("0_input_0", Role::kInput, "Linear");
  for (int step = 0; step < 6; ++step) {
    std::vector<double> values;
    for (int i = 0; i < 256; ++i)
      values.push_back(static_cast<float>(scale * ((i * 37 + step * 11) % levels)) + off);
    trial.Step().Loss(1).Sample("sample/Net_input_0", {8, 32}, values);
    if (step > 0) trial.Tensor("0_input_0", Role::kInput, values);
  }
  return Findings(trial);
}

TEST(InputScale, BytesThatWereDividedTwice_AreNamed) {
  const auto findings = Bytes(1.0 / 255 / 255);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "scaled_twice");
  EXPECT_TRUE(Bytes(1.0 / 255).empty());
  ASSERT_EQ(Bytes(1.0 / 255 / 255, 8).size(), 1U);
  EXPECT_EQ(Bytes(1.0 / 255 / 255, 8)[0].cause, "scale");  // few levels, of anything
  EXPECT_TRUE(Bytes(1.0 / 255 / 255, 256, 5e-6).empty());  // between them
}

// Twelve steps of a model's inputs whose targets are `targets`.
std::vector<Finding> Zeros(double other, double target) {
  FakeTrial trial;
  for (int step = 0; step < 12; ++step) {
    std::vector<double> targets(16, 1);
    targets[3] = target;
    trial.Step().Loss(1, "MSELoss_output_0");
    trial.Sample("sample/Net_input_0", {16, 2}, std::vector<double>(32, 0));
    trial.Sample("sample/Net_input_1", {16, 1}, std::vector<double>(16, step == 5 ? other : 0));
    trial.Sample("sample/MSELoss_input_0", {16}, std::vector<double>(16, 0));
    trial.Sample("sample/MSELoss_input_1", {16}, targets);
  }
  return Findings(trial);
}

TEST(InputScale, InputsThatAreAllZero_AreNamed_UnlessAnotherInputIsThere) {
  const auto findings = Zeros(0, 2);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "zero");
  EXPECT_EQ(findings[0].step, 7);
  EXPECT_TRUE(Zeros(1, 2).empty());  // the other input says something
  EXPECT_TRUE(Zeros(0, 1).empty());  // all rows shall give the same
}

TEST(InputScale, MeansOfTwentyAndDeviationsOfThree_AreNamedOnce) {
  for (const double sign : {1.0, -1.0}) {
    const auto findings = Findings(Rows({{20, 3}, {sign * 20, 3}, {20, 3}}));
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, "offset");
    EXPECT_EQ(findings[0].severity, Severity::kWarn);
    EXPECT_EQ(findings[0].step, 3);  // 32 rows
    EXPECT_EQ(findings[0].other_tensors, std::vector<std::string>{"0_input_0"});
    EXPECT_NE(findings[0].what.find("is not normalised"), std::string::npos);
    EXPECT_NEAR(findings[0].evidence[0].value, 6.7, 0.7);
  }
}

TEST(InputScale, MeansThatAreUsual_OrThatTheModelTakesAway_AreSilent) {
  const std::vector<std::vector<Feature>> usual = {
      {{0.13, 0.3}, {0.5, 0.3}},              // images of 0 to 1
      {{0.97, 0.12}, {0.99, 0.02}},           // white paper
      {{8, 4.6}, {12, 4}},                    // images of 0 to 16
      {{40, 12}, {45, 14}},                   // ages
      {{-25, 9}, {-20, 12}},                  // decibels
      {{9, 3}, {30, 5.6}, {0.2, 0.4}},        // counts
      {{37, 0.7}, {0, 1}, {0, 1}, {0, 1}},    // one column
      {{20, 3}, {20, 3}, {0, 15}, {-1, 12}},  // others vary as much
      {{5, 0.1}, {6, 0.01}},                  // logarithms
  };
  for (const auto& features : usual) EXPECT_TRUE(Findings(Rows(features)).empty()) << features[0].mean;
  EXPECT_TRUE(Findings(Rows({{20, 3}, {20, 3}}, 1, DType::kFloat32, 20)).empty());
  EXPECT_TRUE(Findings(Rows({{20, 3}, {20, 3}}, 1, DType::kInt64)).empty());
  EXPECT_TRUE(Findings(Rows({{20, 0}, {0, 1}})).empty());  // a constant
}

// A table of four columns, in the second of which a share of the rows has a code, or is made otherwise.
std::vector<Finding> Coded(double code, double share, double spread = 10, double digits = 0,
                           bool raw = false) {
  FakeTrial trial;
  std::mt19937 random(8);
  std::normal_distribution<double> normal(0, 1);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<std::vector<double>> rows;
  double mean = 0;
  double square = 0;
  for (int row = 0; row < 256; ++row) {
    double value = uniform(random) < share ? code : 45 + spread * uniform(random);
    if (digits > 0) value = std::round(value / digits) * digits;
    mean += value / 256;
    square += value * value / 256;
    rows.push_back({normal(random), value, normal(random), normal(random)});
  }
  for (int step = 0; step < 8; ++step) {
    std::vector<double> values;
    for (int row = 32 * step; row < 32 * (step + 1); ++row) {
      std::vector<double> one = rows[static_cast<std::size_t>(row)];
      if (!raw) one[1] = (one[1] - mean) / std::sqrt(square - mean * mean);
      values.insert(values.end(), one.begin(), one.end());
    }
    trial.Step().Loss(1).Sample("sample/Net_input_0", {32, 4}, values);
  }
  return Findings(trial);
}

TEST(InputScale, CodesForWhatIsMissing_AreNamed) {
  for (const double code : {-99999.0, 1e6}) {
    const auto findings = Coded(code, 0.06);
    ASSERT_EQ(findings.size(), 1U) << code;
    EXPECT_EQ(findings[0].cause, "missing_code");
    EXPECT_NE(findings[0].what.find("column 1"), std::string::npos) << findings[0].what;
    EXPECT_NE(findings[0].why.find("or a state"), std::string::npos) << findings[0].why;
    const auto raw = Coded(code, 0.06, 10, 0, true);
    ASSERT_FALSE(raw.empty()) << code;
    EXPECT_EQ(raw[0].cause, "missing_code");
    EXPECT_EQ(raw[0].why.find("or a state"), std::string::npos) << raw[0].why;
  }
}

TEST(InputScale, QuantitiesThatAreOff_AndPaddedRows_AreSilent) {
  EXPECT_TRUE(Coded(0, 0.3, 0.05).empty());  // 45.00 to 45.05, or off
  EXPECT_TRUE(Coded(0, 0.3, 1e-5).empty());  // one level, rounded
  // Rows of 3 to 12 numbers, padded by -9999.
  FakeTrial trial;
  std::mt19937 random(4);
  for (int step = 0; step < 12; ++step) {
    std::vector<double> values;
    for (int row = 0; row < 32; ++row) {
      const auto length = 3 + random() % 10;
      for (std::size_t i = 0; i < 12; ++i)
        values.push_back(i < length ? static_cast<double>(random() % 1000) / 1000 : -9999);
    }
    trial.Step().Loss(1).Sample("sample/Net_input_0", {32, 12}, values);
  }
  for (const Finding& finding : Findings(trial)) EXPECT_NE(finding.cause, "missing_code");
}

TEST(InputScale, ZerosForNone_RareOutliers_AndFlags_AreSilent) {
  EXPECT_TRUE(Coded(0, 0.3).empty());
  EXPECT_TRUE(Coded(-1, 0.3).empty());
  EXPECT_TRUE(Coded(-99999, 0.004).empty());
  EXPECT_TRUE(Coded(-999, 0).empty());
  EXPECT_TRUE(Coded(0, 0.5, 0.2, 1).empty());  // two values, or a few
  EXPECT_TRUE(Coded(-99999, 0.97).empty());    // a column that hardly anybody has
}

}  // namespace
}  // namespace luff::rules::input_scale_test
