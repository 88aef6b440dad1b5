// Tests the parent's side of docs/spec/rule-child.md, with shell scripts in place of rules.
#include "rules/own/own_rule.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rules/facts/step_memo.h"
#include "rules/kit/ends_later.h"
#include "rules/own/own_child.h"
#include "rules/own/own_host.h"
#include "rules/own/own_spec.h"
#include "rules/testing/fake_trial.h"

namespace luff::rules::own_rule_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
namespace fs = std::filesystem;

// For what a machine under load takes: two minutes of turns.
constexpr int kLongest = 60'000;
constexpr auto kPause = std::chrono::milliseconds(2);

// Reads the number of a step into $n, and sends the answers that every rule sends.
constexpr const char* kLoop = R"(
say() { echo "$1" >&3; }
found() { say '{"say":"finding","severity":"warn","cause":"c'$n'","tensor":"","what":"w","step":'$n'}'; }
while read -r line <&3; do
  case "$line" in
    *'"begin"'*) begun "$line"; say '{"say":"ready"}' ;;
    *'"step"'*) n=${line##*:}; n=${n%\}}; step; say '{"say":"done","number":'$n'}' ;;
    *'"save"'*) say '{"say":"state","state":"'$n'"}' ;;
    *'"end"'*) say '{"say":"ended"}'; exit 0 ;;
  esac
done
)";

class Heard final : public Sink {
 public:
  void Report(Finding finding) override { causes.push_back(finding.cause); }
  void Heal(const std::string& cause, const std::string&, std::int64_t) override { healed.push_back(cause); }
  void Note(const std::string& text, bool failed) override {
    notes.push_back(text);
    failures += failed ? 1 : 0;
  }
  std::vector<std::string> causes, healed, notes;
  int failures = 0;
};

class OwnRuleTest : public ::testing::Test {
 protected:
  OwnRuleTest() {
    fs::create_directories(folder_);
    for (int step = 0; step < 40; ++step) trial_.Step().Loss(1);
  }
  ~OwnRuleTest() override { fs::remove_all(folder_); }

  std::unique_ptr<Rule> Make(const std::string& functions) {
    OwnRuleOptions options;
    options.rule = options.name = "Test";
    options.argv = {"/bin/sh", "-c", functions + kLoop};
    options.environment = {{"MARK", mark()}};
    options.step_s = 2;
    options.start_s = 20;
    return MakeOwnRule(options);
  }
  void Tell(Rule& rule, Heard& heard, std::size_t from, std::size_t to) {
    query::Trial::StepRows rows;
    for (std::size_t n = from; n < to; ++n) {
      ASSERT_TRUE(trial_.ReadStepRows(n, &rows).ok());
      StepMemo memo;
      rule.OnStep({trial_, rows, n, memo, StepIndex(trial_, rows)}, heard);
    }
  }
  static void Wait(Rule& rule, Heard& heard) {
    while (rule.behind() > 0) rule.OnPause(heard);
  }
  [[nodiscard]] std::string mark() const { return folder_ / "mark"; }
  [[nodiscard]] std::size_t marks() const {
    std::error_code error;
    const auto size = fs::file_size(mark(), error);
    return error ? 0 : size;
  }

  testing::FakeTrial trial_;
  const fs::path folder_ = fs::temp_directory_path() / ("luff-own-rule-" + std::to_string(getpid()));
};

TEST_F(OwnRuleTest, FindingsComeInTheOrderOfSteps) {
  const auto rule = Make("begun() { :; }; step() { [ $((n % 10)) = 3 ] && found; }");
  Heard heard;
  Tell(*rule, heard, 0, 40);
  EXPECT_GT(rule->behind(), 0U);  // sending steps does not wait
  rule->OnEnd(trial_, heard);
  EXPECT_EQ(rule->behind(), 0U);
  EXPECT_THAT(heard.causes, ElementsAre("c3", "c13", "c23", "c33"));
  EXPECT_THAT(heard.notes, IsEmpty());
}

TEST_F(OwnRuleTest, WhatADyingProcessSaidOfAStepThatWasNotDoneIsLeftOutAndNothingComesTwice) {
  const auto rule = Make(R"(begun() { :; }
    step() { [ $((n % 10)) = 3 ] && found; [ $n = 23 ] && [ ! -e "$MARK" ] && { : > "$MARK"; kill -9 $$; }; })");
  Heard heard;
  Tell(*rule, heard, 0, 40);
  rule->OnEnd(trial_, heard);
  EXPECT_THAT(heard.causes, ElementsAre("c3", "c13", "c23", "c33"));
  EXPECT_THAT(heard.notes, ElementsAre(HasSubstr("its process ended (signal 9 (Killed) at step number 23)")));
  EXPECT_EQ(heard.failures, 0);
}

TEST_F(OwnRuleTest, AfterThreeDeathsItIsSetAside) {
  const auto rule = Make(R"(begun() { printf x >> "$MARK"; }
    step() { [ $n = 2 ] && found; [ $n = 5 ] && { echo farewell; exit 3; }; })");
  Heard heard;
  Tell(*rule, heard, 0, 40);
  rule->OnEnd(trial_, heard);
  EXPECT_THAT(heard.causes, ElementsAre("c2"));
  EXPECT_EQ(marks(), 3U);
  ASSERT_THAT(heard.notes, SizeIs(3));
  EXPECT_THAT(heard.notes[2], HasSubstr("set aside, its process ended 3 times; the last time: exit code 3"));
  EXPECT_THAT(heard.notes[2], HasSubstr("its last words: farewell"));
  EXPECT_EQ(heard.failures, 1);
  EXPECT_EQ(rule->behind(), 0U);
  // It stays set aside after a restart of the evaluator.
  const auto again = Make("begun() { printf x >> $MARK; }; step() { :; }");
  ASSERT_TRUE(again->LoadState(rule->SaveState()).ok());
  Tell(*again, heard, 0, 5);
  again->OnEnd(trial_, heard);
  EXPECT_EQ(marks(), 3U);
}

TEST_F(OwnRuleTest, OneThatHangsIsKilled) {
  const auto rule = Make("begun() { :; }; step() { [ $n = 1 ] && sleep 1000; }");
  Heard heard;
  Tell(*rule, heard, 0, 3);
  rule->OnEnd(trial_, heard);
  ASSERT_THAT(heard.notes, SizeIs(3));
  EXPECT_THAT(heard.notes[0], HasSubstr("no answer within 2 s at step number 1"));
}

TEST_F(OwnRuleTest, LinesThatAreNotOfTheProtocolEndIt) {
  for (const char* bad :
       {"nonsense", "{}", R"({"say":"done","number":77})", R"({"say":"what"})", R"({"say":7})",
        R"({"say":"finding","severity":"bad"})", R"({"say":"ended"})", "[1]", "\\377"}) {
    const auto rule =
        Make(std::string("begun() { :; }; step() { printf '") + bad + "\\n' >&3; sleep 1000; }");
    Heard heard;
    Tell(*rule, heard, 0, 3);
    rule->OnEnd(trial_, heard);
    EXPECT_EQ(heard.failures, 1) << bad;
    EXPECT_THAT(heard.causes, IsEmpty());
  }
}

TEST_F(OwnRuleTest, ALineOfAnyDepthEndsItAlone) {
  // Copying and writing JSON recurse: such a line once ended all 57 rules with the one that sent it.
  for (const char* begin : {"", R"({"say":"state","state":)", R"({"say":"done","number":0,"raised":)"}) {
    const auto rule = Make(std::string("begun() { :; }; step() { { printf '%s' '") + begin +
                           "'; head -c 200000 /dev/zero | tr '\\0' '['; echo; } >&3; sleep 1000; }");
    Heard heard;
    Tell(*rule, heard, 0, 3);
    rule->OnEnd(trial_, heard);
    EXPECT_EQ(heard.failures, 1) << begin;
    EXPECT_THAT(heard.notes, ::testing::Each(HasSubstr("not of the protocol"))) << begin;
  }
}

TEST_F(OwnRuleTest, WhatItPrintsIsNotReadAsLines) {
  const auto rule = Make(R"(begun() { :; }
    step() { echo '{"say":"done","number":99}'; head -c 100000 /dev/zero; echo; [ $n = 2 ] && found; })");
  Heard heard;
  Tell(*rule, heard, 0, 5);
  rule->OnEnd(trial_, heard);
  EXPECT_THAT(heard.causes, ElementsAre("c2"));
  EXPECT_THAT(heard.notes, IsEmpty());
}

TEST_F(OwnRuleTest, AnErrorThatComesBackSetsItAsideAtOnce) {
  const auto rule =
      Make(R"(begun() { printf x >> "$MARK"; say '{"say":"error","message":"cannot begin"}'; exit 1; }
    step() { :; })");
  Heard heard;
  Tell(*rule, heard, 0, 3);
  rule->OnEnd(trial_, heard);
  EXPECT_EQ(marks(), 1U);
  EXPECT_THAT(heard.notes, ElementsAre(HasSubstr("it is set aside: cannot begin")));
}

TEST_F(OwnRuleTest, ACheckpointGoesOnWhereTheChildWas) {
  Heard heard;
  const auto first = Make("begun() { :; }; step() { [ $((n % 10)) = 3 ] && found; }");
  Tell(*first, heard, 0, 15);
  Wait(*first, heard);
  EXPECT_THAT(heard.causes, ElementsAre("c3", "c13"));
  const std::string state = first->SaveState();
  // A restart without a state of the child repeats all steps, and reports nothing twice.
  const auto second = Make("begun() { :; }; step() { printf x >> $MARK; [ $((n % 10)) = 3 ] && found; }");
  ASSERT_TRUE(second->LoadState(state).ok());
  Tell(*second, heard, 15, 40);
  second->OnEnd(trial_, heard);
  EXPECT_THAT(heard.causes, ElementsAre("c3", "c13", "c23", "c33"));
  EXPECT_EQ(marks(), 40U);
}

TEST_F(OwnRuleTest, AfterARestartItJudgesTheRestWithoutANewStep) {
  Heard heard;
  const auto first = Make("begun() { :; }; step() { :; }");
  Tell(*first, heard, 0, 15);
  const auto second = Make("begun() { :; }; step() { [ $((n % 10)) = 3 ] && found; }");
  ASSERT_TRUE(second->LoadState(first->SaveState()).ok());
  ASSERT_EQ(second->behind(), 15U);
  dynamic_cast<EndsLater&>(*second).Judges(trial_);
  for (int i = 0; i < kLongest && second->behind() > 0; ++i) {
    second->OnPause(heard);
    std::this_thread::sleep_for(kPause);
  }
  EXPECT_EQ(second->behind(), 0U);
  EXPECT_THAT(heard.causes, ElementsAre("c3", "c13"));
}

TEST_F(OwnRuleTest, AJobThatIsResumedBeforeItsEndWasJudgedIsJudgedOn) {
  Heard heard;
  const auto rule = Make("begun() { :; }; step() { [ $((n % 10)) = 3 ] && found; }");
  Tell(*rule, heard, 0, 15);
  auto& later = dynamic_cast<EndsLater&>(*rule);
  for (int i = 0; i < kLongest && later.pending(); ++i) {
    later.Ending(trial_, heard);
    rule->OnPause(heard);
    std::this_thread::sleep_for(kPause);
  }
  ASSERT_FALSE(later.pending());
  Tell(*rule, heard, 15, 40);
  EXPECT_GT(rule->behind(), 0U);
  rule->OnEnd(trial_, heard);
  EXPECT_THAT(heard.causes, ElementsAre("c3", "c13", "c23", "c33"));
}

TEST_F(OwnRuleTest, HostileStatesAreRefused) {
  const auto rule = Make("begun() { :; }; step() { :; }");
  for (
      const char* bad :
      {"", "{}", "[]",
       R"({"end":1,"delivered":2,"saved":0,"state":"","deaths":0,"aside":false,"raised":0,"lacked":0,)"
       R"("last_lack":""})",
       R"({"end":-1,"delivered":-1,"saved":-1,"state":"","deaths":0,"aside":false,"raised":0,"lacked":0,"last_lack":3})"})
    EXPECT_FALSE(rule->LoadState(bad).ok()) << bad;
}

TEST_F(OwnRuleTest, AProgramThatIsNotThereIsTold) {
  OwnRuleOptions options;
  options.argv = {"/nowhere/python"};
  EXPECT_EQ(DescribeOwnRule(options).status().code(), StatusCode::kNotFound);
  const auto rule = MakeOwnRule(options);
  Heard heard;
  Tell(*rule, heard, 0, 2);
  rule->OnEnd(trial_, heard);
  EXPECT_THAT(heard.notes, ElementsAre(HasSubstr("cannot run '/nowhere/python'")));
}

TEST_F(OwnRuleTest, DescribeTakesTheAnswerOfOneThatHasEnded) {
  OwnRuleOptions options;
  options.argv = {"/bin/sh", "-c", R"(read -r line <&3; echo '{"say":"description","name":"X"}' >&3)"};
  for (int i = 0; i < 20; ++i) {
    const auto answer = DescribeOwnRule(options);
    ASSERT_TRUE(answer.ok()) << answer.status().ToString();
    EXPECT_THAT(answer.value(), HasSubstr("\"X\""));
  }
  options.argv = {"/bin/sh", "-c", "echo the reason; exit 1"};
  EXPECT_THAT(std::string(DescribeOwnRule(options).status().message()), HasSubstr("the reason"));
}

bool IsDead(const fs::path& process) {
  std::ifstream stat(process / "stat");
  std::string text;
  std::getline(stat, text);
  return text.empty() || text.find(") Z ") != std::string::npos;  // a zombie: its parent has yet to reap it
}

TEST(OwnChildTest, ChildrenOfAChildEndWithIt) {
  for (const bool by_itself : {false, true}) {
    for (const char* start : {"sleep 1000 & echo $! >&3", "setsid sh -c 'echo $$ >&3; exec sleep 1000' &",
                              "(setsid sh -c 'echo $$ >&3; exec sleep 1000' &)"}) {
      const std::string script = std::string(start) + (by_itself ? "\nexit 3" : "\nsleep 1000");
      auto started = OwnChild::Start({{"/bin/sh", "-c", script}, {}, 0, false});
      ASSERT_TRUE(started.ok());
      std::vector<std::string> lines;
      while (lines.empty()) (*started)->Receive(50, &lines);
      const fs::path grandchild = "/proc/" + lines[0];
      while (by_itself && (*started)->Ended().empty()) (*started)->Receive(5, &lines);
      started->reset();
      for (int i = 0; i < 1000 && !IsDead(grandchild); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      EXPECT_TRUE(IsDead(grandchild)) << script;
    }
  }
}

TEST(OwnChildTest, ItsSignalsReachItselfAndItsChildrenOnly) {
  // Sends a signal that is ignored by default. Allowed: to its child, itself and its group (0). Refused: to
  // its parent, the parent's group, process 1 and all processes (-1).
  const std::string script = R"(try() { kill -s URG -- "$1" 2>/dev/null && echo yes >&3 || echo no >&3; }
    sleep 1000 & try $!; try $$; try 0; try $PPID; set -- $(cat /proc/$PPID/stat); try -$5; try 1; try -1)";
  auto started = OwnChild::Start({{"/bin/sh", "-c", script + "\nsleep 1000"}, {}, 0, false});
  ASSERT_TRUE(started.ok());
  EXPECT_EQ((*started)->unshielded(), "");
  std::vector<std::string> lines;
  while (lines.size() < 7 && (*started)->Ended().empty()) (*started)->Receive(50, &lines);
  EXPECT_THAT(lines, ElementsAre("yes", "yes", "yes", "no", "no", "no", "no"));
}

/// Simulates a kernel or a sandbox without filters for system calls. Returns false if there are none to take
/// away.
bool TakeAwayFilters() {
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_seccomp, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{4, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, 2, &program) == 0;
}

TEST_F(OwnRuleTest, AKernelThatHoldsNoSignalsBackIsTold) {
  const pid_t child = fork();  // in a child: this cannot be undone
  if (child == 0) {
    if (!TakeAwayFilters()) _exit(2);
    const auto rule = Make("begun() { :; }; step() { [ $n = 3 ] && found; }");
    Heard heard;
    Tell(*rule, heard, 0, 5);
    rule->OnEnd(trial_, heard);
    EXPECT_THAT(heard.causes, ElementsAre("c3"));
    EXPECT_THAT(heard.notes, ElementsAre("the kernel does not keep it from sending signals to other "
                                         "processes: Function not implemented"));
    EXPECT_EQ(heard.failures, 0);
    _exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "there are none to be taken away";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(OwnSpecTest, ValuesAsTextAndBack) {
  for (const std::string& value : std::vector<std::string>{"", "plain", "a,b:c=1%", "%2C", "%%25", "100%"})
    EXPECT_EQ(DecodeValue(EncodeValue(value)), value);
  EXPECT_EQ(EncodeValue("a,b:c"), "a%2Cb%3Ac");
  EXPECT_TRUE(NamesOwnRule("/path/x.py:Y"));
  EXPECT_TRUE(NamesOwnRule("libx.so:Y"));
  EXPECT_FALSE(NamesOwnRule("DeadRelu"));
  EXPECT_FALSE(NamesOwnRule(".py:"));
}

// ---- One process for many runs

// As kLoop; $s is the stream.
constexpr const char* kStreams = R"(
say() { echo "{\"stream\":$s,$1" >&3; }
found() { say '"say":"finding","severity":"warn","cause":"r'$s'c'$n'","tensor":"","what":"w","step":'$n'}'; }
echo x >> "$MARK"
while read -r line <&3; do
  s=${line#*'"stream":'}; s=${s%%,*}
  case "$line" in
    *'"begin"'*) begun; say '"say":"ready"}' ;;
    *'"step"'*) n=${line##*:}; n=${n%\}}; step; say '"say":"done","number":'$n'}' ;;
    *'"save"'*) say '"say":"state","state":"'$n'"}' ;;
    *'"end"'*) n=99; ending; say '"say":"ended"}' ;;
    *'"drop"'*) ;;
  esac
done
)";

class SharedProcess : public OwnRuleTest {
 protected:
  /// `step_s`: where nothing may be taken for a hang, a long time.
  void Begin(const std::string& functions, std::size_t count, double step_s = 20) {
    options = {};
    options.rule = options.name = "Test";
    options.argv = {"/bin/sh", "-c", "begun() { :; }; ending() { :; }; " + functions + kStreams};
    options.environment = {{"MARK", mark()}};
    options.step_s = step_s;
    options.start_s = 20;
    options.host = HostOf(options);
    rules.clear();
    heard = std::vector<Heard>(count);
    for (std::size_t i = 0; i < count; ++i) rules.push_back(MakeOwnRule(options));
  }
  /// All runs take their steps in turns, and end, as `luff watch` does it.
  void Judge() {
    for (std::size_t from = 0; from < 40; from += 10) {
      for (std::size_t i = 0; i < rules.size(); ++i) Tell(*rules[i], heard[i], from, from + 10);
    }
    const auto all = [&](const auto& holds) {
      for (int turns = 0; turns < kLongest; ++turns) {
        bool every = true;
        for (std::size_t i = 0; i < rules.size(); ++i) every = holds(*rules[i], heard[i]) && every;
        if (every) return;
        std::this_thread::sleep_for(kPause);
      }
      ADD_FAILURE() << "it never ends";
    };
    all([](Rule& rule, Heard& told) {
      rule.OnPause(told);
      return rule.behind() == 0;
    });
    all([&](Rule& rule, Heard& told) {
      auto& later = dynamic_cast<EndsLater&>(rule);
      later.Ending(trial_, told);
      return !later.pending();
    });
    for (std::size_t i = 0; i < rules.size(); ++i) rules[i]->OnEnd(trial_, heard[i]);
  }
  OwnRuleOptions options;
  std::vector<std::unique_ptr<Rule>> rules;
  std::vector<Heard> heard;
};

TEST_F(SharedProcess, EachRunHasItsFindings_AndOneProcessMadeThem) {
  Begin("step() { [ $((n % 10)) = 3 ] && found; }; ending() { [ $s = 2 ] && found; }", 3);
  Judge();
  EXPECT_THAT(heard[0].causes, ElementsAre("r1c3", "r1c13", "r1c23", "r1c33"));
  EXPECT_THAT(heard[1].causes, ElementsAre("r2c3", "r2c13", "r2c23", "r2c33", "r2c99"));
  EXPECT_THAT(heard[2].causes, ElementsAre("r3c3", "r3c13", "r3c23", "r3c33"));
  for (const Heard& one : heard) EXPECT_THAT(one.notes, IsEmpty());
  EXPECT_EQ(marks(), 2U);  // "x\n": started once
}

TEST_F(SharedProcess, RunsWhoseBeginningFindsNoRoomBeginLater) {
  Begin("step() { [ $n = 33 ] && found; }", 3);
  for (const auto& rule : rules) {  // states of which the queue has room for one
    ASSERT_TRUE(rule->LoadState(R"({"end":0,"delivered":0,"saved":0,"state":")" + std::string(700'000, 'x') +
                                R"(","deaths":0,"aside":false,"raised":0,"lacked":0,"last_lack":""})")
                    .ok());
  }
  Judge();
  EXPECT_THAT(heard[0].causes, SizeIs(1));
  EXPECT_THAT(heard[1].causes, SizeIs(1));
  EXPECT_THAT(heard[2].causes, SizeIs(1));
  for (const Heard& one : heard) EXPECT_THAT(one.notes, IsEmpty());
}

TEST_F(SharedProcess, ThatItGotNoMoreMemoryIsNobodysFault_AndIsNotKept) {
  Begin("step() { [ $n = 5 ] && exit 77; }", 2);
  Judge();
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_THAT(heard[i].notes, ElementsAre(HasSubstr("until luff starts again")));
    EXPECT_EQ(rules[i]->behind(), 0U);
    const auto next = MakeOwnRule(options);
    ASSERT_TRUE(next->LoadState(rules[i]->SaveState()).ok());
    EXPECT_GT(next->behind(), 0U);  // it judges what is left
  }
}

TEST_F(SharedProcess, TheRunThatEndsItIsSetAside_TheOthersGoOn) {
  // The second run's steps; its stream has another number after each restart, so it is known by its
  // parameters.
  for (const char* fault :
       {"sleep 60", "exit 3", "kill -9 $$", "echo nonsense >&3; sleep 60", "while :; do found; done"}) {
    fs::remove(mark());
    Begin(std::string("begun() { case \"$line\" in *'\"bad\"'*) bad=\" $bad $s \";; esac; }; "
                      "step() { case \"$bad\" in *\" $s \"*) [ $n = 5 ] && { ") +
              fault + "; };; esac; [ $n = 20 ] && found; }",
          3, 2);
    options.parameters = {{"bad", "yes"}};  // told with each begin
    rules[1] = MakeOwnRule(options);
    Judge();
    for (const std::size_t good : {0U, 2U}) {
      EXPECT_THAT(heard[good].causes, SizeIs(1)) << fault;
      EXPECT_EQ(heard[good].failures, 0) << fault;
    }
    EXPECT_THAT(heard[1].causes, IsEmpty()) << fault;
    EXPECT_EQ(heard[1].failures, 1) << fault;
    EXPECT_THAT(heard[1].notes.back(), HasSubstr("set aside")) << fault;
  }
}

}  // namespace
}  // namespace luff::rules::own_rule_test
