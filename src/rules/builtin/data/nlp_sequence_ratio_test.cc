#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::nlp_sequence_ratio_test {
namespace {

using format::Role;
using testing::FakeTrial;

std::vector<Finding> Original(const std::vector<double>& tokens,
                              const std::string& rule = "NLPSequenceRatio") {
  FakeTrial trial;
  trial.Step().Tensor("net_embedding0_input_0", Role::kInput, tokens);
  return testing::FindingsOf(trial, rule, ParameterSet::kOriginal);
}

TEST(OriginalNLPSequenceRatio, MoreThanHalfZeros_Fire_HalfDoesNot) {
  EXPECT_TRUE(Original({0, 0, 1, 2}).empty());
  const auto findings = Original({0, 0, 0, 2});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_DOUBLE_EQ(findings[0].evidence.at(0).value, 75);
}

TEST(OriginalNLPSequenceRatio, ListsOfTokensAndThresholds) {
  const std::string rule = "NLPSequenceRatio:token_values=0; 7:token_thresholds_percent=90;20";
  EXPECT_EQ(Original({0, 7, 1, 2}, rule).size(), 1U);
  EXPECT_TRUE(Original({0, 0, 0, 2}, rule).empty());
  // A token without a threshold.
  const auto short_list = CompleteParameters(*FindRule("NLPSequenceRatio").value(), ParameterSet::kOriginal,
                                             {{"token_values", "0,7"}});
  ASSERT_FALSE(short_list.ok());
  EXPECT_NE(short_list.status().message().find("one threshold for each token"), std::string_view::npos);
}

// 64 sequences of 20 ids in each of 6 captured steps.
FakeTrial Story(const std::string& type, const std::function<int(std::mt19937&, int)>& id,
                const std::string& padding = "null") {
  FakeTrial trial;
  trial.SetDocument(
      "model", R"({"models": [{"name": "Net", "modules": [{"path": "emb", "name": "emb", "type": ")" + type +
                   R"(", "settings": {"num_embeddings": 50, "padding_idx": )" + padding + "}}]}]}");
  trial.Define("emb_input_0", Role::kInput, type);
  std::mt19937 noise(9);
  for (int step = 0; step < 6; ++step) {
    std::vector<double> values;
    for (int i = 0; i < 64 * 20; ++i) values.push_back(id(noise, i % 20));
    trial.Step().Sample("emb_input_0", {64, 20}, values, DType::kInt64);
  }
  return trial;
}
std::vector<Finding> Luff(const FakeTrial& trial) {
  return testing::FindingsOf(trial, "NLPSequenceRatio", ParameterSet::kLuff);
}
int Padded(std::mt19937& noise, int place) { return place >= 6 ? 0 : 1 + static_cast<int>(noise() % 49); }
int Scattered(std::mt19937& noise, int) { return noise() % 3 == 0 ? 1 + static_cast<int>(noise() % 49) : 0; }

TEST(NLPSequenceRatio, UnknownIdEverywhere_IsNamed) {
  const auto findings = Luff(Story("Embedding", Scattered));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "token");
  EXPECT_EQ(findings[0].step, 2);
}

TEST(NLPSequenceRatio, Padding_HarmsOnlyWhereItIsAveraged) {
  EXPECT_TRUE(Luff(Story("Embedding", Padded)).empty());
  EXPECT_EQ(Luff(Story("EmbeddingBag", Padded)).at(0).cause, "padding");
  EXPECT_TRUE(Luff(Story("EmbeddingBag", Padded, "0")).empty());
  EXPECT_TRUE(Luff(Story("Embedding", Scattered, "0")).empty());
}

TEST(NLPSequenceRatio, BackgroundInLongRuns_IsSilent) {
  EXPECT_TRUE(Luff(Story("Embedding", [](std::mt19937&, int place) {
                return place > 2 && place < 16 ? 0 : place;
              })).empty());
}

TEST(NLPSequenceRatio, LossThatCountsPadding_IsNamed_UnlessItIgnoresIt) {
  for (const bool ignored : {false, true}) {
    FakeTrial trial = Story("Embedding", Padded);
    trial.SetDocument("model",
                      std::string(R"({"models": [{"name": "Net", "modules": [{"path": "emb", "name": "emb",
        "type": "Embedding", "settings": {"num_embeddings": 50}}]}], "losses": [{"type": "CrossEntropyLoss",
        "settings": {"ignore_index": )") +
                          (ignored ? "0" : "-100") + "}}]}");
    std::mt19937 noise(2);
    for (int step = 0; step < 3; ++step) {
      std::vector<double> ids;
      std::vector<double> scores;
      double loss = 0;
      double counted = 0;
      for (int i = 0; i < 64 * 20; ++i) {
        ids.push_back(Padded(noise, i % 20));
        double sum = 0;
        for (int c = 0; c < 50; ++c) {
          scores.push_back(0.1 * ((i + 3 * c) % 7));
          sum += std::exp(scores.back());
        }
        if (ignored && ids.back() == 0) continue;
        loss +=
            std::log(sum) - scores[static_cast<std::size_t>(50 * i) + static_cast<std::size_t>(ids.back())];
        ++counted;
      }
      trial.Step()
          .Sample("emb_input_0", {64, 20}, ids, DType::kInt64)
          .Sample("sample/CrossEntropyLoss_input_0", {1280, 50}, scores)
          .Sample("sample/CrossEntropyLoss_input_1", {1280}, ids, DType::kInt64)
          .Loss(loss / counted);
    }
    const auto findings = Luff(trial);
    ASSERT_EQ(findings.size(), ignored ? 0U : 1U);
    if (!ignored) {
      EXPECT_EQ(findings[0].tensor, "CrossEntropyLoss_output_0");
    }
  }
}

TEST(NLPSequenceRatio, ClassesOfTexts_AreNoPadding_ThoughOneHasItsNumber) {
  for (const bool texts : {true, false}) {
    FakeTrial trial = Story("Embedding", Padded);
    for (int step = 0; step < 3; ++step) {
      std::vector<double> ids(64 * 20);
      std::mt19937 noise(2);
      for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = Padded(noise, static_cast<int>(i % 20));
      std::vector<double> labels(64);
      for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = i % 4 == 0 ? 1 : 0;
      trial.Step().Sample("emb_input_0", {64, 20}, ids, DType::kInt64);
      if (texts) trial.Sample("sample/Net_input_0", {64, 20}, ids, DType::kInt64);
      trial.Sample("sample/CrossEntropyLoss_input_0", {64, 2}, std::vector<double>(128))
          .Sample("sample/CrossEntropyLoss_input_1", {64}, labels, DType::kInt64)
          .Loss(std::log(2.0));
    }
    EXPECT_EQ(Luff(trial).size(), texts ? 0U : 1U);
  }
}

struct Decoder {
  int padding = 0;            // padding_idx of the table; -1: none
  double ignored = -100;      // by the loss
  int shortest = 3;           // of rows of 12 ids
  int longest = 12;           // likewise, and one more
  int mark = 13;              // the id that ends rows
  bool partly = false;        // of the outputs only the first rows are kept
  bool unreduced = false;     // the settings say so
  bool weighted = false;      // the loss was given weights of classes
  bool in_rows = false;       // targets have the axes of the ids
  bool frames = false;        // the model's input is numbers
  bool equal = false;         // all rows have the shortest length
  bool scattered = false;     // the id stands anywhere
  bool other_target = false;  // targets beside padding differ
  bool marked = true;         // rows end with an id that marks it
  int shift = 0;              // 1: targets are the next ids
  // The script multiplies the values of the loss by 0 where the input is padding (1), or where it is anything
  // else (2).
  int masked = 0;           // by weights: 1: padding is left out; 2: all but padding
  bool by_turns = false;    // 2 in each other step only
  int turned_until = 1000;  // 2 until this step, then 1
};

// 32 rows of 12 ids, of a table of 14, that a model is to repeat; rows end in zeros.
std::vector<Finding> Told(const Decoder& story) {
  FakeTrial trial;
  trial.SetDocument(
      "model",
      R"({"models": [{"name": "Net", "modules": [{"path": "emb", "name": "emb", "type": "Embedding",
      "settings": {"num_embeddings": 14, "padding_idx": )" +
          std::string(story.padding < 0 ? "null" : "0") +
          R"(}}]}], "losses": [{"type": "CrossEntropyLoss", "settings": {"ignore_index": )" +
          std::to_string(story.ignored) + (story.unreduced ? R"(, "reduction": "none")" : "") + "}}]}");
  std::mt19937 noise(4);
  for (int step = 0; step < (story.masked == 0 ? 6 : 24); ++step) {
    const bool turned = story.masked == 2 && (!story.by_turns || step % 2 == 0) && step < story.turned_until;
    const bool as_meant = story.masked != 0 && !turned;
    std::vector<double> ids;
    std::vector<double> targets;
    std::vector<double> scores;
    double loss = 0;
    double counted = 0;
    for (int row = 0; row < 32; ++row) {
      const int length =
          story.equal ? story.shortest : story.shortest + row % (story.longest - story.shortest);
      for (int i = 0; i < 12; ++i) {
        const bool pad = story.scattered ? noise() % 2 == 0 : i >= length;
        const bool end = story.marked && i + 1 == length;
        ids.push_back(pad ? 0 : end ? story.mark : 1 + static_cast<double>(noise() % 12));
      }
    }
    for (int row = 0; row < 32; ++row) {
      for (int i = 0; i < 12; ++i) {
        const auto place = static_cast<std::size_t>(12 * row + i);
        const bool pad = ids[place] == 0;
        targets.push_back(pad && story.other_target ? static_cast<double>(noise() % 14)
                          : i + story.shift < 12    ? ids[place + static_cast<std::size_t>(story.shift)]
                                                    : 0);
        double sum = 0;
        for (int c = 0; c < 14; ++c) {
          scores.push_back(0.1 * ((i + 3 * c) % 7));
          sum += std::exp(scores.back());
        }
        if (targets.back() == story.ignored || (turned && !pad) || (as_meant && pad)) continue;
        loss += std::log(sum) - scores[scores.size() - 14 + static_cast<std::size_t>(targets.back())];
        ++counted;
      }
    }
    trial.Step()
        .Sample("sample/Net_input_0", {32, 12}, ids, story.frames ? DType::kFloat32 : DType::kInt64)
        .Sample("sample/CrossEntropyLoss_input_1",
                story.in_rows ? std::vector<std::int64_t>{32, 12} : std::vector<std::int64_t>{384}, targets,
                DType::kInt64);
    if (story.weighted)
      trial.EventJson(R"({"kind": "loss_weights", "loss": "CrossEntropyLoss_output_0", "call": 0,
        "weight": [0, 1]})");
    if (story.partly) {
      scores.resize(64 * 14);
      trial.Sample("sample/CrossEntropyLoss_input_0", {64, 14}, scores, DType::kFloat32, {384, 14});
    } else {
      trial.Sample("sample/CrossEntropyLoss_input_0", {384, 14}, scores);
    }
    if (story.masked == 0) {
      trial.Loss(loss / counted);
      continue;
    }
    std::vector<double> weights;
    for (const double id : ids) weights.push_back((id == 0) == turned ? 1 : 0);
    trial.Sample("sample/CrossEntropyLoss_weight_0", {384}, weights, DType::kUInt8);
    trial.Scalar("CrossEntropyLoss_part_0", Role::kOther, loss / counted);
  }
  return Luff(trial);
}

TEST(NLPSequenceRatio, PaddingOfASmallTableThatTheLossCounts_IsNamed) {
  const auto findings = Told({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "padding");
  EXPECT_EQ(findings[0].step, 2);
  EXPECT_NE(findings[0].remedy.find("ignore_index=0"), std::string::npos);
}

TEST(NLPSequenceRatio, PaddingThatIsIgnored_Little_NoPaddingAtAll_AndOtherTargets_AreSilent) {
  EXPECT_TRUE(Told({.ignored = 0}).empty());
  EXPECT_TRUE(Told({.shortest = 9}).empty());      // little of it
  EXPECT_TRUE(Told({.padding = -1}).empty());      // no table knows of padding
  EXPECT_TRUE(Told({.equal = true}).empty());      // a field of its own at the end of each row
  EXPECT_TRUE(Told({.scattered = true}).empty());  // an id as any other
  EXPECT_TRUE(Told({.other_target = true}).empty());
  // Padding is what says that a row ends.
  EXPECT_TRUE(Told({.marked = false}).empty());
  EXPECT_TRUE(Told({.marked = false, .shift = 1}).empty());
  EXPECT_EQ(Told({.shift = 1}).size(), 1U);
  EXPECT_TRUE(Told({.masked = 1}).empty());
}

TEST(NLPSequenceRatio, PaddingBehindAMarkOfTheEnd_IsNamedWithoutATableThatKnowsIt) {
  for (const Decoder& story :
       {Decoder{.padding = -1, .longest = 7}, Decoder{.padding = -1, .longest = 7, .shift = 1},
        Decoder{.padding = -1, .longest = 7, .partly = true, .shift = 1}}) {
    const auto findings = Told(story);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, "padding");
    EXPECT_NE(findings[0].why.find("behind id 13"), std::string::npos);
    EXPECT_NE(findings[0].remedy.find("ignore_index=0"), std::string::npos);
  }
}

// A loss that the script writes itself, of smoothed labels, say: 32 rows of 12 ids, all but the first of
// which are targets; of the outputs only the first rows are kept.
std::vector<Finding> OfAWrittenLoss(bool known, double beside, int longest = 7) {
  FakeTrial trial;
  trial.SetDocument("model",
                    R"({"models": [{"name": "Net", "modules": [{"path": "emb", "name": "emb",
      "type": "Embedding", "settings": {"num_embeddings": 14, "padding_idx": )" +
                        std::string(known ? "0" : "null") + "}}]}]}");
  std::mt19937 noise(4);
  for (int step = 0; step < 6; ++step) {
    std::vector<double> ids;
    std::vector<double> targets;
    for (int row = 0; row < 32; ++row) {
      const int length = 3 + row % (longest - 3);
      for (int i = 0; i < 12; ++i) {
        ids.push_back(i >= length ? 0 : i + 1 == length ? 13 : 1 + static_cast<double>(noise() % 12));
        if (i > 0) targets.push_back(i >= length ? beside : ids.back());
      }
    }
    trial.Step()
        .Sample("sample/Net_input_0", {32, 12}, ids, DType::kInt64)
        .Sample("sample/NLLLoss_input_0", {64, 14}, std::vector<double>(64 * 14, -2.6), DType::kFloat32,
                {352, 14})
        .Sample("sample/NLLLoss_input_1", {352}, targets, DType::kInt64)
        .Scalar("NLLLoss_part_0", Role::kOther, 2.6)
        .Loss(2.6);
  }
  return Luff(trial);
}

TEST(NLPSequenceRatio, PaddingThatAWrittenLossCounts_IsNamed) {
  for (const bool known : {false, true}) {
    const auto findings = OfAWrittenLoss(known, 0);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, "padding");
    EXPECT_NE(findings[0].why.find("behind id 13"), std::string::npos);
    EXPECT_TRUE(OfAWrittenLoss(known, -100).empty());   // left out
    EXPECT_TRUE(OfAWrittenLoss(known, 0, 12).empty());  // less than half
  }
  EXPECT_TRUE(OfAWrittenLoss(true, 5).empty());  // no padding of the table
}

TEST(NLPSequenceRatio, RunsAtTheEndWithoutAMark_IgnoredOnes_AndOthers_AreSilentThere) {
  const Decoder story{.padding = -1, .longest = 7};
  const auto with = [&](const std::function<void(Decoder*)>& change) {
    Decoder other = story;
    change(&other);
    return Told(other);
  };
  EXPECT_TRUE(with([](Decoder* one) { one->ignored = 0; }).empty());
  EXPECT_TRUE(with([](Decoder* one) { one->longest = 11; }).empty());    // less than half
  EXPECT_TRUE(with([](Decoder* one) { one->marked = false; }).empty());  // the run is what says it
  EXPECT_TRUE(with([](Decoder* one) { one->mark = 5; }).empty());        // an id that stands anywhere
  EXPECT_TRUE(with([](Decoder* one) { one->equal = true; }).empty());    // a field at the end of each row
  EXPECT_TRUE(with([](Decoder* one) { one->scattered = true; }).empty());
  const auto partly = [&](const std::function<void(Decoder*)>& change) {
    return with([&](Decoder* one) {
      one->partly = true;
      change(one);
    });
  };
  EXPECT_EQ(partly([](Decoder*) {}).size(), 1U);
  EXPECT_EQ(partly([](Decoder* one) { one->in_rows = true; }).size(), 1U);
  EXPECT_TRUE(partly([](Decoder* one) { one->in_rows = one->frames = true; }).empty());  // labels of a signal
  EXPECT_TRUE(partly([](Decoder* one) { one->ignored = 0; }).empty());
  EXPECT_TRUE(partly([](Decoder* one) { one->unreduced = true; }).empty());  // a mask that is not seen
  EXPECT_TRUE(partly([](Decoder* one) { one->weighted = true; }).empty());   // a weight of 0 for padding
}

TEST(NLPSequenceRatio, AMaskTheWrongWayRound_IsNamed_GapsThatAreToBeFilledAreNot) {
  const auto findings = Told({.masked = 2});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "only_padding");
  EXPECT_EQ(findings[0].step, 15);
  EXPECT_FALSE(findings[0].healed);
  EXPECT_TRUE(Told({.other_target = true, .masked = 2}).empty());
  EXPECT_TRUE(Told({.masked = 2, .by_turns = true}).empty());  // the ends of rows have steps of their own
  EXPECT_TRUE(Told({.masked = 2, .turned_until = 18}).at(0).healed);
}

// Rows of ten steps that a layer of Keras masks where they hold 0.
std::vector<Finding> Masked(bool ids, const std::function<double(int row, int step)>& value, int rows = 16,
                            const std::string& event = "") {
  FakeTrial trial;
  for (int step = 0; step < 8; ++step) {
    std::vector<double> values;
    for (int row = 0; row < rows; ++row) {
      for (int at = 0; at < 10; ++at) values.push_back(value(row + 3 * step, at));
    }
    std::vector<std::int64_t> shape = {rows, 10};
    if (!ids) shape.push_back(1);
    trial.Step().Loss(1);
    trial.Sample("sample/net_input_0", shape, values, ids ? DType::kInt64 : DType::kFloat32);
    const std::string told = R"({"kind": "masked_input", "model": "net", "input": 0, "value": 0, "ids": )";
    if (step == 0) trial.EventJson(event.empty() ? told + (ids ? "true}" : "false}") : event);
  }
  return Luff(trial);
}

TEST(NLPSequenceRatio, StepsThatKerasMasksThoughTheyHoldSomething_AreTold) {
  const auto ones = [](int row, int at) { return at < row % 10 ? 0.0 : 1.0; };
  const auto bits = [](int row, int at) { return (row * 7 + at * at * 3) % 5 < 2 ? 0.0 : 1.0; };
  const auto bases = [](int row, int at) {
    return static_cast<double>(
        (static_cast<unsigned>(row) * 2654435761U + static_cast<unsigned>(at) * 2246822519U) >> 20U & 3U);
  };
  for (const auto& [ids, value] : {std::pair<bool, std::function<double(int, int)>>{false, ones},
                                   {false, bits},
                                   {true, bits},
                                   {true, bases},
                                   {false, [](int, int) { return 0.0; }}}) {
    const auto findings = Masked(ids, value);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, "values_masked");
    EXPECT_EQ(findings[0].severity, Severity::kWarn);
    EXPECT_NE(findings[0].remedy.find(ids ? "from 1" : "mask_value"), std::string::npos);
  }
}

TEST(NLPSequenceRatio, PaddingThatKerasMasks_Gaps_AndFewRows_AreSilent) {
  const auto padded = [](int row, int at) { return at < row % 10 ? 0.0 : 1.0 + (row + at) % 7; };
  const auto gaps = [](int row, int at) { return (row + at) % 4 == 0 ? 0.0 : 0.1 * at; };
  const auto words = [](int row, int at) { return (row + at) % 6 == 0 ? 0.0 : 1.0 + row * 10 + at; };
  EXPECT_TRUE(Masked(false, padded).empty());
  EXPECT_TRUE(Masked(true, padded).empty());
  EXPECT_TRUE(Masked(false, gaps).empty());
  EXPECT_TRUE(Masked(true, words).empty());  // of a large vocabulary some are dropped
  // Two parts of a row, each padded to five steps.
  EXPECT_TRUE(Masked(true, [](int row, int at) {
                return at % 5 > 1 + row % 2 ? 0.0 : 1.0 + (row + at) % 9;
              }).empty());
  EXPECT_TRUE(Masked(true, [](int row, int at) { return (row + at) % 4; }, 7).empty());
  for (const char* broken :
       {R"({"kind": "masked_input"})", R"({"kind": "masked_input", "model": 3, "input": -1})",
        R"({"kind": "masked_input", "model": "net", "input": 0, "value": "a"})"})
    EXPECT_TRUE(Masked(true, [](int row, int at) { return (row + at) % 4; }, 16, broken).empty());
}

}  // namespace
}  // namespace luff::rules::nlp_sequence_ratio_test
