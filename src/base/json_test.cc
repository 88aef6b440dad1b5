#include "base/json.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/json_number.h"

namespace luff::json_test {
namespace {

using Json = nlohmann::json;

TEST(JsonNumber, IsWholeAndFits) {
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(WholeNumber<std::uint64_t>(Json(kMost)), kMost);
  EXPECT_EQ(WholeNumber<std::int64_t>(Json(-7)), -7);
  EXPECT_EQ(WholeNumber<std::uint32_t>(Json(7)), 7u);
  for (const char* text :
       {"1e300", "17000700000000000000000", "1.5", "-1", "4294967296", "true", "\"7\"", "null", "[7]"}) {
    EXPECT_THROW((void)WholeNumber<std::uint32_t>(Json::parse(text)), std::invalid_argument) << text;
  }
  EXPECT_THROW((void)WholeNumber<std::int64_t>(Json(kMost)), std::invalid_argument);
}

TEST(JsonNumber, OfAMemberNamesTheKey) {
  const Json json = Json::parse(R"({"step": 1e31, "worker": 3})");
  EXPECT_EQ(WholeNumber<std::uint32_t>(json, "worker", 0), 3u);
  EXPECT_EQ(WholeNumber<std::int64_t>(json, "none", 5), 5);
  try {
    (void)WholeNumber<std::int64_t>(json, "step", 0);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string(error.what()), "step: found a number, expected a whole number that fits");
  }
}

std::string Nested(std::size_t depth, const std::string& inside = "") {
  return std::string(depth, '[') + inside + std::string(depth, ']');
}

TEST(Json, IsNotParsedBeyondItsDepth) {
  EXPECT_EQ(JsonText(ParseJson(Nested(64))), Nested(64));
  EXPECT_TRUE(TryParseJson(Nested(65)).is_discarded());
  EXPECT_THROW((void)ParseJson(Nested(65)), std::invalid_argument);
  EXPECT_EQ(BeyondJsonLimits(Nested(3), {100, 2}),
            "found lists and objects more than 2 deep in one another at byte 2");
  // No stack is deep enough for these.
  const std::string lists(10'000'000, '[');
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  for (const std::string& text : {lists, objects, "{\"a\":" + lists, "  \"[\" [" + objects}) {
    EXPECT_TRUE(TryParseJson(text).is_discarded());
    EXPECT_TRUE(TryParseOrderedJson(text).is_discarded());
    EXPECT_THROW((void)ParseJson(text), std::invalid_argument);
    EXPECT_THROW((void)ParseOrderedJson(text), std::invalid_argument);
  }
}

TEST(Json, BracketsInStringsAreNoDepth) {
  const std::string brackets(1000, '[');
  const std::vector<std::string> texts = {"\"" + brackets + "\"", R"({"a\\":")" + brackets + "\"}",
                                          R"(["\"\\\"{{{{", ")" + brackets + "\"]", "\"\\\\\"",
                                          R"({"[[[":[{},{},{}]})"};
  for (const std::string& text : texts) {
    EXPECT_EQ(BeyondJsonLimits(text, {10'000, 3}), "") << text;
    EXPECT_FALSE(TryParseJson(text, {10'000, 3}).is_discarded()) << text;
  }
}

TEST(Json, IsNotParsedBeyondItsBytes) {
  const std::string text = "\"" + std::string(98, 'x') + "\"";
  EXPECT_FALSE(TryParseJson(text, {100}).is_discarded());
  EXPECT_TRUE(TryParseJson(text, {99}).is_discarded());
  try {
    (void)ParseJson(text, {99});
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string(error.what()), "found 100 bytes of JSON, expected at most 99");
  }
}

TEST(Json, TextThatEndsInAStringIsNoJson) {
  for (const std::string& text : std::vector<std::string>{"\"", "\"\\", "[\"\\\"", "]]]]", ""}) {
    EXPECT_EQ(BeyondJsonLimits(text), "");
    EXPECT_TRUE(TryParseJson(text).is_discarded()) << text;
  }
}

TEST(Json, TextIsOneLineOrIndented) {
  const Json json = {{"b", 1}, {"a", "\xff\n"}};
  EXPECT_EQ(JsonText(json), "{\"a\":\"\xEF\xBF\xBD\\n\",\"b\":1}");
  EXPECT_EQ(AsciiJsonText(json), "{\"a\":\"\\ufffd\\n\",\"b\":1}");
  EXPECT_EQ(JsonText(Json::array({1}), 1), "[\n 1\n]");
  EXPECT_EQ(JsonText(TryParseOrderedJson(R"({"b":1,"a":2})")), R"({"b":1,"a":2})");
}

}  // namespace
}  // namespace luff::json_test
