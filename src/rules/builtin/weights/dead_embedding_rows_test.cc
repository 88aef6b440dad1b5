#include <cmath>
#include <functional>
#include <random>

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

}  // namespace
}  // namespace luff::rules::dead_embedding_rows_test
