#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::sample_mixing_test {
namespace {

using format::Role;
using testing::FakeTrial;
using Shape = std::vector<std::int64_t>;

std::vector<double> Values(const Shape& shape) {
  std::size_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = 0.01 * static_cast<double>(i % 97);
  return values;
}

std::vector<Finding> Recurrent(const Shape& input, const Shape& target, bool batch_first) {
  FakeTrial trial;
  trial.SetDocument("model",
                    std::string(R"({"models": [{"name": "Net", "modules": [{"path": "rnn", "name": "rnn",
    "type": "LSTM", "settings": {"batch_first": )") +
                        (batch_first ? "true" : "false") + "}}]}]}");
  trial.Define("rnn_input_0", Role::kInput, "LSTM");
  for (int step = 0; step < 4; ++step) {
    trial.Step()
        .Sample("rnn_input_0", input, Values(input))
        .Sample("sample/MSELoss_input_0", target, Values(target))
        .Sample("sample/MSELoss_input_1", target, Values(target))
        .Loss(1, "MSELoss_output_0");
  }
  return testing::FindingsOf(trial, "SampleMixing", ParameterSet::kLuff);
}

TEST(SampleMixing, RecurrenceOverTheBatch_IsNamedAtTheSecondStep) {
  const auto findings = Recurrent({32, 25, 1}, {32}, false);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "recurrence");
  EXPECT_EQ(findings[0].step, 1);
  EXPECT_EQ(Recurrent({25, 32, 1}, {32, 1}, true).size(), 1U);
}

TEST(SampleMixing, LegitimateLayouts_AreSilent) {
  EXPECT_TRUE(Recurrent({32, 25, 1}, {32}, true).empty());
  EXPECT_TRUE(Recurrent({25, 32, 1}, {32}, false).empty());
  EXPECT_TRUE(Recurrent({25, 32, 1}, {25, 32}, false).empty());
  EXPECT_TRUE(Recurrent({25, 32, 1}, {25 * 32}, false).empty());
  EXPECT_TRUE(Recurrent({25, 1, 1}, {25}, false).empty());   // one long series
  EXPECT_TRUE(Recurrent({25, 25, 1}, {25}, false).empty());  // both axes have one size
}

std::vector<Finding> Softmax(bool over_batch) {
  FakeTrial trial;
  for (int step = 0; step < 4; ++step) {
    std::vector<double> values(12 * 5);
    for (std::size_t i = 0; i < 12; ++i) {
      for (std::size_t j = 0; j < 5; ++j)
        values[5 * i + j] = std::sin(static_cast<double>(7 * i + 3 * j * j));
    }
    for (std::size_t outer = 0; outer < (over_batch ? 5U : 12U); ++outer) {
      double sum = 0;
      const std::size_t inner = over_batch ? 12 : 5;
      const auto at = [&](std::size_t k) { return over_batch ? 5 * k + outer : 5 * outer + k; };
      for (std::size_t k = 0; k < inner; ++k) sum += std::exp(values[at(k)]);
      for (std::size_t k = 0; k < inner; ++k) values[at(k)] -= std::log(sum);
    }
    trial.Step()
        .Sample("sample/NLLLoss_input_0", {12, 5}, values)
        .Sample("sample/NLLLoss_input_1", {12}, std::vector<double>(12, 1), DType::kInt64)
        .Loss(2, "NLLLoss_output_0");
  }
  return testing::FindingsOf(trial, "SampleMixing", ParameterSet::kLuff);
}

TEST(SampleMixing, SoftmaxOverTheBatch_IsNamed_OverClassesIsNot) {
  const auto findings = Softmax(true);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "softmax");
  EXPECT_TRUE(Softmax(false).empty());
}

TEST(SampleMixing, AModelThatAnswersOtherwiseWithOtherRows_IsTold) {
  const auto asked = [](const char* across) {
    FakeTrial trial;
    for (int step = 0; step < 6; ++step) {
      trial.Step().Loss(2);
      if (step == 3)
        trial.EventJson(std::string(R"({"kind": "causal", "step": 2, "sees": false, "across": )") + across +
                        "}");
    }
    return testing::FindingsOf(trial, "SampleMixing", ParameterSet::kLuff);
  };
  ASSERT_EQ(asked("0.5").size(), 1U);
  EXPECT_EQ(asked("0.5")[0].cause, "rows");
  EXPECT_TRUE(asked("1e-6").empty());
  EXPECT_TRUE(asked("null").empty());
}

TEST(SampleMixing, ASoftmaxAlongTheFirstAxis_IsNamedWhereTheModelSaysThatRowsMix) {
  const auto asked = [](const char* across, bool softmax) {
    FakeTrial trial;
    for (int step = 0; step < 6; ++step) {
      trial.Step().Loss(2);
      if (step == 1 && softmax) trial.EventJson(R"({"kind": "softmax_first_axis", "shape": [640, 10]})");
      if (step == 3)
        trial.EventJson(std::string(R"({"kind": "causal", "step": 2, "sees": false, "across": )") + across +
                        "}");
    }
    return testing::FindingsOf(trial, "SampleMixing", ParameterSet::kLuff);
  };
  const auto found = asked("0.5", true);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found[0].causes[0].find("(dim=0) of (640, 10)"), std::string::npos) << found[0].causes[0];
  EXPECT_EQ(found[0].causes.size(), 4U);
  EXPECT_EQ(found[0].remedy.find("give the softmax"), 0U);
  EXPECT_EQ(asked("0.5", false)[0].causes.size(), 3U);
  EXPECT_TRUE(asked("1e-6", true).empty());  // places lie first: nothing mixes
}

TEST(SampleMixing, WhatIsSharedOutAmongSamples_IsToldOfAnyModel_IfTheModelSaysSo) {
  const auto asked = [](const char* of, bool weighs, const char* across, const char* batch = "") {
    FakeTrial trial;
    if (*batch != 0)
      trial.SetDocument(
          "loaders",
          std::string(R"({"loaders": [{"number": 0, "type": "DataLoader", "batch_size": )") + batch + "}]}");
    for (int step = 0; step < 6; ++step) {
      trial.Step().Loss(2);
      if (step == 3)
        trial.EventJson(
            std::string(R"({"kind": "mixing", "step": 2, "rows": 64, "shape": [640, 10], "of": )") + of +
            R"(, "weighs": )" + (weighs ? "true" : "false") + R"(, "itself": 3.5, "across": )" + across +
            "}");
    }
    return testing::FindingsOf(trial, "SampleMixing", ParameterSet::kLuff);
  };
  const auto found = asked(R"("softmax")", true, "0.5");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].cause, "rows");
  EXPECT_EQ(found[0].severity, Severity::kWarn);
  EXPECT_NE(found[0].why.find("a softmax runs along the first axis (dim=0) of (640, 10)"), std::string::npos);
  EXPECT_NE(found[0].why.find("weighs values along another axis"), std::string::npos);
  const auto sum = asked(R"("sum")", true, "0.5");
  ASSERT_EQ(sum.size(), 1U);
  EXPECT_NE(sum[0].remedy.find("x.sum(-1"), std::string::npos);
  // Rows may be the places of one sample, unless they are those of a loader.
  EXPECT_TRUE(asked(R"("softmax")", false, "0.5").empty());
  EXPECT_TRUE(asked(R"("softmax")", false, "0.5", "32").empty());
  EXPECT_EQ(asked(R"("softmax")", false, "0.5", "64").size(), 1U);
  EXPECT_NE(asked(R"("max")", false, "0.5", "64")[0].why.find("a division by the largest value"),
            std::string::npos);
  const auto whole = asked(R"("sum", "whole": true)", false, "0.5", "64");
  ASSERT_EQ(whole.size(), 1U);
  EXPECT_NE(whole[0].why.find("all axes of"), std::string::npos);
  const auto length = asked(R"("norm")", false, "0.5", "64");
  ASSERT_EQ(length.size(), 1U);
  EXPECT_NE(length[0].remedy.find("F.normalize(x, dim=-1)"), std::string::npos);
  EXPECT_TRUE(asked(R"("softmax")", true, "1e-6").empty());  // along the places of each sample
  EXPECT_TRUE(asked("7", true, "0.5").empty());
  EXPECT_TRUE(asked(R"("softmax")", true, "null").empty());
}

// No loader is there: rows that the training itself gives again in other company are samples.
TEST(SampleMixing, SharesAmongRowsThatTheTrainingRegroups_AreTold) {
  enum class Rows { kSamples, kOfOneThing, kInOrder, kNew };
  const auto told = [](Rows rows) {
    FakeTrial trial;
    trial.Define("sample/Net_input_0", Role::kSample, "Net");
    std::mt19937 noise(3);
    constexpr int kBatch = 8, kAll = 64;
    std::vector<int> order(kAll);
    std::iota(order.begin(), order.end(), 0);
    for (int step = 0; step < 64; ++step) {
      const int at = step % (kAll / kBatch) * kBatch;
      if (at == 0 && rows == Rows::kSamples) std::shuffle(order.begin(), order.end(), noise);
      if (rows == Rows::kOfOneThing) std::shuffle(order.begin() + at, order.begin() + at + kBatch, noise);
      std::vector<double> values;
      for (int i = 0; i < kBatch; ++i) {
        const int row = rows == Rows::kNew ? step * kBatch + i : order[static_cast<std::size_t>(at + i)];
        values.insert(values.end(), {row * 1.0, row * 0.5 + 1});
      }
      trial.Step().Loss(2).Sample("sample/Net_input_0", {kBatch, 2}, values);
      if (step == 3)
        trial.EventJson(R"({"kind": "mixing", "step": 2, "rows": 8, "shape": [8, 16, 4], "of": "softmax",
          "weighs": false, "itself": 0.3, "across": 0.01})");
    }
    return testing::FindingsOf(trial, "SampleMixing", ParameterSet::kLuff);
  };
  const auto found = told(Rows::kSamples);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].cause, "rows");
  EXPECT_EQ(found[0].severity, Severity::kWarn);
  EXPECT_NE(found[0].why.find("in other company"), std::string::npos);
  EXPECT_TRUE(told(Rows::kOfOneThing).empty());  // the documents of a query, in any order
  EXPECT_TRUE(told(Rows::kInOrder).empty());
  EXPECT_TRUE(told(Rows::kNew).empty());
}

TEST(SampleMixing, AReshapeThatMovesTheBatch_IsTold_IfTheModelSaysSo) {
  const auto asked = [](const std::string& across, const std::string& shape = "[2, 32, 16]", int at = 66) {
    FakeTrial trial;
    for (int step = 0; step < at + 4; ++step) {
      trial.Step().Loss(2);
      if (step == at)
        trial.EventJson(
            R"({"kind": "mixing", "step": 64, "rows": 32, "itself": 0.1, "behind": [32, 32], "across": )" +
            across + R"(, "before": )" + shape + "}");
    }
    return testing::FindingsOf(trial, "SampleMixing", ParameterSet::kLuff);
  };
  const auto findings = asked("0.5");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "reshape");
  EXPECT_NE(findings[0].what.find("(2, 32, 16) to (32, 32)"), std::string::npos);
  EXPECT_EQ(asked("0.5", "[2, 32, 16]", 3).size(), 1U);
  EXPECT_EQ(asked("0.5", "[2, 32, 16]", 400).size(), 1U);  // steps are faster than the child
  EXPECT_TRUE(asked("0").empty());                         // sizes that agree by chance
  EXPECT_TRUE(asked("null").empty());
  EXPECT_TRUE(asked("0.5", "[2, \"x\"]").empty());
  EXPECT_TRUE(asked("0.5", "3").empty());
  EXPECT_TRUE(asked("0.5", "[1,1,1,1,1,1,1,1,1]").empty());
}

std::vector<Finding> Padded(const std::string& change, bool differ, int at = 3, const char* rows = "6") {
  FakeTrial trial;
  for (int step = 0; step < at + 8; ++step) {
    const std::int64_t length = differ ? 7 + step % 3 : 9;
    trial.Step().Loss(2);
    trial.Sample("sample/Net_input_0", {4, length}, Values({4, length}), DType::kInt64);
    if (step == at)
      trial.EventJson(R"({"kind": "padding", "step": 2, "length": 9, "shortest": 2, "least": 0.2, "rows": )" +
                      std::string(rows) + R"(, "change": )" + change + "}");
  }
  return testing::FindingsOf(trial, "SampleMixing", ParameterSet::kLuff);
}

TEST(SampleMixing, AnswersThatDependOnPadding_AreTold_WhereBatchesHaveUnlikeLengths) {
  const auto findings = Padded("1.6", true);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "padding");
  EXPECT_EQ(findings[0].step, 3);
  EXPECT_EQ(Padded("1.6", true, 200).size(), 1U);   // steps are faster than the child
  EXPECT_EQ(Padded("1.6", true, 0).at(0).step, 1);  // the second length comes later
  EXPECT_TRUE(Padded("1.6", false).empty());        // each batch is padded to one length
  EXPECT_TRUE(Padded("0.6", true).empty());         // a maximum over places, say
  EXPECT_TRUE(Padded("0", true).empty());
  EXPECT_TRUE(Padded("null", true).empty());
  EXPECT_TRUE(Padded("1e400", true).empty());
  EXPECT_TRUE(Padded("1.6", true, 3, "\"x\"").empty());
}

std::vector<Finding> Placed(const std::string& numbers) {
  FakeTrial trial;
  for (int step = 0; step < 5; ++step) trial.Step().Loss(1);
  trial.EventJson(R"({"kind": "places", "step": 2, "rows": 16)" + numbers + "}");
  return testing::FindingsOf(trial, "SampleMixing", ParameterSet::kLuff);
}

TEST(SampleMixing, AnswersThatDependOnThePlaceInTheBatch_AreTold) {
  const auto findings = Placed(R"(, "placed": 0.8, "answers": 16)");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "place");
  EXPECT_NE(findings[0].remedy.find("x.size(1)"), std::string::npos);
  EXPECT_TRUE(Placed(R"(, "asked": true)").empty());
  EXPECT_TRUE(Placed(R"(, "placed": 1e-4, "answers": 16)").empty());
  EXPECT_TRUE(Placed(R"(, "placed": 0.8, "answers": 2)").empty());  // halves of a batch, each in its own way
  EXPECT_TRUE(Placed(R"(, "placed": 0.8)").empty());
}

std::vector<Finding> Ordered(const std::string& numbers, bool shuffled = true, int steps = 24,
                             int batch_size = 0, int values = 64) {
  FakeTrial trial;
  if (batch_size > 0)
    trial.SetDocument("loaders", R"({"loaders": [{"number": 0, "type": "DataLoader", "batch_size": )" +
                                     std::to_string(batch_size) + "}]}");
  for (int step = 0; step < steps; ++step) {
    trial.Step().Loss(1);
    if (step == 2) trial.EventJson(R"({"kind": "places", "step": 2, "order_rows": 16)" + numbers + "}");
    std::vector<double> rows;
    for (int row = 0; row < 16; ++row) {
      const int number = step % 4 * 16 + (shuffled ? (row * (2 * (step / 4) + 1)) % 16 : row);
      rows.insert(rows.end(), {1.0 + number % values, 2.0});
    }
    trial.Sample("sample/Net_input_0", {16, 2}, rows);
  }
  return testing::FindingsOf(trial, "SampleMixing", ParameterSet::kLuff);
}

TEST(SampleMixing, AnswersThatDependOnTheOrder_AreTold_WhereTheTrainingShuffles) {
  const std::string alone = R"(, "of": "place", "change": 0.8, "groups": 2, "alone": 0)";
  auto findings = Ordered(alone);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "place");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_NE(findings[0].remedy.find("edge_index"), std::string::npos);
  findings = Ordered(R"(, "of": "place", "change": 0.8, "groups": 16, "alone": -1)");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].remedy.find("x.size(1)"), std::string::npos);
  findings = Ordered(R"(, "of": "one", "change": 0.8, "alone": 0)");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "order");
  EXPECT_NE(findings[0].remedy.find("t[0]"), std::string::npos);
  findings = Ordered(R"(, "of": "others", "change": 0.8, "share": 0.5)");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].remedy.find("batch_first"), std::string::npos);
  EXPECT_EQ(Ordered(R"(, "of": "one", "change": 0.8, "alone": 0, "batch": 16)", false, 24, 16).size(), 1U);
  EXPECT_TRUE(Ordered(R"(, "of": "one", "change": 0.8, "alone": 0, "batch": 16)", false, 24, 8).empty());
  EXPECT_TRUE(Ordered(R"(, "of": "others", "change": 0.8, "batch": 16)", false, 24, 16).empty());
  EXPECT_TRUE(Ordered(alone, false).empty());    // sensors, nodes or places of a sequence
  EXPECT_TRUE(Ordered(alone, true, 5).empty());  // nothing has come again
  EXPECT_EQ(Ordered(alone, true, 24, 0, 16).size(), 1U);
  EXPECT_TRUE(Ordered(alone, true, 24, 0, 13).empty());  // tokens, some of which a sequence holds twice
  EXPECT_TRUE(Ordered(R"(, "asked": true)").empty());
  EXPECT_TRUE(Ordered(R"(, "of": "place", "change": 1e-3, "alone": 0)").empty());
  EXPECT_TRUE(Ordered(R"(, "of": "place", "change": null)").empty());
  EXPECT_TRUE(Ordered(R"(, "of": "one", "change": 0.8)").empty());
  EXPECT_TRUE(Ordered(R"(, "of": 3, "change": 0.8)").empty());
}

TEST(SampleMixing, MasksThatAModelDoesNotUse_AreTold) {
  auto findings = Placed(R"(, "mask": "attention_mask", "padding": 0.8, "padded_rows": 12)");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "mask");
  EXPECT_EQ(findings[0].severity, Severity::kWarn);
  EXPECT_NE(findings[0].what.find("attention_mask"), std::string::npos);
  findings = Placed(R"(, "asked": true, "mask": "1", "padding": 0.8, "padded_rows": 12)");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].what.find("argument 1"), std::string::npos);
  EXPECT_TRUE(Placed(R"(, "mask": "1", "padding": 0.01, "padded_rows": 12)").empty());
  EXPECT_TRUE(Placed(R"(, "mask": 1, "padding": 0.8, "padded_rows": 12)").empty());
  EXPECT_TRUE(Placed(R"(, "mask": "1", "padding": null, "padded_rows": 12)").empty());
  EXPECT_TRUE(Placed(R"(, "mask": "1", "padding": 0.8)").empty());
}

std::vector<Finding> Exchanged(const std::string& event) {
  FakeTrial trial;
  for (int step = 0; step < 4; ++step) {
    trial.Step().Loss(1);
    if (step > 0) trial.EventJson(event);
  }
  return testing::FindingsOf(trial, "SampleMixing", ParameterSet::kLuff);
}

TEST(SampleMixing, AReshapeInThePlaceOfATransposition_IsToldOnce) {
  for (const char* of : {"heads", "merged", "features"}) {
    const auto findings = Exchanged(std::string(R"({"kind": "exchanged_axes", "of": ")") + of +
                                    R"(", "before": [32, 20, 4, 8], "behind": [32, 4, 20, 8]})");
    ASSERT_EQ(findings.size(), 1U) << of;
    EXPECT_EQ(findings[0].cause, "axes");
    EXPECT_EQ(findings[0].severity, Severity::kWarn);
    EXPECT_NE(findings[0].what.find("(32, 20, 4, 8) to (32, 4, 20, 8)"), std::string::npos);
    EXPECT_NE(findings[0].remedy.find("transpose"), std::string::npos);
  }
  for (const char* broken :
       {R"({"kind": "exchanged_axes", "of": "others", "before": [2, 3], "behind": [3, 2]})",
        R"({"kind": "exchanged_axes", "of": 3, "before": [2, 3], "behind": [3, 2]})",
        R"({"kind": "exchanged_axes", "of": "heads", "before": ["a"], "behind": [3, 2]})",
        R"({"kind": "exchanged_axes", "before": [2, 3], "behind": [3, 2]})"})
    EXPECT_TRUE(Exchanged(broken).empty()) << broken;
}

}  // namespace
}  // namespace luff::rules::sample_mixing_test
