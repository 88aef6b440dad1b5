#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::dead_embedding_rows_test {
namespace {

using format::Role;
using testing::FakeTrial;

// 160 sequences of 20 ids in each of 12 captured steps; a table of 400 rows.
std::vector<Finding> Story(const std::function<int(std::mt19937&, int)>& id,
                           const std::string& padding = "null") {
  FakeTrial trial;
  trial.SetDocument("model", R"({"models": [{"name": "Net", "modules": [{"path": "emb", "name": "emb",
    "type": "Embedding", "settings": {"num_embeddings": 400, "padding_idx": )" +
                                 padding + "}}]}]}");
  trial.Define("emb_input_0", Role::kInput, "Embedding");
  std::mt19937 noise(9);
  for (int step = 0; step < 12; ++step) {
    std::vector<double> values;
    for (int i = 0; i < 160 * 20; ++i) values.push_back(id(noise, i % 20));
    trial.Step().Loss(1).Sample("emb_input_0", {160, 20}, values, DType::kInt64);
  }
  return testing::FindingsOf(trial, "DeadEmbeddingRows", ParameterSet::kLuff);
}

int Zipf(std::mt19937& noise) {
  std::uniform_real_distribution<double> uniform(0, 1);
  return static_cast<int>(std::pow(400.0, uniform(noise))) - 1;
}

TEST(DeadEmbeddingRows, MostIdsMappedToOne_IsNamed) {
  const auto findings = Story([](std::mt19937& noise, int) {
    const int id = Zipf(noise);
    return id > 12 ? 0 : id;
  });
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].tensor, "emb_input_0");
  EXPECT_EQ(findings[0].step, 1);
}

TEST(DeadEmbeddingRows, WholeVocabulary_SmallCorpus_AndPadding_AreSilent) {
  EXPECT_TRUE(Story([](std::mt19937& noise, int) { return Zipf(noise); }).empty());
  // a small corpus on a large table: 30 ids, none of which replaces the others
  EXPECT_TRUE(Story([](std::mt19937& noise, int) { return 13 * static_cast<int>(noise() % 30); }).empty());
  const auto padded = [](std::mt19937& noise, int place) {
    return place >= 6 ? 0 : 13 * static_cast<int>(1 + noise() % 20);
  };
  EXPECT_TRUE(Story(padded).empty());
  EXPECT_TRUE(
      Story([](std::mt19937& noise, int) { return noise() % 2 == 0 ? 0 : static_cast<int>(noise() % 20); },
            "0")
          .empty());
}

// What a table of Keras gets, as it stands before the cast to integers.
std::vector<Finding> OfNumbers(const std::function<double(int)>& number,
                               const std::string& framework = "keras", const std::string& builtin = "true") {
  FakeTrial trial;
  trial.SetDocument("model", R"({"framework": ")" + framework + R"(", "models": [{"name": "net", "modules": [
    {"path": "embedding", "name": "embedding", "type": "Embedding", "builtin": )" +
                                 builtin + "}]}]}");
  trial.Define("embedding/inputs", Role::kInput, "Embedding");
  for (int step = 0; step < 6; ++step) {
    std::vector<double> values;
    for (int i = 0; i < 32 * 10; ++i) values.push_back(number(i + step));
    trial.Step().Loss(1).Sample("embedding/inputs", {32, 10}, values);
  }
  return testing::FindingsOf(trial, "DeadEmbeddingRows", ParameterSet::kLuff);
}

TEST(DeadEmbeddingRows, NumbersThatAreNoIds_AreNamed) {
  const auto scaled = OfNumbers([](int i) { return i % 200 / 200.0; });
  ASSERT_EQ(scaled.size(), 1U);
  EXPECT_EQ(scaled[0].cause, "cut_ids");
  EXPECT_EQ(scaled[0].severity, Severity::kStop);  // all become 0
  EXPECT_EQ(scaled[0].step, 2);
  EXPECT_EQ(scaled[0].tensor, "embedding/inputs");
  const auto standardised = OfNumbers([](int i) { return (i % 200 - 100) / 40.0; });
  ASSERT_EQ(standardised.size(), 1U);
  EXPECT_EQ(standardised[0].severity, Severity::kWarn);
}

TEST(DeadEmbeddingRows, EmbeddingsOfNumbers_ThatAScriptWritesItself_AreSilent) {
  const auto coordinate = [](int i) { return i % 200 / 200.0; };
  EXPECT_TRUE(OfNumbers(coordinate, "torch", "false").empty());  // a module that is called Embedding
  EXPECT_TRUE(OfNumbers(coordinate, "keras", "false").empty());
}

TEST(DeadEmbeddingRows, WholeNumbersAsFloats_AreSilent) {
  EXPECT_TRUE(OfNumbers([](int i) { return i % 200; }).empty());
  EXPECT_TRUE(OfNumbers([](int i) { return i % 200 + 1e-6; }).empty());
  EXPECT_TRUE(OfNumbers([](int i) { return i % 10 == 0 ? 0.5 : i % 200; }).empty());
}

struct Columns {
  std::vector<int> sizes = {12, 30};   // of the columns
  std::vector<int> tables = {12, 30};  // rows
  std::vector<int> reads = {0, 0};     // column of each table
  bool apart = false;                  // each column is an argument of its own
  bool sequence = false;               // one more table gets all columns at once
};

std::vector<Finding> OfColumns(const Columns& story) {
  FakeTrial trial;
  std::string modules;
  for (std::size_t t = 0; t < story.tables.size(); ++t) {
    const std::string name = "emb" + std::to_string(t);
    modules += (t == 0 ? "" : ", ") + std::string(R"({"path": ")") + name + R"(", "name": ")" + name +
               R"(", "type": "Embedding", "settings": {"num_embeddings": )" +
               std::to_string(story.tables[t]) + "}}";
    trial.Define(name + "_input_0", Role::kInput, "Embedding");
  }
  trial.Define("all_input_0", Role::kInput, "Embedding");
  modules += R"(, {"path": "all", "name": "all", "type": "Embedding", "settings": {"num_embeddings": 500}})";
  trial.SetDocument("model", R"({"models": [{"name": "Net", "modules": [)" + modules + "]}]}");
  std::mt19937 noise(9);
  const std::size_t width = story.sizes.size();
  for (int step = 0; step < 20; ++step) {
    std::vector<double> ids;
    for (int i = 0; i < 64; ++i) {
      for (const int size : story.sizes)
        ids.push_back(static_cast<double>(noise() % static_cast<unsigned>(size)));
    }
    const auto column = [&](std::size_t k) {
      std::vector<double> values;
      for (std::size_t i = 0; i < 64; ++i) values.push_back(ids[i * width + k]);
      return values;
    };
    trial.Step().Loss(1);
    for (std::size_t k = 0; story.apart && k < width; ++k)
      trial.Sample("sample/Net_input_" + std::to_string(k), {64}, column(k), DType::kInt64);
    if (!story.apart)
      trial.Sample("sample/Net_input_0", {64, static_cast<std::int64_t>(width)}, ids, DType::kInt64);
    for (std::size_t t = 0; t < story.tables.size(); ++t)
      trial.Sample("emb" + std::to_string(t) + "_input_0", {64},
                   column(static_cast<std::size_t>(story.reads[t])), DType::kInt64);
    if (story.sequence)
      trial.Sample("all_input_0", {64, static_cast<std::int64_t>(width)}, ids, DType::kInt64);
  }
  return testing::FindingsOf(trial, "DeadEmbeddingRows", ParameterSet::kLuff);
}

TEST(DeadEmbeddingRows, ATableThatIsAskedForTheColumnOfAnother_IsNamed) {
  for (const bool apart : {false, true}) {
    const auto findings = OfColumns({.apart = apart});
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].cause, "other_column");
    EXPECT_EQ(findings[0].step, 4);  // 300 rows
    EXPECT_NE(findings[0].remedy.find("emb1"), std::string::npos);
  }
  EXPECT_EQ(OfColumns({.sizes = {12, 30, 7}, .tables = {12, 31, 7}, .reads = {0, 0, 2}}).size(), 1U);
}

TEST(DeadEmbeddingRows, ColumnsThatAreReadOtherwise_TwoTablesForOne_AndRoomToGrow_AreSilent) {
  EXPECT_TRUE(OfColumns({.reads = {0, 1}}).empty());
  EXPECT_TRUE(OfColumns({.tables = {12, 12}}).empty());  // two views of one column; the other one is a number
  EXPECT_TRUE(OfColumns({.tables = {12, 100}}).empty());  // a table with room for more
  EXPECT_TRUE(OfColumns({.tables = {12, 12, 30, 30}, .reads = {0, 0, 1, 1}}).empty());
  EXPECT_TRUE(OfColumns({.sequence = true}).empty());
  EXPECT_TRUE(OfColumns({.tables = {30}, .reads = {0}}).empty());  // nothing is looked up twice
}

// Two models with a table of classes each, 12 captured batches of 16 ids.
std::vector<Finding> Classes(const std::function<int(std::mt19937&, int)>& one,
                             const std::function<int(std::mt19937&, int)>& other,
                             const std::string& model = "Critic", int rows = 10,
                             const std::string& type = "") {
  const auto table = [&](int size) {
    return (type.empty() ? std::string("[") : R"([{"path": "", "type": ")" + type + R"("}, )") +
           R"({"path": "emb", "name": "NAME", "type": "Embedding", "settings": {"num_embeddings": )" +
           std::to_string(size) + "}}]";
  };
  const auto named = [](std::string text, const std::string& name) {
    return text.replace(text.find("NAME"), 4, name);
  };
  FakeTrial trial;
  const std::string first = named(table(10), "Generator_emb"), second = named(table(rows), "Critic_emb");
  trial.SetDocument("model", model == "Critic"
                                 ? R"({"models": [{"name": "Generator", "modules": )" + first +
                                       R"(}, {"name": "Critic", "modules": )" + second + "}]}"
                                 : R"({"models": [{"name": "Generator", "modules": )" +
                                       first.substr(0, first.size() - 1) + ", " + second.substr(1) + "}]}");
  trial.Define("Generator_emb_input_0", Role::kInput, "Embedding");
  trial.Define("Critic_emb_input_0", Role::kInput, "Embedding");
  std::mt19937 noise(4);
  for (int step = 0; step < 12; ++step) {
    std::vector<double> mine, others;
    for (int i = 0; i < 16; ++i) {
      mine.push_back(one(noise, step));
      others.push_back(other(noise, step));
    }
    trial.Step()
        .Loss(1)
        .Sample("Generator_emb_input_0", {16}, mine, DType::kInt64)
        .Sample("Critic_emb_input_0", {16}, others, DType::kInt64);
  }
  return testing::FindingsOf(trial, "DeadEmbeddingRows", ParameterSet::kLuff);
}

TEST(DeadEmbeddingRows, OneConditionBesideATwinThatGetsAll_IsTold) {
  const auto six = [](std::mt19937&, int) { return 6; };
  const auto any = [](std::mt19937& noise, int) { return static_cast<int>(noise() % 10); };
  const auto found = Classes(six, any);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].cause, "one_condition");
  EXPECT_EQ(found[0].tensor, "Generator_emb_input_0");
  EXPECT_EQ(found[0].severity, Severity::kWarn);
  EXPECT_TRUE(Classes(any, any).empty());
  EXPECT_TRUE(Classes(six, six).empty());                            // a training of one class
  EXPECT_TRUE(Classes(six, any, "").empty());                        // two languages of one model
  EXPECT_TRUE(Classes(six, any, "Critic", 12).empty());              // another set of ids
  EXPECT_TRUE(Classes(six, any, "Critic", 10, "Denoiser").empty());  // a student and its critic, copies
  // One class for each batch.
  EXPECT_TRUE(Classes([](std::mt19937&, int step) { return step % 10; }, any).empty());
  EXPECT_TRUE(Classes(six, [](std::mt19937& noise, int) { return static_cast<int>(noise() % 3); }).empty());
}

}  // namespace
}  // namespace luff::rules::dead_embedding_rows_test
