#include <cmath>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::symmetric_units_test {
namespace {

using format::Role;
using testing::FakeTrial;
using testing::FindingsOf;

// A weight matrix: its statistics, and sums per position along axis 0.
FakeTrial& Matrix(FakeTrial& trial, const std::string& name, const std::vector<std::vector<double>>& rows) {
  std::vector<double> values;
  FakeTrial::UnitEntry entry{trial.Define(name, Role::kWeight, "Linear"), 0, {}};
  entry.counts.axis = UnitAxis::kAllButFirst;
  entry.counts.values_per_unit = rows.size();
  entry.counts.sum.resize(rows.front().size());
  entry.counts.positive.resize(rows.front().size());
  entry.counts.zero.resize(rows.front().size());
  for (const std::vector<double>& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) entry.counts.sum[i] += row[i];
    values.insert(values.end(), row.begin(), row.end());
  }
  trial.Tensor(name, Role::kWeight, values);
  trial.Last().units.push_back(std::move(entry));
  return trial;
}

TEST(SymmetricUnits, RowsThatStayEqualWhileTheyMove_Stop) {
  FakeTrial trial;
  for (int step = 0; step < 4; ++step) {
    const double moved = 0.05 + 0.01 * step;
    Matrix(trial.Step(), "a.weight", {{moved, 0.05}, {moved, 0.05}, {moved, 0.05}});
  }
  const auto findings = FindingsOf(trial, "SymmetricUnits", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 2);
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].tensor, "a.weight");
}

TEST(SymmetricUnits, EqualRowsThatDoNotMove_OrPartAfterOneUpdate_AreSilent) {
  FakeTrial frozen;
  FakeTrial last_layer;
  for (int step = 0; step < 4; ++step) {
    Matrix(frozen.Step(), "a.weight", {{1, 1}, {1, 1}});
    Matrix(last_layer.Step(), "a.weight", {{0.1 + 0.01 * step, 0.1}, {0.1 - 0.01 * step, 0.1}});
  }
  EXPECT_TRUE(FindingsOf(frozen, "SymmetricUnits", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(last_layer, "SymmetricUnits", ParameterSet::kLuff).empty());
}

// Two layers; `moves`: of the second one, from the first update on.
std::vector<Finding> OfZeros(double first, double moves, int steps = 4, int layers = 2) {
  FakeTrial trial;
  for (int step = 0; step < steps; ++step) {
    trial.Step();
    if (layers > 1) Matrix(trial, "a.weight", {{first, -first}, {first, 0.5 * first}});
    Matrix(trial, "b.weight", {{moves * step, 0}, {0, -moves * step}});
  }
  return FindingsOf(trial, "SymmetricUnits", ParameterSet::kLuff);
}

TEST(SymmetricUnits, AllWeightsThatStayZero_Stop) {
  const auto findings = OfZeros(0, 0);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "zeros");
  EXPECT_EQ(findings[0].severity, Severity::kStop);
  EXPECT_EQ(findings[0].step, 3);
  EXPECT_EQ(findings[0].other_tensors.size(), 1U);
}

TEST(SymmetricUnits, LayersThatMayBeginAtZero_AreSilent) {
  EXPECT_TRUE(OfZeros(0.5, 0).empty());      // a head of zeros that nothing moves has layers before it
  EXPECT_TRUE(OfZeros(0, 0.1).empty());      // behind a sigmoid, say
  EXPECT_TRUE(OfZeros(0, 0, 4, 1).empty());  // a logistic regression
  EXPECT_TRUE(OfZeros(0, 0, 3).empty());     // too early
}

TEST(SymmetricUnits, ZerosAndOneRow_AreNotJudged) {
  FakeTrial trial;
  for (int step = 0; step < 4; ++step) {
    Matrix(trial.Step(), "zero.weight", {{0, 0}, {0, 0}});
    Matrix(trial, "row.weight", {{0.1 * step, 0.2}});
  }
  EXPECT_TRUE(FindingsOf(trial, "SymmetricUnits", ParameterSet::kLuff).empty());
}

// The same captured form gives the gain of a layer.
TEST(PoorWeightInitialization, OneLayerFarTooLarge_WarnsAtTheFourthCapture) {
  FakeTrial trial;
  for (int step = 0; step < 4; ++step) Matrix(trial.Step(), "a.weight", {{200, -190}, {-210, 180}});
  const auto findings = FindingsOf(trial, "PoorWeightInitialization", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 3);
  EXPECT_NEAR(findings[0].evidence[0].value, std::sqrt((200. * 200 + 190 * 190 + 210 * 210 + 180 * 180) / 2),
              1e-9);
}

TEST(PoorWeightInitialization, WeightsThatAreRuinedByThem_AreToldAtOnceBeneathWhatTheyDid) {
  FakeTrial ruined, usual;
  for (int step = 0; step < 3; ++step) {
    const double then = step == 0 ? 200 : NAN;
    Matrix(ruined.Step().Loss(step == 0 ? HUGE_VAL : NAN), "a.weight", {{then, -190}, {-210, 180}});
    Matrix(usual.Step().Loss(step == 0 ? HUGE_VAL : NAN), "a.weight",
           {{step == 0 ? 0.4 : NAN, -0.4}, {0.4, 0.4}});
  }
  const auto findings = FindingsOf(ruined, "NonFinite,PoorWeightInitialization", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[1].rule, "PoorWeightInitialization");
  EXPECT_EQ(findings[1].step, 1);
  EXPECT_EQ(findings[1].severity, Severity::kWarn);
  EXPECT_EQ(findings[1].leader, findings[0].id);
  const auto others = FindingsOf(usual, "NonFinite,PoorWeightInitialization", ParameterSet::kLuff);
  ASSERT_EQ(others.size(), 1U);
  EXPECT_EQ(others[0].rule, "NonFinite");
}

TEST(PoorWeightInitialization, TwoLayersTooLargeTogether_AreFound_OneWithAUsualOneIsNot) {
  FakeTrial both;
  FakeTrial first;
  for (int step = 0; step < 4; ++step) {
    Matrix(both.Step(), "a.weight", {{12, -11}, {-13, 12}});
    Matrix(both, "b.weight", {{7, -6}, {-6, 7}});
    Matrix(first.Step(), "a.weight", {{12, -11}, {-13, 12}});
    Matrix(first, "b.weight", {{0.4, -0.4}, {0.4, -0.4}});
  }
  const auto findings = FindingsOf(both, "PoorWeightInitialization", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].tensor, "a.weight");
  EXPECT_EQ(findings[0].other_tensors, std::vector<std::string>{"b.weight"});
  EXPECT_EQ(findings[0].what, "2 layers multiply the size of what they get by about 13");
  EXPECT_TRUE(FindingsOf(first, "PoorWeightInitialization", ParameterSet::kLuff).empty());
}

// Layers of these sizes, and a loss that falls to a share of its first value.
std::vector<Finding> OfSizes(double a, double b, double left, bool loads = false, int steps = 48) {
  FakeTrial trial;
  for (int step = 0; step < steps; ++step) {
    trial.Step().Loss(2.3 * (1 - (1 - left) * step / 48));
    if (loads && step == 0) trial.EventJson(R"({"kind": "load_state_dict", "matched": 2})");
    if (step >= 4) continue;
    Matrix(trial, "a.weight", {{a, -a}, {a, 0.9 * a}});
    Matrix(trial, "b.weight", {{b, -b}, {0.8 * b, b}});
  }
  return FindingsOf(trial, "PoorWeightInitialization", ParameterSet::kLuff);
}

TEST(PoorWeightInitialization, ItHealsOnceSomethingIsLearnt) {
  FakeTrial trial;
  for (int step = 0; step < 96; ++step) {
    trial.Step().Loss(step < 48 ? 2.3 : 2.3 / (step - 46));
    if (step >= 4) continue;
    for (const char* name : {"a.weight", "b.weight"}) Matrix(trial, name, {{1e-3, -1e-3}, {1e-3, 9e-4}});
  }
  const auto findings = FindingsOf(trial, "PoorWeightInitialization", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 32);
  EXPECT_TRUE(findings[0].healed);
}

TEST(PoorWeightInitialization, EveryLayerFarTooSmall_IsToldIfNothingIsLearntAtFirst) {
  const auto findings = OfSizes(1e-4, 1e-3, 1);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "tiny");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_EQ(findings[0].step, 32);
  EXPECT_TRUE(OfSizes(1e-4, 1e-3, 0.5).empty());           // it learns all the same
  EXPECT_TRUE(OfSizes(1e-4, 0.5, 1).empty());              // a head, an adapter, a gate
  EXPECT_TRUE(OfSizes(0, 1e-3, 1).empty());                // zeros are another matter
  EXPECT_TRUE(OfSizes(1e-4, 1e-3, 1, true).empty());       // loaded
  EXPECT_TRUE(OfSizes(1e-4, 1e-3, 1, false, 24).empty());  // too early
}

// A regression of 16 rows whose outputs have this deviation beside targets of another, and a layer of this
// size.
std::vector<Finding> Regression(double outputs, double targets, double weight, bool updated = false) {
  FakeTrial trial;
  trial.SetDocument("model", R"({"models": [{"name": "Net", "modules": [
    {"path": "norm", "type": "LayerNorm", "name": "Net_norm"}]}]})");
  for (int step = 0; step < 5; ++step) {
    std::vector<double> y;
    std::vector<double> z;
    double error = 0;
    for (int i = 0; i < 16; ++i) {
      y.push_back(targets * std::sin(i));
      z.push_back(outputs * std::cos(1.7 * i));
      error += (z.back() - y.back()) * (z.back() - y.back()) / 16;
    }
    Matrix(trial.Step(query::Mode::kTrain, -1, updated ? step + 1 : step), "a.weight",
           {{weight, -weight}, {-weight, weight}})
        .Loss(error, "MSELoss_output_0")
        .Sample("sample/MSELoss_input_0", {16}, z)
        .Sample("sample/MSELoss_input_1", {16}, y);
  }
  return FindingsOf(trial, "PoorWeightInitialization", ParameterSet::kLuff);
}

TEST(PoorWeightInitialization, OutputsFarWiderThanTheTargets_NameTheLayer_AlsoBehindNormalisation) {
  const auto findings = Regression(40, 1, 10);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "scale");
  EXPECT_EQ(findings[0].tensor, "a.weight");
  EXPECT_NE(findings[0].why.find("times as widely"), std::string::npos);
  EXPECT_TRUE(Regression(0.6, 1e-3, 0.4).empty());   // targets that are tiny on purpose
  EXPECT_TRUE(Regression(1, 1, 10).empty());         // weights that are scaled where they are used
  EXPECT_TRUE(Regression(1, 1e-3, 10).empty());      // the same with targets that are tiny on purpose
  EXPECT_TRUE(Regression(40, 0, 10).empty());        // residuals that should vanish
  EXPECT_TRUE(Regression(40, 1, 10, true).empty());  // not the initialisation
  EXPECT_TRUE(Regression(4, 1, 10).empty());
}

TEST(PoorWeightInitialization, LoadedWeights_AndUsualGains_AreSilent) {
  FakeTrial loaded;
  FakeTrial usual;
  for (int step = 0; step < 4; ++step) {
    Matrix(loaded.Step(), "a.weight", {{200, -190}, {-210, 180}});
    if (step == 0) loaded.EventJson(R"({"kind": "load_state_dict", "matched": 2})");
    Matrix(usual.Step(), "a.weight", {{1.2, -1}, {-0.9, 1.1}});
  }
  EXPECT_TRUE(FindingsOf(loaded, "PoorWeightInitialization", ParameterSet::kLuff).empty());
  EXPECT_TRUE(FindingsOf(usual, "PoorWeightInitialization", ParameterSet::kLuff).empty());
}

}  // namespace
}  // namespace luff::rules::symmetric_units_test
