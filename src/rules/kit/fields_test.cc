#include "rules/kit/fields.h"

#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace luff::rules::fields_test {
namespace {

enum class Phase : std::uint8_t { kStart, kEnd };

struct Layer {
  std::int64_t captures = 0;
  std::vector<std::uint32_t> idle;
  void VisitFields(Fields& io) {
    io("captures", captures);
    io("idle", idle, 4);
  }
  bool operator==(const Layer&) const = default;
};

struct Everything {
  bool open = false;
  Phase phase = Phase::kStart;
  double level = 0, largest = 0, least = 0;
  std::string tensor;
  std::uint64_t hash = 0;
  std::map<std::string, Layer> layers;
  std::unordered_map<std::uint64_t, std::int64_t> labels;
  std::set<std::string> told;
  std::deque<double> recent;
  std::optional<Layer> best;
  std::optional<std::int64_t> none = 7;
  std::vector<std::pair<std::string, Layer>> series;
  std::array<double, 3> sums = {};
  void VisitFields(Fields& io) {
    io("open", open);
    io("phase", phase);
    io("level", level);
    io("largest", largest);
    io("least", least);
    io("tensor", tensor);
    io("hash", hash);
    io("layers", layers, 2);
    io("labels", labels);
    io("told", told);
    io("recent", recent);
    io("best", best);
    io("none", none);
    io("series", series);
    io("sums", sums);
  }
};

std::string Saved(Everything& from) {
  return Fields::Save([&](Fields& io) { from.VisitFields(io); });
}

Status Load(std::string_view json, Everything& to) {
  return Fields::LoadUntrusted(json, [&](Fields& io) { to.VisitFields(io); });
}

Everything Filled() {
  Everything all;
  all.open = true;
  all.phase = Phase::kEnd;
  all.level = NAN;
  all.largest = HUGE_VAL;
  all.least = -0.1;
  all.tensor = "a\n\"b\"";
  all.hash = ~std::uint64_t{0};
  all.layers = {{"0.relu", {3, {1, 2}}}, {"1.relu", {}}};
  all.labels = {{5, -1}, {3, 2}};
  all.told = {"x", "y"};
  all.recent = {1, 2.5};
  all.best = Layer{9, {}};
  all.none.reset();
  all.series = {{"loss", {1, {}}}};
  all.sums = {1, 2, 3};
  return all;
}

TEST(FieldsTest, WhatIsSavedIsLoaded) {
  Everything all = Filled();
  const std::string text = Saved(all);
  Everything again;
  again.layers["old"] = {};
  again.told = {"old"};
  ASSERT_TRUE(Load(text, again).ok()) << Load(text, again).message();
  EXPECT_EQ(Saved(again), text);
  EXPECT_TRUE(again.open);
  EXPECT_EQ(again.phase, Phase::kEnd);
  EXPECT_TRUE(std::isnan(again.level));
  EXPECT_EQ(again.largest, HUGE_VAL);
  EXPECT_EQ(again.least, -0.1);
  EXPECT_EQ(again.tensor, all.tensor);
  EXPECT_EQ(again.hash, all.hash);
  EXPECT_EQ(again.layers, all.layers);
  EXPECT_EQ(again.labels, all.labels);
  EXPECT_EQ(again.told, all.told);
  EXPECT_EQ(again.recent, all.recent);
  EXPECT_EQ(again.best, all.best);
  EXPECT_FALSE(again.none.has_value());
  EXPECT_EQ(again.series, all.series);
  EXPECT_EQ(again.sums, all.sums);
}

TEST(FieldsTest, EqualStatesAreEqualText) {
  Everything one, other;
  for (std::uint64_t i = 0; i < 100; ++i) one.labels[i] = 1;
  for (std::uint64_t i = 100; i-- > 0;) other.labels[i] = 1;
  EXPECT_EQ(Saved(one), Saved(other));
}

std::string Replaced(const std::string& from, const std::string& to) {
  Everything all = Filled();
  std::string text = Saved(all);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " in " << text;
  return text.replace(at, from.size(), to);
}

TEST(FieldsTest, WhatDoesNotFitIsNamed) {
  const std::pair<std::string, std::string> wrong[] = {
      {R"("open":true)", R"("open":1)"},
      {R"("tensor":)", R"("tenser":)"},
      {R"("captures":3)", R"("captures":3.5)"},
      {R"("captures":3)", R"("captures":9007199254740993)"},
      {R"("captures":3)", R"("captures":"3")"},
      {R"("phase":1)", R"("phase":256)"},
      {R"("idle":[1,2])", R"("idle":[1,-2])"},
      {R"("idle":[1,2])", R"("idle":[1,4294967296])"},
      {R"("idle":[1,2])", R"("idle":[1,2,3,4,5])"},
      {R"("sums":[1.0,2.0,3.0])", R"("sums":[1.0,2.0])"},
      {R"("level":"nan")", R"("level":"many")"},
      {R"("layers":{)", R"("layers":{"2":{"captures":0,"idle":[]},)"},
  };
  for (const auto& [from, to] : wrong) {
    Everything all;
    const Status status = Load(Replaced(from, to), all);
    EXPECT_EQ(status.code(), StatusCode::kCorruption) << to;
  }
  Everything all;
  EXPECT_THAT(Load(Replaced(R"("captures":3)", R"("captures":null)"), all).message(),
              ::testing::HasSubstr("'layers.0.relu.captures' is not a whole number"));
  for (const char* text : {"", "[]", "{", "null", "{\"open\":true,\"open\":"})
    EXPECT_FALSE(Load(text, all).ok()) << text;
}

TEST(FieldsTest, AConditionHoldsOrTheStateIsNotLoaded) {
  const auto keep = [](Fields& io) {
    std::int64_t blocks = 0;
    io("blocks", blocks);
    io.Check(blocks == 0 || blocks == 1, "at most one block");
  };
  EXPECT_TRUE(Fields::LoadUntrusted(R"({"blocks":1})", keep).ok());
  EXPECT_FALSE(Fields::LoadUntrusted(R"({"blocks":2})", keep).ok());
}

}  // namespace
}  // namespace luff::rules::fields_test
