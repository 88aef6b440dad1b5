#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::unused_result_test {
namespace {

using testing::FakeTrial;

std::string Event(const std::string& cause, const std::string& name, const std::string& other,
                  const std::string& more = "") {
  return R"({"kind": "unused_result", "cause": ")" + cause +
         R"(", "file": "train.py", "line": 31, "function": "epoch", "text": "the line", "name": ")" + name +
         R"(", "other": ")" + other + "\"" + more + "}";
}

std::vector<Finding> Told(const std::vector<std::string>& events) {
  FakeTrial trial;
  for (const std::string& event : events) {
    trial.Step().EventJson(event);
  }
  trial.Step();
  return testing::FindingsOf(trial, "UnusedResult", ParameterSet::kLuff);
}

TEST(UnusedResult, EachCause_NamesPlaceTextAndRemedy) {
  const auto called = Told({Event("not_called", "optimizer.zero_grad", "optimizer.zero_grad()")});
  ASSERT_EQ(called.size(), 1U);
  EXPECT_EQ(called[0].severity, Severity::kWarn);
  EXPECT_EQ(called[0].what, "train.py:31: optimizer.zero_grad is named and not called");
  EXPECT_NE(called[0].why.find("`the line`"), std::string::npos);
  EXPECT_EQ(called[0].remedy, "call it: `optimizer.zero_grad()`");
  const auto lost = Told({Event("overwritten", "loss", "32")});
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_NE(lost[0].what.find("replaced in line 32"), std::string::npos) << lost[0].what;
  for (const char* cause : {"mode_not_called", "dropped", "compared", "cut_off", "sign_for_sum", "last_alone",
                            "never_read", "other_variable", "same_operands", "unreachable"}) {
    const auto findings = Told({Event(cause, "first", "second")});
    ASSERT_EQ(findings.size(), 1U) << cause;
    EXPECT_EQ(findings[0].cause, cause);
    EXPECT_EQ(findings[0].what.find('{'), std::string::npos) << findings[0].what;
    EXPECT_EQ(findings[0].remedy.find('{'), std::string::npos) << findings[0].remedy;
  }
  EXPECT_NE(Told({Event("dropped", "", "nn.ReLU", R"(, "made": true)")}).at(0).what.find("never applied"),
            std::string::npos);
}

TEST(UnusedResult, PlacesOfOneCause_AreToldApart) {
  std::string second = Event("dropped", "x", "clamp");
  second.replace(second.find("31"), 2, "57");
  EXPECT_EQ(Told({Event("dropped", "x", "clamp"), second}).size(), 2U);
  std::vector<std::string> ranks(8, Event("dropped", "x", "clamp"));
  ranks.push_back(second);
  EXPECT_EQ(Told(ranks).size(), 2U);  // eight that say the same take the place of one
}

TEST(UnusedResult, BrokenEvents_AreSilent) {
  EXPECT_TRUE(Told({}).empty());
  EXPECT_TRUE(Told({R"({"kind": "unused_result"})",
                    R"({"kind": "unused_result", "cause": 3, "file": "a.py", "line": 1})",
                    R"({"kind": "unused_result", "cause": "dropped", "file": "a.py", "line": -1})",
                    R"({"kind": "unused_result", "cause": "of_later", "file": "a.py", "line": 1})",
                    R"({"kind": "unused_result", "cause": "dropped", "line": 1})"})
                  .empty());
}

}  // namespace
}  // namespace luff::rules::unused_result_test
