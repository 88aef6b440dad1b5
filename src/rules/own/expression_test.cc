#include "rules/own/expression.h"
#include "base/format.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "luff/rules/choice.h"
#include "luff/rules/rule.h"
#include "rules/facts/step_memo.h"
#include "rules/own/expression_rule.h"
#include "rules/own/own_spec.h"
#include "rules/testing/fake_trial.h"

namespace luff::rules::expression_test {
namespace {

using format::Role;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Heard final : public Sink {
 public:
  void Report(Finding finding) override {
    if (findings.empty() || healed) {
      findings.push_back(std::move(finding));
    } else {
      findings.back().last_step = finding.last_step;
    }
    healed = false;
  }
  void Heal(const std::string&, const std::string&, std::int64_t step) override {
    heals.push_back(step);
    healed = true;
  }
  void Note(const std::string& text, bool failed) override {
    notes.push_back(text);
    EXPECT_FALSE(failed);
  }
  std::vector<Finding> findings;
  std::vector<std::int64_t> heals;
  std::vector<std::string> notes;
  bool healed = false;
};

std::unique_ptr<Rule> Make(const std::string& when, Parameters more = {}) {
  more["name"] = "Test";
  more["when"] = when;
  auto spec = ExpressionSpec(more);
  EXPECT_TRUE(spec.ok()) << spec.status().ToString();
  return spec->make({}).value();
}

Heard Judge(Rule& rule, const testing::FakeTrial& trial, std::size_t from = 0, std::size_t to = SIZE_MAX) {
  Heard heard;
  query::Trial::StepRows rows;
  for (std::size_t n = from; n < std::min(to, trial.step_count()); ++n) {
    EXPECT_TRUE(trial.ReadStepRows(n, &rows).ok());
    StepMemo memo;
    rule.OnStep({trial, rows, n, memo, StepIndex(trial, rows)}, heard);
  }
  return heard;
}

Heard Judge(const std::string& when, const testing::FakeTrial& trial, Parameters more = {}) {
  const auto rule = Make(when, std::move(more));
  Heard heard = Judge(*rule, trial);
  rule->OnEnd(trial, heard);
  return heard;
}

/// The loss falls from 10 by 1 per step; a gradient of two elements every second step; two tensors of a
/// group.
testing::FakeTrial Story() {
  testing::FakeTrial trial;
  for (int step = 0; step < 10; ++step) {
    trial.Step().Loss(10.0 - step);
    if (step % 2 == 0)
      trial.Tensor("gradient/fc.weight", Role::kGradient, {3.0, step < 6 ? 4.0 : std::nan("")});
    trial.Tensor("gradient/b", Role::kGradient, {0.5});
  }
  return trial;
}

std::int64_t FirstStep(const std::string& when, Parameters more = {}) {
  const Heard heard = Judge(when, Story(), std::move(more));
  return heard.findings.empty() ? -1 : heard.findings[0].step;
}

TEST(Expression, ArithmeticAndComparisons) {
  EXPECT_EQ(FirstStep("loss < 8"), 3);
  EXPECT_EQ(FirstStep("loss <= 8"), 2);
  EXPECT_EQ(FirstStep("8 > loss"), 3);
  EXPECT_EQ(FirstStep("loss == 5"), 5);
  EXPECT_EQ(FirstStep("loss != 10"), 1);
  EXPECT_EQ(FirstStep("2 + 3 * loss - 1 < 14.5"), 6);  // 3 * loss < 13.5
  EXPECT_EQ(FirstStep("(2 + 3) * -loss / 5 >= -4"), 6);
  EXPECT_EQ(FirstStep("10 - 2 - 3 == loss"), 5);  // left-associative
  EXPECT_EQ(FirstStep("100 / 10 / 2 == loss"), 5);
  EXPECT_EQ(FirstStep("abs(loss - 10) > 3"), 4);
  EXPECT_EQ(FirstStep("sqrt(loss) <= 2"), 6);
  EXPECT_EQ(FirstStep("log(loss) < 0.5"), 9);
  EXPECT_EQ(FirstStep("loss < 8e0 and loss < .5e1"), 6);
  EXPECT_EQ(FirstStep("loss < 3 or loss < 6 and not loss < 2"), 5);  // 'and' binds closer
  EXPECT_EQ(FirstStep("not not loss < 8"), 3);
  EXPECT_EQ(FirstStep("loss < 0"), -1);
}

TEST(Expression, StatisticsOfTensors) {
  EXPECT_EQ(FirstStep("'gradient/fc.weight'.l2 == 5"), 0);
  EXPECT_EQ(FirstStep("\"gradient/fc.weight\".nan_count > 0"), 6);
  EXPECT_EQ(FirstStep("\"gradient/fc.weight\".max < 4"), 6);
  EXPECT_EQ(FirstStep("\"gradient/b\" == 0.5"), 0);  // one element is a number
  EXPECT_EQ(FirstStep("\"gradient/fc.weight\".count.mean(3) == 2"), 4);
  EXPECT_EQ(FirstStep("is_finite(loss) and loss.nan_count == 0"), 0);
}

TEST(Expression, FoldsAreKnownWhenTheirValuesHaveCome) {
  EXPECT_EQ(FirstStep("loss.mean(4) > 0"), 3);
  EXPECT_EQ(FirstStep("loss.mean(4) == 6.5"), 5);
  EXPECT_EQ(FirstStep("loss.min(3) == 5"), 5);
  EXPECT_EQ(FirstStep("loss.max(3) == 5"), 7);
  EXPECT_EQ(FirstStep("loss.last(2) == loss + 2"), 2);
  EXPECT_EQ(FirstStep("abs(loss.std(3) - sqrt(2 / 3)) < 1e-12"), 2);
  EXPECT_EQ(FirstStep("loss.mean(2) < loss.mean(5)"), 4);
  const Heard heard = Judge("loss.mean(11) > 0", Story());
  EXPECT_THAT(heard.findings, IsEmpty());
  EXPECT_THAT(heard.notes, ElementsAre(HasSubstr("loss.mean(11) needs 11 values, 10 came")));
}

TEST(Expression, WhatIsMissingIsNotZero) {
  const auto note_of = [](const std::string& when) {
    const Heard heard = Judge(when, Story());
    EXPECT_THAT(heard.findings, IsEmpty()) << when;
    return heard.notes.empty() ? "" : heard.notes[0];
  };
  EXPECT_THAT(note_of("nothing < 1"), HasSubstr("there is no tensor \"nothing\""));
  EXPECT_THAT(note_of("los < 1"),
              HasSubstr("there is no tensor \"los\"; nearest: CrossEntropyLoss_output_0"));
  EXPECT_THAT(note_of("not nothing > 1"), HasSubstr("there is no tensor"));
  EXPECT_THAT(note_of("nothing > 1 and \"none.weight\".l2 < 3 and nothing < 9"),
              HasSubstr("there is no tensor \"nothing\"; there is no tensor \"none.weight\""));
  EXPECT_THAT(note_of("\"gradient/fc.weight\" < 100"), HasSubstr("has many elements and is no number"));
  EXPECT_THAT(note_of("any('^no$').l2 < 1"), HasSubstr("nothing was recorded of such tensors"));
  // Unknown and false is false; unknown or true is true.
  EXPECT_EQ(FirstStep("nothing < 1 or loss < 8"), 3);
  EXPECT_EQ(note_of("nothing < 1 and loss < 0"), "");
  // A plain value counts only at its step: the gradient comes at every second.
  EXPECT_EQ(FirstStep("'gradient/fc.weight'.l2 > 0 and loss < 9.5"), 2);
  // NaN compares as false.
  testing::FakeTrial nan;
  nan.Step().Loss(std::nan(""));
  EXPECT_THAT(Judge("loss > 0 or loss <= 0", nan).findings, IsEmpty());
  EXPECT_EQ(Judge("not is_finite(loss)", nan).findings.size(), 1U);
  EXPECT_EQ(Judge("loss != loss", nan).findings.size(), 1U);
}

TEST(Expression, GroupsAskEachTensor) {
  const Heard any = Judge("any(\"^gradient/\").nan_count > 0", Story());
  ASSERT_EQ(any.findings.size(), 1U);
  EXPECT_EQ(any.findings[0].tensor, "gradient/fc.weight");
  EXPECT_EQ(any.findings[0].step, 6);
  EXPECT_EQ(FirstStep("all('^gradient/').l2 < 1"), -1);
  EXPECT_EQ(FirstStep("all('^gradient/').l2 < 4"), 6);  // a step without one of them does not decide
  EXPECT_EQ(FirstStep("all('^gradient/').l2 > 0.1"), 0);
  EXPECT_EQ(FirstStep("not any('^gradient/').l2 > 4"), 6);
  EXPECT_EQ(FirstStep("any('^gradient/').l2 > 9 * any('^gradient/').min"), -1);
  EXPECT_EQ(FirstStep("any('^gradient/').l2 > 1.5 * any('^gradient/').min"), 0);
  EXPECT_EQ(FirstStep("not is_finite(any('^gradient/').mean)"), -1);
  const Heard both = Judge("any('^gradient/').l2 > 0.1", Story());
  EXPECT_THAT(both.findings[0].other_tensors, ElementsAre("gradient/fc.weight"));
}

TEST(Expression, StepsInARowHealAndComeAgain) {
  testing::FakeTrial trial;
  for (const double loss : {9., 1., 9., 9., 9., 1., 9., 9., 9.}) trial.Step().Loss(loss);
  const Heard heard = Judge("loss > 5", trial, {{"for", "3"}, {"severity", "stop"}, {"message", "high"}});
  ASSERT_EQ(heard.findings.size(), 2U);
  EXPECT_EQ(heard.findings[0].step, 4);
  EXPECT_EQ(heard.findings[0].since_step, 2);
  EXPECT_EQ(heard.findings[0].what, "high");
  EXPECT_EQ(heard.findings[0].severity, Severity::kStop);
  EXPECT_THAT(heard.heals, ElementsAre(5));
  EXPECT_EQ(heard.findings[1].step, 8);
  EXPECT_THAT(heard.findings[1].threshold, HasSubstr("3 steps in a row"));
}

TEST(Expression, OtherModesAreLeftOut) {
  testing::FakeTrial trial;
  trial.Step().Loss(1).Step(query::Mode::kEval).Loss(9);
  EXPECT_THAT(Judge("loss > 5", trial).findings, IsEmpty());
  const Heard heard = Judge("loss > 5", trial, {{"mode", "EVAL"}});
  ASSERT_EQ(heard.findings.size(), 1U);
  EXPECT_EQ(heard.findings[0].mode, "EVAL");
}

TEST(Expression, MistakesPointAtTheirPlace) {
  const auto place = [](const std::string& text, const std::string& says) {
    const auto parsed = Expression::ParseUntrusted(text);
    EXPECT_FALSE(parsed.ok()) << text;
    if (parsed.ok()) return std::size_t{999};
    const std::string message(parsed.status().message());
    EXPECT_THAT(message, HasSubstr(says)) << text;
    return message.rfind('^') - message.rfind('\n') - 3;  // after two blanks
  };
  EXPECT_EQ(place("", "expected a number or a name"), 0U);
  EXPECT_EQ(place("loss.maen > 3", "there is no statistic 'maen'; nearest: mean"), 5U);
  EXPECT_EQ(place("loss.maen(5) > 3", "there is no 'maen' of several values; nearest: mean"), 5U);
  EXPECT_EQ(place("loss.l2(5) > 3", "cannot be taken of several values"), 5U);
  EXPECT_EQ(place("loss.mean(0) > 3", "a whole number from 1 to 100000"), 10U);
  EXPECT_EQ(place("loss.mean(2.5) > 3", "a whole number"), 10U);
  EXPECT_EQ(place("loss.mean(5).max(3) > 3", "nothing can follow"), 12U);
  EXPECT_EQ(place("loss.last > 3", "'last' needs a number"), 5U);
  EXPECT_EQ(place("loss > ", "the condition ends here"), 7U);
  EXPECT_EQ(place("loss = 3", "write '=='"), 5U);
  EXPECT_EQ(place("loss > 3 &", "a sign that the language does not have"), 9U);
  EXPECT_EQ(place("loss + 3", "a number, expected a condition"), 0U);
  EXPECT_EQ(place("loss > 3 and 4", "a number, expected a condition"), 13U);
  EXPECT_EQ(place("(loss > 3) + 4 > 1", "a condition, expected a number"), 1U);
  EXPECT_EQ(place("1 < loss < 3", "write 'and' between"), 9U);
  EXPECT_EQ(place("(loss > 3", "expected ')'"), 9U);
  EXPECT_EQ(place("loss > 3 loss", "expected an operator"), 9U);
  EXPECT_EQ(place("abd(loss) > 3", "no function 'abd'; nearest: abs"), 0U);
  EXPECT_EQ(place("any(loss) > 3", "in quotes"), 4U);
  EXPECT_EQ(place("any('(') > 3", ""), 5U);
  EXPECT_EQ(place("any('a').l2 > any('b').l2", "a second group"), 14U);
  EXPECT_EQ(place("'w > 3", "quote is not closed"), 0U);
  EXPECT_EQ(place("1e999 > loss", "too large"), 0U);
  EXPECT_EQ(place("loss.mean(60000) > 1 and w.mean(60000) > 1", "100000 values"), 25U);
  place(std::string(100, '(') + "loss > 1", "nested too deeply");
  place(std::string(100, '-') + "loss > 1", "nested too deeply");
  EXPECT_FALSE(Expression::ParseUntrusted(std::string(5000, ' ')).ok());
}

TEST(Expression, SettingsAreChecked) {
  const auto says = [](const Parameters& given) {
    const auto spec = ExpressionSpec(given);
    return spec.ok() ? "" : std::string(spec.status().message());
  };
  EXPECT_THAT(says({{"when", "loss > 1"}}), HasSubstr("is no name of a rule"));
  EXPECT_THAT(says({{"name", "X"}}), HasSubstr("has no condition"));
  EXPECT_THAT(says({{"name", "X"}, {"when", "loss > 1"}, {"fro", "3"}}), HasSubstr("nearest: for"));
  EXPECT_THAT(says({{"name", "X"}, {"when", "loss > 1"}, {"for", "0"}}), HasSubstr("at least 1"));
  EXPECT_THAT(says({{"name", "X"}, {"when", "loss > 1"}, {"severity", "bad"}}), HasSubstr("warn or stop"));
  EXPECT_THAT(says({{"name", "X"}, {"when", "loss > 1"}, {"mode", "X"}}), HasSubstr("TRAIN"));
}

TEST(Expression, NeedsAreTheTensorsThatItReads) {
  const auto spec =
      ExpressionSpec({{"name", "X"}, {"when", "loss > 1 and 'fc.w'.l2 < lr or any('^g/').max > 3"}});
  ASSERT_TRUE(spec.ok());
  const std::vector<Need> needs = spec->needs({});
  ASSERT_EQ(needs.size(), 1U);
  EXPECT_THAT(needs[0].include, ElementsAre("^fc\\.w$", "^lr$", "^g/"));
}

TEST(Expression, AsTextOfChoicesAndBack) {
  const std::string when = "any('a:b,c%').l2 > 3 and loss < 5";
  const std::string text = fmt::format("expression:name=X:when={}", EncodeValue(when));
  const auto choices = ParseChoices(text, ParameterSet::kLuff);
  ASSERT_TRUE(choices.ok()) << choices.status().ToString();
  EXPECT_EQ(choices->at(0).parameters.at("when"), when);
  EXPECT_EQ(choices->at(0).spec->name, "X");
  const auto again = ParseChoices(ChoicesToText(*choices), ParameterSet::kLuff);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->at(0).spec, choices->at(0).spec);
  const auto all = ParseChoices("all," + text, ParameterSet::kLuff);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->size(), BuiltinRules().size() + 1);
  EXPECT_EQ(ParseChoices(ChoicesToText(*all), ParameterSet::kLuff)->size(), all->size());
  EXPECT_FALSE(ParseChoices(text + "," + text, ParameterSet::kLuff).ok());
}

// ---- properties

/// A random well-formed condition.
std::string Random(std::mt19937& random, int depth, bool truth) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  static const char* const kLeaves[] = {"loss",
                                        "'gradient/fc.weight'.l2",
                                        "loss.mean(3)",
                                        "loss.last(1)",
                                        "2.5",
                                        "\"gradient/b\"",
                                        "nothing",
                                        "loss.std(2)",
                                        "'gradient/b'.max.min(2)"};
  if (!truth) {
    if (depth <= 0 || below(3) == 0) return kLeaves[below(9)];
    if (below(4) == 0) return "-" + Random(random, depth - 1, false);
    if (below(4) == 0) return "abs(" + Random(random, depth - 1, false) + ")";
    return fmt::format("({} {} {})", Random(random, depth - 1, false), "+-*/"[below(4)],
                       Random(random, depth - 1, false));
  }
  if (depth <= 0 || below(3) == 0) {
    static const char* const kSigns[] = {"<", "<=", ">", ">=", "==", "!="};
    return fmt::format("{} {} {}", Random(random, depth - 1, false), kSigns[below(6)],
                       Random(random, depth - 1, false));
  }
  if (below(4) == 0) return "not (" + Random(random, depth - 1, true) + ")";
  return fmt::format("({} {} {})", Random(random, depth - 1, true), below(2) == 0 ? "and" : "or",
                     Random(random, depth - 1, true));
}

TEST(ExpressionProperties, ARestartAnywhereChangesNothing) {
  std::mt19937 random(7);
  const testing::FakeTrial trial = Story();
  for (int round = 0; round < 300; ++round) {
    const std::string when = Random(random, 4, true);
    const auto whole = Make(when);
    const Heard expected = Judge(*whole, trial);
    const std::size_t cut = random() % 11;
    const auto first = Make(when);
    Heard heard = Judge(*first, trial, 0, cut);
    const auto second = Make(when);
    ASSERT_TRUE(second->LoadState(first->SaveState()).ok()) << when;
    const Heard rest = Judge(*second, trial, cut);
    EXPECT_EQ(second->SaveState(), whole->SaveState()) << when;
    EXPECT_EQ(heard.heals.size() + rest.heals.size(), expected.heals.size()) << when;
  }
}

TEST(ExpressionProperties, NotIsTheOppositeAndOrderDoesNotMatter) {
  std::mt19937 random(11);
  const testing::FakeTrial trial = Story();
  const auto steps = [&](const std::string& when) {
    std::vector<std::int64_t> at;
    const auto rule = Make(when);
    for (std::size_t n = 0; n < trial.step_count(); ++n) {
      if (!Judge(*rule, trial, n, n + 1).findings.empty()) at.push_back(static_cast<std::int64_t>(n));
    }
    return at;
  };
  for (int round = 0; round < 200; ++round) {
    const std::string a = Random(random, 3, true);
    const std::string b = Random(random, 3, true);
    EXPECT_EQ(steps(fmt::format("({}) and ({})", a, b)), steps(fmt::format("({}) and ({})", b, a)));
    EXPECT_EQ(steps(fmt::format("not (({}) or ({}))", a, b)),
              steps(fmt::format("not ({}) and not ({})", a, b)));
    const auto yes = steps(a);
    const auto no = steps(fmt::format("not ({})", a));
    for (const std::int64_t step : yes) EXPECT_EQ(std::count(no.begin(), no.end(), step), 0) << a;
  }
}

TEST(ExpressionProperties, AnyTextIsParsedOrRefused) {
  std::mt19937 random(3);
  static const std::string kSigns = "loss.mean(5)><=!'\"+-*/ andornot0.1e\\any(";
  for (int round = 0; round < 20000; ++round) {
    std::string text = round % 2 == 0 ? Random(random, 2, true) : "";
    const std::size_t changes = random() % 20;
    for (std::size_t i = 0; i < changes; ++i) {
      const std::size_t at = text.empty() ? 0 : random() % text.size();
      if (random() % 3 == 0 && !text.empty()) {
        text.erase(at, 1);
      } else {
        text.insert(at, 1, kSigns[random() % kSigns.size()]);
      }
    }
    const auto parsed = Expression::ParseUntrusted(text);
    if (!parsed.ok()) {
      EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("column")) << text;
    }
  }
}

TEST(ExpressionState, HostileStatesAreRefused) {
  const std::string good = Make("loss.mean(3) > 1")->SaveState();
  const auto state = [](const std::string& kept, int row) {
    return R"({"condition":{"leaves":[{"series":[[["x",0],{"seen":3,"kept":[)" + kept +
           R"(]}]],"too_large":false}],"overfull":false},"known":1,"row":)" + std::to_string(row) +
           R"(,"since":0,"tensor":""})";
  };
  EXPECT_TRUE(Make("loss.mean(3) > 1")->LoadState(state(R"(1,2.5,"nan")", 1)).ok());
  const std::string no_leaves =
      R"({"condition":{"leaves":[],"overfull":false},"known":0,"row":0,"since":0,"tensor":""})";
  for (const std::string& bad : {std::string(), std::string("{}"), std::string("[]"), no_leaves,
                                 state(R"("zz")", 1), state("1,2,3,4", 1), state("1,2,3", 2)}) {
    EXPECT_FALSE(Make("loss.mean(3) > 1")->LoadState(bad).ok()) << bad;
  }
  EXPECT_TRUE(Make("loss.mean(3) > 1")->LoadState(good).ok());
}

}  // namespace
}  // namespace luff::rules::expression_test
