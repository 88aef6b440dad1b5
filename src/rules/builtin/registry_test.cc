#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "base/testdata.h"
#include "luff/rules/rule.h"

// What every built-in rule must have: a name, a summary, defaults that parse in both sets, a page on its
// parameters.
namespace luff::rules::registry_test {
namespace {

TEST(BuiltinRules, EachHasANameOfItsOwn_InOrder) {
  ASSERT_GE(BuiltinRules().size(), 6U);
  for (std::size_t i = 1; i < BuiltinRules().size(); ++i)
    EXPECT_LT(BuiltinRules()[i - 1].name, BuiltinRules()[i].name);
  for (const RuleSpec& rule : BuiltinRules()) {
    EXPECT_EQ(FindRule(rule.name).value(), &rule);
    EXPECT_FALSE(rule.summary.empty()) << rule.name;
    EXPECT_GE(rule.version, 1) << rule.name;
  }
}

TEST(BuiltinRules, DefaultsOfBothSetsParse_AndAFreshStateIsLoaded) {
  for (const RuleSpec& rule : BuiltinRules()) {
    for (const ParameterSet set : {ParameterSet::kLuff, ParameterSet::kOriginal}) {
      const auto parameters = CompleteParameters(rule, set, {});
      ASSERT_TRUE(parameters.ok()) << rule.name << ": " << parameters.status().message();
      const auto made = rule.make(parameters.value());
      const auto again = rule.make(parameters.value());
      ASSERT_TRUE(made.ok() && again.ok()) << rule.name;
      const std::string state = made.value()->SaveState();
      ASSERT_TRUE(again.value()->LoadState(state).ok()) << rule.name << ": " << state;
      EXPECT_EQ(again.value()->SaveState(), state) << rule.name;
    }
  }
}

TEST(BuiltinRules, EachHasAPageThatNamesItsParameters) {
  for (const RuleSpec& rule : BuiltinRules()) {
    const auto path = std::filesystem::path(kTestdata).parent_path() / rule.page;
    std::ifstream file(path);
    ASSERT_TRUE(file.good()) << path;
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_TRUE(text.starts_with("# " + rule.name + "\n")) << path;
    for (const Parameter& parameter : rule.parameters)
      EXPECT_NE(text.find("`" + parameter.name + "`"), std::string::npos) << path << ": " << parameter.name;
  }
}

}  // namespace
}  // namespace luff::rules::registry_test
