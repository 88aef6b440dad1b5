#include "luff/base/regex.h"

#include <gtest/gtest.h>

#include <string>

namespace luff::regex_test {
namespace {

bool Search(const char* pattern, std::string_view text) {
  Result<Regex> regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status().ToString();
  return regex.ok() && regex->Search(text);
}

TEST(RegexTest, SearchesAnywhereWithLookAheads) {
  EXPECT_TRUE(Search("relu", "Net_relu1_output_0"));
  EXPECT_TRUE(Search("^(?!gradient).*weight", "Net_conv.weight"));
  EXPECT_FALSE(Search("^(?!gradient).*weight", "gradient/Net_conv.weight"));
  EXPECT_TRUE(Search("[Ll]oss_(?!input).*output", "CrossEntropyLoss_output_0"));
  EXPECT_FALSE(Search("[Ll]oss_(?!input).*output", "CrossEntropyLoss_input_0"));
  EXPECT_TRUE(Search("", ""));
}

TEST(RegexTest, FullMatchNeedsTheWholeText) {
  Result<Regex> regex = Regex::Compile("a|ab");
  ASSERT_TRUE(regex.ok());
  EXPECT_TRUE(regex->FullMatch("ab"));
  EXPECT_FALSE(regex->FullMatch("abc"));
}

TEST(RegexTest, AMistakeNamesItsPlace) {
  Result<Regex> regex = Regex::Compile("conv(");
  ASSERT_FALSE(regex.ok());
  EXPECT_EQ(regex.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(regex.status().message().find("at byte 5"), std::string_view::npos) << regex.status().message();
}

TEST(RegexTest, EndlessBacktrackingIsNoMatch) {
  EXPECT_FALSE(Search("^(a+)+$", std::string(5000, 'a') + "b"));
}

TEST(RegexTest, InvalidUtf8TextIsNoMatch) { EXPECT_FALSE(Search(".", "\xff\xfe")); }

}  // namespace
}  // namespace luff::regex_test
