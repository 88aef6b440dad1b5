#include "catalog/query.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace luff::catalog {
namespace {

using ::testing::HasSubstr;

Condition Parsed(std::string_view text) {
  auto condition = ParseCondition(text);
  EXPECT_TRUE(condition.ok()) << condition.status().ToString();
  return condition.ok() ? *condition : Condition();
}

std::string Error(std::string_view text) {
  const auto condition = ParseCondition(text);
  EXPECT_FALSE(condition.ok()) << text;
  return condition.ok() ? "" : std::string(condition.status().message());
}

TEST(ParseCondition, ReadsAComparison) {
  const Condition one = Parsed("lr >= 1e-3");
  EXPECT_EQ(one.kind, Condition::Kind::kCompare);
  EXPECT_EQ(one.field, "lr");
  EXPECT_EQ(one.op, Condition::Op::kGreaterEqual);
  EXPECT_TRUE(one.is_number);
  EXPECT_DOUBLE_EQ(one.number, 1e-3);
}

TEST(ParseCondition, BindsAndCloserThanOr) {
  const Condition all = Parsed("a = 1 or b = 2 and not (c ~ x or d != 'two words')");
  ASSERT_EQ(all.kind, Condition::Kind::kOr);
  ASSERT_EQ(all.parts.size(), 2U);
  const Condition& both = all.parts[1];
  ASSERT_EQ(both.kind, Condition::Kind::kAnd);
  ASSERT_EQ(both.parts[1].kind, Condition::Kind::kNot);
  EXPECT_EQ(both.parts[1].parts[0].parts[1].text, "two words");
}

TEST(ParseCondition, ReadsDurationsAndDatesAndKeepsQuotedNumbersAsTexts) {
  EXPECT_DOUBLE_EQ(Parsed("took > 10m").number, 600);
  EXPECT_DOUBLE_EQ(Parsed("took > 1.5h").number, 5400);
  EXPECT_TRUE(Parsed("begun > 2026-11-24").is_number);
  EXPECT_DOUBLE_EQ(Parsed("begun > 2026-11-24T10:00").number - Parsed("begun > 2026-11-24").number, 36000);
  EXPECT_FALSE(Parsed("name = '2026'").is_number);
  EXPECT_FALSE(Parsed("name = 3x").is_number);
  EXPECT_EQ(Parsed("'val/top 1' > 0.9").field, "val/top 1");
}

TEST(ParseCondition, SaysWhatItFoundAndWhere) {
  EXPECT_THAT(Error(""), HasSubstr("found the end at column 1, expected the name of a field"));
  EXPECT_THAT(Error("lr 3"), HasSubstr("found '3' at column 4, expected =, !=, <, <=, >, >= or ~"));
  EXPECT_THAT(Error("lr >"), HasSubstr("found the end at column 5, expected a value"));
  EXPECT_THAT(Error("lr => 3"), HasSubstr("expected a value"));
  EXPECT_THAT(Error("(lr > 3"), HasSubstr("expected and, or, or ')'"));
  EXPECT_THAT(Error("lr > 3 loss < 2"), HasSubstr("found 'loss' at column 8, expected and, or, or the end"));
  EXPECT_THAT(Error("name = 'x"), HasSubstr("the quote at column 8 is not closed"));
  EXPECT_THAT(Error("lr & 3"), HasSubstr("found '&' at column 4"));
}

TEST(ParseCondition, BoundsDepthAndNumber) {
  EXPECT_THAT(Error(std::string(1000, '(') + "a = 1"), HasSubstr("nested more than 20 deep"));
  std::string many = "a = 1";
  for (int i = 0; i < 500; ++i) many += " or a = 1";
  EXPECT_THAT(Error(many), HasSubstr("more than 200 parts"));
}

RC_GTEST_PROP(ParseCondition, EndsForAnyText, (const std::string& text)) { (void)ParseCondition(text).ok(); }

}  // namespace
}  // namespace luff::catalog
