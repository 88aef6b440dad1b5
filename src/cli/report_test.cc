#include "cli/report.h"

#include <gtest/gtest.h>

#include "base/format.h"
#include "cli/terminal.h"
#include "luff/rules/kept_findings.h"
#include "query/testing/work.h"

// The text that people read: each finding once in full, then one line for each change of it.
namespace luff::cli::report_test {
namespace {

rules::Finding Seen(const std::string& tensor, std::int64_t step,
                    rules::Severity severity = rules::Severity::kWarn, const std::string& rule = "DeadRelu") {
  rules::Finding finding;
  finding.rule = rule;
  finding.cause = "dead";
  finding.tensor = tensor;
  finding.step = finding.since_step = step;
  finding.severity = severity;
  finding.id = rules::FindingId(rule, finding.cause, tensor, step);
  finding.what = "units are dead";
  return finding;
}

std::size_t Count(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

TEST(Teller, FirstIsToldInFull_OthersOfItsStepInALine) {
  Teller teller(false, 100);
  const std::string text =
      teller.Tell({{Seen("relu1", 32), "new"}, {Seen("relu2", 32, rules::Severity::kStop), "new"}});
  EXPECT_TRUE(text.starts_with("luff: STOP DeadRelu: units are dead\n")) << text;  // the gravest leads
  EXPECT_EQ(Count(text, "luff rules explain DeadRelu"), 1U);
  EXPECT_NE(text.find("\nluff: also WARN DeadRelu relu1: units are dead\n"), std::string::npos) << text;
  const std::string later = teller.Tell({{Seen("relu3", 32), "new"}});
  EXPECT_EQ(later, "luff: also WARN DeadRelu relu3: units are dead\n");
  EXPECT_EQ(Count(teller.Tell({{Seen("relu1", 40), "new"}}), "luff rules explain DeadRelu"), 1U);
}

TEST(Report, StepsOfAnotherModeThanTrainAreNamedSo) {
  rules::Finding finding = Seen("loss", 3);
  finding.mode = "EVAL";
  finding.step = 5;
  EXPECT_NE(FindingText(finding, false, 100).find("since   EVAL step 3, seen at step 5 (update"),
            std::string::npos);
  EXPECT_EQ(FindingsInShort({finding}), "1 finding: WARN DeadRelu (loss, since EVAL step 3)");
  EXPECT_EQ(StepText("TRAIN", 3), "step 3");
  EXPECT_EQ(StepText("\033", 3).find('\033'), std::string::npos);
}

TEST(Teller, ManyOfOneStepAreCounted) {
  Teller teller(false, 100);
  std::vector<FindingEvent> events;
  for (int i = 0; i < 12; ++i) events.emplace_back(Seen("relu" + std::to_string(i), 8), "new");
  const std::string text = teller.Tell(events);
  EXPECT_EQ(Count(text, "also WARN"), 4U);
  EXPECT_NE(text.find("luff:   and 7 more of DeadRelu at this step\n"), std::string::npos) << text;
}

TEST(Teller, WorseAndHealedAreOneLineEach_ARepetitionIsNone) {
  Teller teller(false, 100);
  rules::Finding finding = Seen("relu1", 32);
  EXPECT_FALSE(teller.Tell({{finding, "new"}}).empty());
  EXPECT_EQ(teller.Tell({{finding, "update"}}), "");
  finding.severity = rules::Severity::kStop;
  EXPECT_EQ(teller.Tell({{finding, "update"}}), "luff: now STOP: DeadRelu relu1: units are dead\n");
  EXPECT_EQ(teller.Tell({{finding, "update"}}), "");
  finding.last_step = 90;
  EXPECT_EQ(teller.Tell({{finding, "healed"}}), "luff: DeadRelu relu1 has healed at step 90\n");
}

TEST(Teller, WhatAnEarlierPartOfTheRunHasTold_IsNotToldAgain) {
  Teller teller(false, 100);
  rules::Finding finding = Seen("relu1", 32);
  teller.Know(finding);
  EXPECT_EQ(teller.Tell({{finding, "update"}}), "");
  finding.last_step = 40;
  EXPECT_EQ(teller.Tell({{finding, "healed"}}), "luff: DeadRelu relu1 has healed at step 40\n");
}

TEST(Teller, BecomingWorseInTheSameMoment_IsToldOnceAsStop) {
  Teller teller(false, 100);
  rules::Finding worse = Seen("relu1", 32);
  worse.severity = rules::Severity::kStop;
  const std::string text = teller.Tell({{Seen("relu1", 32), "new"}, {worse, "update"}});
  EXPECT_TRUE(text.starts_with("luff: STOP DeadRelu")) << text;
  EXPECT_EQ(text.find("now STOP"), std::string::npos);
  EXPECT_EQ(Count(text, "units are dead"), 1U);
}

TEST(FindingText, NoLineIsWiderThanTheTerminal_AndNothingEscapes) {
  rules::Finding finding = Seen("weight\033[2J", 8, rules::Severity::kStop, "WeightUpdateRatio");
  finding.what =
      "the weights moved by 19 times their own size between steps 0 and 8 (SmallCNN_head.weight by 28)";
  finding.why = finding.what + ", and " + finding.what;
  const std::string text = FindingText(finding, false, 60);
  EXPECT_EQ(text.find('\033'), std::string::npos);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    EXPECT_LE(end - at, 60U) << text.substr(at, end - at);
    at = end + 1;
  }
}

TEST(FindingsInShort, NamesTheGravest) {
  EXPECT_EQ(FindingsInShort({}), "no findings");
  EXPECT_EQ(FindingsInShort({Seen("a", 3)}), "1 finding: WARN DeadRelu (a, since step 3)");
  EXPECT_EQ(FindingsInShort({Seen("a", 3), Seen("b", 9, rules::Severity::kStop)}),
            "2 findings: first STOP DeadRelu (b, since step 9)");
}

TEST(FindingsInShort, NaNComesFirstAmongWhatStops) {
  rules::Finding nan = Seen("loss", 9, rules::Severity::kStop, "NonFinite");
  nan.id = "1";
  rules::Finding shrinkage = Seen("w", 3, rules::Severity::kStop, "RegularizationDominates");
  shrinkage.id = "2";
  EXPECT_EQ(FindingsInShort({shrinkage, nan}), "2 findings: first STOP NonFinite (loss, since step 9)");
  nan.severity = rules::Severity::kWarn;  // of one batch
  EXPECT_EQ(FindingsInShort({shrinkage, nan}),
            "2 findings: first STOP RegularizationDominates (w, since step 3)");
}

TEST(FindingsInShort, WhatFollowsCountsWithItsLeader) {
  rules::Finding leader = Seen("loss", 0, rules::Severity::kWarn, "InitialLoss");
  leader.id = "1";
  rules::Finding follower = Seen("b", 9, rules::Severity::kStop);
  follower.id = "2";
  follower.leader = "1";
  EXPECT_EQ(FindingsInShort({leader, follower}),
            "1 finding and 1 that follows: STOP InitialLoss (loss, since step 0)");
}

TEST(FindingsInShort, WhatHasHealedMakesItsLeaderNoGraver) {
  rules::Finding leader = Seen("loss", 0, rules::Severity::kWarn, "InputScale");
  leader.id = "1";
  rules::Finding follower = Seen("b", 9, rules::Severity::kStop, "ConstantOutput");
  follower.id = "2";
  follower.leader = "1";
  follower.healed = true;
  EXPECT_EQ(FindingsInShort({leader, follower}), "1 finding: WARN InputScale (loss, since step 0)");
  follower.healed = false;
  leader.healed = true;
  EXPECT_EQ(FindingsInShort({leader, follower}),
            "2 findings, 1 healed: first STOP ConstantOutput (b, since step 9)");
}

TEST(FindingsInShort, NamesTheStepOfTheBestModel) {
  rules::Finding past = Seen("loss", 65, rules::Severity::kWarn, "Overfit");
  past.evidence = {{"best_step", past.since_step}};
  EXPECT_EQ(FindingsInShort({past}),
            fmt::format("1 finding: WARN Overfit (loss, best evaluation after step {})", past.since_step));
}

TEST(FindingsInShort, WhatHasHealedDoesNotStand) {
  rules::Finding healed = Seen("a", 3, rules::Severity::kStop);
  healed.id = "1";
  healed.healed = true;
  EXPECT_EQ(FindingsInShort({healed}), "1 finding, healed: STOP DeadRelu (a, since step 3)");
  EXPECT_EQ(FindingsInShort({healed, Seen("b", 9)}),
            "2 findings, 1 healed: first WARN DeadRelu (b, since step 9)");
}

TEST(Teller, WhatFollowsIsOneLine_AndMoreDetailIsTold) {
  Teller teller(false, 100);
  rules::Finding leader = Seen("loss", 0, rules::Severity::kWarn, "NonFinite");
  leader.id = "1";
  rules::Finding follower = Seen("b", 9, rules::Severity::kStop);
  follower.id = "2";
  follower.leader = "1";
  EXPECT_NE(teller.Tell({{leader, "new"}}).find("since"), std::string::npos);
  const std::string text = teller.Tell({{follower, "new"}});
  EXPECT_TRUE(text.starts_with("luff: follows: STOP DeadRelu b: ")) << text;
  EXPECT_EQ(Count(text, "\n"), 1U);
  leader.evidence.emplace_back("detail", 2.0);
  leader.what = "logarithm of zero in line 3";
  EXPECT_EQ(teller.Tell({{leader, "update"}}), "luff: more of NonFinite loss: logarithm of zero in line 3\n");
  EXPECT_EQ(teller.Tell({{leader, "update"}}), "");
}

TEST(InGroups, LeadersComeBeforeWhatFollowsFromThem) {
  std::vector<rules::Finding> findings;
  for (const char* tensor : {"a", "b", "c", "d", "e"}) findings.push_back(Seen(tensor, 1));
  findings[0].leader = findings[3].id;  // a follows from d
  findings[1].leader = "gone";          // b leads: its leader isn't there
  findings[2].leader = findings[0].id;  // c follows from a follower
  findings[4].leader = findings[3].id;
  std::string order;
  for (const rules::Finding* finding : rules::InGroups(findings)) order += finding->tensor;
  EXPECT_EQ(order, "bdaec");
  for (rules::Finding& finding : findings) finding.id = finding.leader = "";  // as in a hostile file
  EXPECT_EQ(rules::InGroups(findings).size(), 5U);
}

/// Returns `count` findings of one rule at different steps; every second one follows from the one before it.
std::vector<rules::Finding> Many(std::size_t count) {
  std::vector<rules::Finding> findings;
  for (std::size_t i = 0; i < count; ++i) {
    findings.push_back(Seen("t" + std::to_string(i), static_cast<std::int64_t>(i)));
    if (i % 2 == 1) findings.back().leader = findings[i - 1].id;
  }
  return findings;
}

double SecondsToTell(std::size_t count) {
  const std::vector<rules::Finding> findings = Many(count);
  return query::testing::CpuSeconds([&] {
    EXPECT_EQ(rules::InGroups(findings).size(), count);
    EXPECT_FALSE(FindingsInShort(findings).empty());
    std::vector<FindingEvent> events;
    for (const rules::Finding& finding : findings) events.emplace_back(finding, "new");
    Teller teller(false, 100);
    EXPECT_FALSE(teller.Tell(events).empty());
  });
}

TEST(Findings, AreToldInLinearTime) { EXPECT_TRUE(query::testing::IsLinear(SecondsToTell, 2000)); }

}  // namespace
}  // namespace luff::cli::report_test
