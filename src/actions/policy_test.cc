#include "luff/actions/policy.h"

#include <gtest/gtest.h>

namespace luff::actions::policy_test {
namespace {

using What = Decision::What;

rules::Finding MakeFinding(const std::string& id, const std::string& rule = "LossSpike",
                           rules::Severity severity = rules::Severity::kWarn) {
  rules::Finding finding;
  finding.id = id;
  finding.rule = rule;
  finding.cause = "spike";
  finding.severity = severity;
  return finding;
}

ActionSpec Tell(const std::string& name = "tell") {
  ActionSpec spec;
  spec.name = name;
  spec.kind = ActionKind::kWebhook;
  spec.dry_run = false;
  return spec;
}

std::vector<What> Kinds(const std::vector<Decision>& decisions) {
  std::vector<What> kinds;
  for (const Decision& decision : decisions) kinds.push_back(decision.what);
  return kinds;
}

TEST(PolicyTest, ChoosesByRuleSeverityAndLeader) {
  ActionSpec spec = Tell();
  spec.rules = {"NonFinite"};
  spec.severity = rules::Severity::kStop;
  ActionSpec all = Tell("all");
  Policy policy({spec, all});
  EXPECT_EQ(policy.OnFinding(MakeFinding("1"), "new", false, 0, 0).size(), 1U);
  EXPECT_EQ(policy.OnFinding(MakeFinding("2", "NonFinite"), "new", false, 0, 0).size(), 1U);
  EXPECT_EQ(
      policy.OnFinding(MakeFinding("3", "NonFinite", rules::Severity::kStop), "new", false, 0, 0).size(), 2U);
  rules::Finding consequence = MakeFinding("4", "NonFinite", rules::Severity::kStop);
  consequence.leader = "1";  // only the action that names the rule acts for a consequence
  const auto decisions = policy.OnFinding(consequence, "new", false, 0, 0);
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_EQ(decisions[0].spec->name, "tell");
}

TEST(PolicyTest, ActsOncePerFindingAndTellsAgainWhenItIsWorse) {
  ActionSpec stop = Tell("stop");
  stop.kind = ActionKind::kStop;
  stop.dry_run = true;
  Policy policy({Tell(), stop});
  EXPECT_EQ(Kinds(policy.OnFinding(MakeFinding("1"), "new", false, 0, 0)),
            (std::vector{What::kAct, What::kDryRun}));
  EXPECT_TRUE(policy.OnFinding(MakeFinding("1"), "update", false, 1, 5).empty());
  const auto worse =
      policy.OnFinding(MakeFinding("1", "LossSpike", rules::Severity::kStop), "update", true, 2, 9);
  ASSERT_EQ(worse.size(), 1U);
  EXPECT_EQ(worse[0].event, "worse");
  EXPECT_EQ(worse[0].spec->name, "tell");
}

TEST(PolicyTest, ASeverityThatRisesIntoAnActionActs) {
  ActionSpec spec = Tell();
  spec.kind = ActionKind::kCommand;
  spec.severity = rules::Severity::kStop;
  Policy policy({spec});
  EXPECT_TRUE(policy.OnFinding(MakeFinding("1"), "new", false, 0, 0).empty());
  EXPECT_EQ(
      policy.OnFinding(MakeFinding("1", "LossSpike", rules::Severity::kStop), "update", true, 1, 1).size(),
      1U);
}

TEST(PolicyTest, WaitsForTheNumberOfFindings) {
  ActionSpec spec = Tell();
  spec.findings = 3;
  Policy policy({spec});
  EXPECT_TRUE(policy.OnFinding(MakeFinding("1"), "new", false, 0, 0).empty());
  EXPECT_TRUE(policy.OnFinding(MakeFinding("1"), "update", false, 0, 0).empty());  // the same finding
  EXPECT_TRUE(policy.OnFinding(MakeFinding("2"), "new", false, 0, 0).empty());
  EXPECT_EQ(policy.OnFinding(MakeFinding("3"), "new", false, 0, 0).size(), 1U);
  EXPECT_EQ(policy.OnFinding(MakeFinding("4"), "new", false, 0, 0).size(), 1U);
}

TEST(PolicyTest, RateLimitIsAWindow) {
  ActionSpec spec = Tell();
  spec.limit = 2;
  spec.per_s = 100;
  Policy policy({spec});
  EXPECT_EQ(Kinds(policy.OnFinding(MakeFinding("1"), "new", false, 1000, 0)), std::vector{What::kAct});
  EXPECT_EQ(Kinds(policy.OnFinding(MakeFinding("2"), "new", false, 1050, 0)), std::vector{What::kAct});
  EXPECT_EQ(Kinds(policy.OnFinding(MakeFinding("3"), "new", false, 1099, 0)), std::vector{What::kLimited});
  EXPECT_EQ(Kinds(policy.OnFinding(MakeFinding("4"), "new", false, 1100, 0)), std::vector{What::kAct});
  EXPECT_EQ(Kinds(policy.OnFinding(MakeFinding("5"), "new", false, 1149, 0)), std::vector{What::kLimited});
}

TEST(PolicyTest, SilenceIsPerCause) {
  ActionSpec spec = Tell();
  spec.quiet_s = 60;
  Policy policy({spec});
  EXPECT_EQ(Kinds(policy.OnFinding(MakeFinding("1"), "new", false, 0, 0)), std::vector{What::kAct});
  EXPECT_EQ(Kinds(policy.OnFinding(MakeFinding("2"), "new", false, 59, 0)), std::vector{What::kSilenced});
  EXPECT_EQ(Kinds(policy.OnFinding(MakeFinding("3", "Other"), "new", false, 59, 0)), std::vector{What::kAct});
  EXPECT_EQ(Kinds(policy.OnFinding(MakeFinding("4"), "new", false, 60, 0)), std::vector{What::kAct});
}

TEST(PolicyTest, SilenceOfATraceIsPerRule) {
  ActionSpec trace = Tell("trace");
  trace.kind = ActionKind::kTrace;
  trace.quiet_s = 1e9;
  Policy policy({trace});
  const auto asked = [&](const char* id, const char* rule, const char* cause, double now_s) {
    rules::Finding finding = MakeFinding(id, rule);
    finding.cause = cause;
    return Kinds(policy.OnFinding(finding, "new", false, now_s, 0)).at(0);
  };
  EXPECT_EQ(asked("1", "InputBound", "no_workers", 0), What::kAct);
  EXPECT_EQ(asked("2", "InputBound", "slow_worker", 9), What::kSilenced);
  EXPECT_EQ(asked("3", "GpuUnderused", "underused", 9), What::kAct);
  Policy next({trace});  // of another supervisor of the run
  next.Remember("trace", "1", "InputBound/no_workers", -50);
  EXPECT_EQ(Kinds(next.OnFinding(MakeFinding("4", "InputBound"), "new", false, 9, 0)).at(0), What::kSilenced);
}

TEST(PolicyTest, EscalatesByTimeOrStepsUnlessItHeals) {
  ActionSpec after = Tell("after");
  after.kind = ActionKind::kStop;
  after.escalates = "tell";
  after.after_s = 600;
  after.after_steps = 100;
  Policy policy({Tell(), after});
  EXPECT_EQ(policy.OnFinding(MakeFinding("1"), "new", false, 0, 10).size(), 1U);
  EXPECT_EQ(policy.OnFinding(MakeFinding("2"), "new", false, 0, 10).size(), 1U);
  EXPECT_EQ(policy.OnFinding(MakeFinding("3"), "new", false, 500, 50).size(), 1U);
  EXPECT_TRUE(policy.Tick(599, 109).empty());
  EXPECT_TRUE(policy.OnFinding(MakeFinding("2"), "healed", false, 599, 109).empty());
  const auto due = policy.Tick(599, 110);
  ASSERT_EQ(due.size(), 1U);
  EXPECT_EQ(due[0].finding.id, "1");
  EXPECT_EQ(due[0].event, "escalation");
  EXPECT_TRUE(policy.Tick(599, 110).empty());
  EXPECT_EQ(policy.Tick(1100, 140).size(), 1U);
  EXPECT_FALSE(policy.waits());
}

// As NonFinite does: a warning becomes a stop long after the escalated action was taken.
TEST(PolicyTest, EscalatesAWarningThatBecomesAStop) {
  ActionSpec lower = Tell("lower");
  lower.kind = ActionKind::kLowerLr;
  ActionSpec stop = Tell("stop");
  stop.kind = ActionKind::kStop;
  stop.severity = rules::Severity::kStop;
  stop.escalates = "lower";
  stop.after_s = 600;
  ActionSpec again = Tell("again");  // escalates an escalation
  again.severity = rules::Severity::kStop;
  again.escalates = "stop";
  again.after_steps = 5;
  Policy policy({lower, stop, again});
  EXPECT_EQ(policy.OnFinding(MakeFinding("1"), "new", false, 100, 10).size(), 1U);
  EXPECT_TRUE(policy.Tick(5000, 90).empty());  // a warning is below the severity of `stop`
  const rules::Finding worse = MakeFinding("1", "LossSpike", rules::Severity::kStop);
  EXPECT_TRUE(policy.OnFinding(worse, "update", true, 650, 60).empty());
  EXPECT_TRUE(policy.Tick(699, 60).empty());
  const auto due = policy.Tick(700, 60);  // 600 s after the first action acted
  ASSERT_EQ(due.size(), 1U);
  EXPECT_EQ(due[0].spec->name, "stop");
  EXPECT_EQ(due[0].finding.severity, rules::Severity::kStop);
  EXPECT_TRUE(policy.OnFinding(worse, "update", false, 701, 62).empty());
  EXPECT_EQ(policy.Tick(702, 65).size(), 1U);
  EXPECT_TRUE(policy.Tick(9000, 900).empty());  // each escalation acts once
}

TEST(PolicyTest, RemembersWhatAnEarlierSupervisorDid) {
  ActionSpec spec = Tell();
  spec.limit = 1;
  spec.per_s = 100;
  Policy policy({spec});
  policy.Remember("tell", "1", "LossSpike/spike", 1000);
  policy.Remember("gone", "1", "LossSpike/spike", 1000);
  Policy young({spec});  // on a machine that has just booted: the action is older than the clock's zero
  young.Remember("tell", "1", "LossSpike/spike", -50);
  EXPECT_EQ(Kinds(young.OnFinding(MakeFinding("2"), "new", false, 20, 0)), std::vector{What::kLimited});
  EXPECT_EQ(Kinds(young.OnFinding(MakeFinding("3"), "new", false, 50, 0)), std::vector{What::kAct});
  EXPECT_TRUE(policy.OnFinding(MakeFinding("1"), "new", false, 1001, 0).empty());
  EXPECT_EQ(Kinds(policy.OnFinding(MakeFinding("2"), "new", false, 1001, 0)), std::vector{What::kLimited});
}

TEST(PolicyTest, EscalatesWhatAnEarlierSupervisorLeftOpen) {
  ActionSpec stop = Tell("stop");
  stop.kind = ActionKind::kStop;
  stop.severity = rules::Severity::kStop;
  stop.escalates = "tell";
  stop.after_steps = 50;
  ActionSpec late = stop;
  late.name = "late";
  late.after_steps = -1;
  late.after_s = 600;
  Policy policy({Tell(), stop, late});
  for (const char* id : {"1", "3", "4"}) policy.Remember("tell", id, "LossSpike/spike", -5000);
  policy.Remember("stop", "4", "LossSpike/spike", -5000);
  policy.Remember("late", "4", "LossSpike/spike", -5000);
  policy.Resume(MakeFinding("1", "LossSpike", rules::Severity::kStop), 100, 1000);
  policy.Resume(MakeFinding("3"), 100, 1000);                                       // a warning
  policy.Resume(MakeFinding("4", "LossSpike", rules::Severity::kStop), 100, 1000);  // already stopped for it
  policy.Resume(MakeFinding("5", "LossSpike", rules::Severity::kStop), 100, 1000);  // no action
  EXPECT_TRUE(policy.Tick(699, 1049).empty());  // both count from the restart
  const auto far = policy.Tick(699, 1050);
  ASSERT_EQ(far.size(), 1U);
  EXPECT_EQ(far[0].spec->name, "stop");
  EXPECT_EQ(far[0].finding.id, "1");
  EXPECT_EQ(policy.Tick(700, 1050).size(), 1U);
  EXPECT_FALSE(policy.waits());
}

// A job of 70 steps may be almost over before its first step is known.
TEST(PolicyTest, StepsOfAnEscalationCountFromTheFirstStepThatIsKnown) {
  ActionSpec stop = Tell("stop");
  stop.kind = ActionKind::kStop;
  stop.escalates = "tell";
  stop.after_steps = 60;
  Policy policy({Tell(), stop});
  EXPECT_EQ(policy.OnFinding(MakeFinding("1"), "new", false, 0, -1).size(), 1U);
  EXPECT_TRUE(policy.Tick(0, -1).empty());
  EXPECT_TRUE(policy.Tick(1, 69).empty());
  EXPECT_TRUE(policy.Tick(2, 128).empty());
  EXPECT_EQ(policy.Tick(3, 129).size(), 1U);
}

TEST(PolicyTest, KindsHaveNames) {
  EXPECT_EQ(*ParseKind("lower_lr"), ActionKind::kLowerLr);
  EXPECT_EQ(KindName(ActionKind::kMail), "mail");
  EXPECT_NE(ParseKind("webhok").status().message().find("webhook"), std::string_view::npos);
}

TEST(PolicyTest, ATraceThatWaitsAndIsDroppedHasNotActed) {
  ActionSpec trace = Tell("look");
  trace.kind = ActionKind::kTrace;
  trace.trace_share = 0.01;  // 150 s
  trace.quiet_s = 1e9;
  trace.limit = 1;
  trace.per_s = 600;
  Policy policy({trace});
  policy.TrainsSince(0);
  EXPECT_TRUE(policy.OnFinding(MakeFinding("1", "GpuUnderused"), "new", false, 10, 1).empty());
  EXPECT_TRUE(policy.OnFinding(MakeFinding("2", "GpuUnderused"), "new", false, 20, 2).empty());
  EXPECT_TRUE(policy.OnFinding(MakeFinding("3", "InputBound"), "new", false, 30, 3).empty());
  EXPECT_TRUE(policy.OnFinding(MakeFinding("3", "InputBound"), "updated", true, 35, 3).empty());
  EXPECT_TRUE(policy.OnFinding(MakeFinding("1", "GpuUnderused"), "healed", false, 40, 4).empty());
  EXPECT_TRUE(policy.waits());
  EXPECT_TRUE(policy.Tick(149, 14).empty());
  const auto first = policy.Tick(150, 15);
  ASSERT_EQ(first.size(), 1U);  // at most one in ten minutes
  EXPECT_EQ(first[0].finding.id, "2");
  EXPECT_EQ(first[0].what, Decision::What::kAct);
  EXPECT_TRUE(policy.Tick(749, 70).empty());
  const auto next = policy.Tick(750, 75);
  ASSERT_EQ(next.size(), 1U);
  EXPECT_EQ(next[0].finding.id, "3");
  EXPECT_EQ(next[0].what, Decision::What::kAct);
  EXPECT_FALSE(policy.waits());
  const auto again = policy.OnFinding(MakeFinding("4", "InputBound"), "new", false, 760, 76);
  ASSERT_EQ(again.size(), 1U);  // once for each rule
  EXPECT_EQ(again[0].what, Decision::What::kSilenced);
}

}  // namespace
}  // namespace luff::actions::policy_test
