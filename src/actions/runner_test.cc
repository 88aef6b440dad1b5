#include "luff/actions/runner.h"

#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "actions/hosts_testing.h"
#include "actions/testing.h"
#include "luff/base/env.h"

namespace luff::actions::runner_test {
namespace {

constexpr std::int64_t kMs = 1'000'000;

rules::Finding MakeFinding(const std::string& id) {
  rules::Finding finding;
  finding.id = id;
  finding.rule = "LossSpike";
  finding.cause = "spike";
  finding.since_step = 17;
  finding.what = "the loss jumped";
  return finding;
}

ActionSpec Spec(ActionKind kind) {
  ActionSpec spec;
  spec.name = std::string(KindName(kind));
  spec.kind = kind;
  spec.dry_run = false;
  spec.factor = 0.5;
  spec.limit = 100;
  return spec;
}

std::vector<ActionSpec> LowerThenStopAfter10Steps() {
  ActionSpec stop = Spec(ActionKind::kStop);
  stop.escalates = "lower_lr";
  stop.after_steps = 10;
  return {Spec(ActionKind::kLowerLr), stop};
}

class RunnerTest : public testing::RunFolderTest {
 protected:
  RunnerOptions Options(std::vector<ActionSpec> specs) const {
    return {run_, "train", std::move(specs), false, {}, {}};
  }
  /// Two workers that accept and carry out whatever is proposed.
  void Obey(Runner* runner) {
    for (int i = 0; i < 4; ++i) {
      std::vector<query::WorkerInfo> workers(2);
      std::vector<std::pair<std::uint32_t, format::AckRow>> acks;
      for (std::uint32_t n = 0; n < 2; ++n) {
        workers[n].worker = n;
        workers[n].alive = true;
        workers[n].last_train_step = 20;
        for (const store::ControlRecord& record : Log()) {
          format::AckRow row{};
          row.control = record.number;
          row.verdict = i < 2 ? 1 : 3;
          if (record.phase == "propose") acks.emplace_back(n, row);
        }
      }
      static_cast<void>(runner->Poll((now_ms_ += 10) * kMs, 20, 2, workers, acks));
    }
  }
  /// Waits for deliveries as the supervisor does.
  void Deliver(Runner* runner) {
    for (int i = 0; i < 2000 && !runner->deliveries().idle(); ++i) {
      static_cast<void>(runner->Poll((now_ms_ += 10) * kMs, 20, 2, {}, {}));
      int status = 0;
      pid_t pid = 0;
      while ((pid = waitpid(-1, &status, WNOHANG)) > 0) runner->deliveries().Ended(pid, DecodeStatus(status));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    static_cast<void>(runner->Poll(now_ms_ * kMs, 20, 2, {}, {}));
  }
  std::vector<std::string> Events() const {
    std::vector<std::string> events;
    const Audit audit(run_ + "/rules/luff/actions.jsonl");
    for (const AuditLine& line : audit.earlier()) events.push_back(line.event);
    return events;
  }

  std::int64_t now_ms_ = 0;
};

TEST_F(RunnerTest, ACorrectionIsCarriedOutOnceAlsoByTheNextSupervisor) {
  const std::vector<ActionSpec> specs = {Spec(ActionKind::kLowerLr), Spec(ActionKind::kRollback)};
  {
    Runner first(Options(specs));
    first.OnFinding(MakeFinding("f1"), "new", false, 20, 0);
    Obey(&first);
    Obey(&first);
    EXPECT_EQ(first.TakeSayings().size(), 2U);
  }
  EXPECT_EQ(Events(), (std::vector<std::string>{"begun", "begun", "proposed", "committed", "carried_out",
                                                "proposed", "committed", "carried_out"}));
  const auto records = Log();
  ASSERT_EQ(records.size(), 4U);
  EXPECT_EQ(nlohmann::json::parse(records[0].body)["factor"], 0.5);
  EXPECT_EQ(nlohmann::json::parse(records[2].body)["step"], 17);
  std::filesystem::remove(run_ + "/rules/luff/actions.jsonl");  // the control log alone must suffice
  Runner second(Options(specs));
  second.OnFinding(MakeFinding("f1"), "new", false, 30, 0);
  Obey(&second);
  EXPECT_EQ(Log().size(), 4U);
  second.OnFinding(MakeFinding("f2"), "new", false, 30, 0);
  Obey(&second);
  Obey(&second);
  EXPECT_EQ(Log().size(), 8U);  // two actions, each proposed and committed
}

TEST_F(RunnerTest, WhatWasBegunAndNotCommittedIsNotTakenUpAgain) {
  {
    Runner first(Options({Spec(ActionKind::kLowerLr)}));
    first.OnFinding(MakeFinding("f1"), "new", false, 20, 0);
    const std::vector<query::WorkerInfo> workers(1, [] {
      query::WorkerInfo worker;
      worker.alive = true;
      return worker;
    }());
    static_cast<void>(first.Poll(0, 20, 1, workers, {}));
  }
  EXPECT_EQ(Log().size(), 1U);
  Runner second(Options({Spec(ActionKind::kLowerLr)}));
  second.OnFinding(MakeFinding("f1"), "new", false, 20, 0);
  Obey(&second);
  EXPECT_EQ(Log().size(), 1U);
}

TEST_F(RunnerTest, ACommandGetsTheFindingAndItsEndIsAudited) {
  ActionSpec good = Spec(ActionKind::kCommand);
  good.argv = {"sh", "-c", "cat > " + run_ + "/seen"};
  ActionSpec bad = good;
  bad.name = "bad";
  bad.argv = {"sh", "-c", "exit 3"};
  ActionSpec gone = good;
  gone.name = "gone";
  gone.argv = {"/no/such/command"};
  ActionSpec hangs = good;
  hangs.name = "hangs";
  hangs.argv = {"sleep", "600"};
  hangs.timeout_s = 0.2;
  Runner runner(Options({good, bad, gone, hangs}));
  runner.OnFinding(MakeFinding("f1"), "new", false, 20, 0);
  Deliver(&runner);
  const auto seen = ReadWholeFile(Env::Real(), run_ + "/seen", 1 << 20);
  ASSERT_TRUE(seen.ok());
  const auto document = nlohmann::json::parse(*seen);
  EXPECT_EQ(document["finding"]["id"], "f1");
  EXPECT_EQ(document["run_id"], "00ff");
  EXPECT_EQ(document["event"], "new");
  std::map<std::string, std::string> ends;
  const Audit audit(run_ + "/rules/luff/actions.jsonl");
  for (const AuditLine& line : audit.earlier()) {
    if (line.event != "begun") ends[line.action] = line.event + ": " + line.detail;
  }
  EXPECT_EQ(ends["command"], "done: exit code 0");
  EXPECT_EQ(ends["bad"], "failed: exit code 3");
  EXPECT_NE(ends["gone"].find("there is no command"), std::string::npos);
  EXPECT_EQ(ends["hangs"], "failed: it took too long and was ended");
  EXPECT_EQ(runner.TakeSayings().size(), 3U);
}

TEST_F(RunnerTest, TimeIsThatOfAClockThatNobodySets) {
  ActionSpec stop = Spec(ActionKind::kStop);
  stop.escalates = "lower_lr";
  stop.after_s = 3600;
  Runner runner(Options({Spec(ActionKind::kLowerLr), stop}));
  const std::int64_t begin = 5'000'000 * kMs;
  runner.OnFinding(MakeFinding("f1"), "new", false, 20, begin);
  static_cast<void>(runner.Poll(begin + 3'599'000 * kMs, 20, 1, {}, {}));
  EXPECT_FALSE(runner.coordinator().stopping());  // the wall clock does not matter
  static_cast<void>(runner.Poll(begin + 3'600'000 * kMs, 20, 1, {}, {}));
  EXPECT_TRUE(runner.coordinator().stopping());
}

TEST_F(RunnerTest, AnEscalationWaitsForStepsOfTheJobThatGoesOn) {
  const std::vector<ActionSpec> specs = LowerThenStopAfter10Steps();
  {
    Runner first(Options(specs));
    first.OnFinding(MakeFinding("f1"), "new", false, 20, 0);
    first.OnFinding(MakeFinding("f2"), "new", false, 20, 0);
    Obey(&first);
    EXPECT_FALSE(first.coordinator().stopping());
  }
  for (const bool heals : {true, false}) {
    Runner next(Options(specs));
    next.Begin(0);
    next.Resume({MakeFinding("f1")});
    static_cast<void>(next.Poll(0, -1, 1, {}, {}));  // no step is known yet
    static_cast<void>(next.Poll(0, 20, 1, {}, {}));
    static_cast<void>(next.Poll(0, 29, 1, {}, {}));
    EXPECT_FALSE(next.coordinator().stopping());
    if (heals) next.OnFinding(MakeFinding("f1"), "healed", false, 29, 0);
    static_cast<void>(next.Poll(0, 30, 1, {}, {}));
    EXPECT_EQ(next.coordinator().stopping(), !heals);
  }
}

TEST_F(RunnerTest, ATraceWaitsUntilTheRunIsLongEnoughForWhatItCosts) {
  ActionSpec spec = Spec(ActionKind::kTrace);
  spec.trace_steps = 2;
  spec.trace_stacks = true;
  spec.trace_share = 0.01;
  Runner runner(Options({spec}));
  static_cast<void>(runner.Poll(0, 5, 1, {}, {}));
  runner.OnFinding(MakeFinding("f1"), "new", false, 20, 1000 * kMs);
  runner.OnFinding(MakeFinding("f2"), "new", false, 20, 1000 * kMs);
  static_cast<void>(runner.Poll(149'000 * kMs, 20, 2, {}, {}));
  EXPECT_TRUE(Log().empty());
  runner.OnFinding(MakeFinding("f2"), "healed", false, 20, 149'000 * kMs);
  now_ms_ = 150'000;
  Obey(&runner);
  ASSERT_EQ(Log().size(), 2U);  // proposed, committed: f1 alone
  EXPECT_EQ(Log()[0].kind, "trace");
  const auto body = nlohmann::json::parse(Log()[0].body);
  EXPECT_EQ(body["steps"], 2);
  EXPECT_EQ(body["stacks"], true);
  EXPECT_EQ(body["share"], 0.01);
  EXPECT_EQ(body["finding"], "f1");
  EXPECT_EQ(body["rule"], "LossSpike");
  Obey(&runner);
  EXPECT_EQ(Log().size(), 2U);
}

TEST_F(RunnerTest, AStopThatTheJobsOwnEndForestalledIsStillToCome) {
  const std::vector<ActionSpec> specs = LowerThenStopAfter10Steps();
  {
    Runner first(Options(specs));
    first.OnFinding(MakeFinding("f1"), "new", false, 20, 0);
    Obey(&first);
    static_cast<void>(first.Poll(0, 30, 1, {}, {}));
    EXPECT_TRUE(first.coordinator().stopping());
    first.JobEnded();
    EXPECT_EQ(Events().back(), "aborted");
  }
  {
    Runner next(Options(specs));
    next.Begin(0);
    next.Resume({MakeFinding("f1")});
    static_cast<void>(next.Poll(0, 30, 1, {}, {}));
    EXPECT_FALSE(next.coordinator().stopping());
    static_cast<void>(next.Poll(0, 40, 1, {}, {}));
    EXPECT_TRUE(next.coordinator().stopping());
    Obey(&next);
    next.JobEnded();
    EXPECT_EQ(Events().back(), "committed");
  }
  Runner last(Options(specs));  // the user resumes the run although it was stopped
  last.Begin(0);
  last.Resume({MakeFinding("f1")});
  for (const std::int64_t step : {40, 60}) static_cast<void>(last.Poll(0, step, 1, {}, {}));
  EXPECT_FALSE(last.coordinator().stopping());
}

TEST_F(RunnerTest, AnAuditLineOfTheFutureIsOfNow) {
  ActionSpec spec = Spec(ActionKind::kLowerLr);
  spec.limit = 1;
  spec.per_s = 3600;
  {
    Audit audit(run_ + "/rules/luff/actions.jsonl");  // the earlier supervisor's clock was two hours ahead
    AuditLine line;
    line.unix_ns = Env::Real().NowUnixNs() + 7'200'000 * kMs;
    line.id = "1";
    line.action = line.kind = "lower_lr";
    line.finding = "f0";
    line.event = "begun";
    ASSERT_TRUE(audit.Append(line));
  }
  Runner runner(Options({spec}));
  runner.OnFinding(MakeFinding("f1"), "new", false, 20, 0);
  EXPECT_EQ(Events().back(), "limited");
  runner.OnFinding(MakeFinding("f2"), "new", false, 20, 3'600'000 * kMs);
  EXPECT_EQ(Events().back(), "begun");
}

TEST_F(RunnerTest, TheAuditIsItsOwnersAlone) {
  const mode_t before = umask(0);
  {
    Audit audit(run_ + "/rules/luff/actions.jsonl");
    AuditLine line;
    line.event = "begun";
    EXPECT_TRUE(audit.Append(line));
  }
  umask(before);
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(run_ + "/rules/luff/actions.jsonl").permissions(),
            perms::owner_read | perms::owner_write);
  EXPECT_EQ(std::filesystem::status(run_ + "/rules/luff").permissions(), perms::owner_all);
  EXPECT_EQ(std::filesystem::status(run_ + "/rules").permissions(), perms::owner_all);
}

TEST_F(RunnerTest, DeliveriesThatAreTooManyAreDroppedAndSaidInTheAudit) {
  ActionSpec spec = Spec(ActionKind::kCommand);
  spec.argv = {"true"};
  Runner runner(Options({spec}));
  for (std::size_t i = 0; i < Deliveries::kMaxWaiting + 3; ++i)
    runner.OnFinding(MakeFinding("f" + std::to_string(i)), "new", false, 20, 0);
  const auto events = Events();
  EXPECT_EQ(std::count(events.begin(), events.end(), "dropped"), 3);
  Deliver(&runner);
  const auto later = Events();
  EXPECT_EQ(std::count(later.begin(), later.end(), "done"),
            static_cast<std::ptrdiff_t>(Deliveries::kMaxWaiting));
}

TEST_F(RunnerTest, ATornLineOfTheAuditIsLeftOutAndTheNextOneIsWhole) {
  std::filesystem::create_directories(run_ + "/rules/luff");
  const std::string path = run_ + "/rules/luff/actions.jsonl";
  std::ofstream(path) << "{\"event\":\"begun\",\"id\":\"1\"}\nno json\n{\"event\":\"do";
  Audit audit(path);
  EXPECT_EQ(audit.earlier().size(), 1U);
  AuditLine line;
  line.event = "done";
  EXPECT_TRUE(audit.Append(line));
  EXPECT_EQ(Events(), (std::vector<std::string>{"begun", "done"}));
  EXPECT_FALSE(ParseAuditLineUntrusted(std::string(3 << 20, ' ')).ok());
  EXPECT_FALSE(ParseAuditLineUntrusted(R"({"event":7})").ok());
  EXPECT_FALSE(ParseAuditLineUntrusted(R"({"event":"begun","document":)" + std::string(500'000, '[')).ok());
  const std::string deep = std::string(500, '[') + std::string(500, ']');
  EXPECT_FALSE(ParseAuditLineUntrusted(R"({"event":"begun","document":{"a":)" + deep + "}}").ok());
}

TEST_F(RunnerTest, OnFindingStopsForAConsequenceTooAndOnce) {
  RunnerOptions options = Options({});
  options.stop_on_finding = true;
  Runner runner(options);
  rules::Finding finding = MakeFinding("f1");
  runner.OnFinding(finding, "new", false, 20, 0);
  EXPECT_FALSE(runner.coordinator().stopping());
  finding.severity = rules::Severity::kStop;
  finding.leader = "f0";
  runner.OnFinding(finding, "update", true, 21, 0);
  EXPECT_TRUE(runner.coordinator().stopping());
  EXPECT_EQ(runner.stop_finding().id, "f1");
}

/// A log in which everything stands at once.
class EchoPost final : public HostPost {
 public:
  bool reaches() override { return true; }
  Status Send(std::uint64_t, const std::string& object) override {
    log.push_back(object);
    return Status::Ok();
  }
  bool TakeBack(std::uint64_t) override { return false; }
  std::vector<std::string> Take() override { return std::exchange(log, {}); }
  std::vector<std::string> log;
};

TEST_F(RunnerTest, WhatAnotherHostHasCorrectedIsNotCorrectedAgain) {
  auto* post = new EchoPost;
  RunnerOptions options = Options({Spec(ActionKind::kLowerLr)});
  options.hosts =
      std::make_shared<HostLog>(hosts_test::kJob, std::string(32, 'b'), std::unique_ptr<HostPost>(post),
                                std::make_unique<hosts_test::WordSeal>());
  Runner runner(std::move(options));
  runner.Begin(0);
  HostMessage message;
  message.job = hosts_test::kJob;
  message.instance = std::string(32, 'f');
  message.created_unix_ns = Env::Real().NowUnixNs();
  const auto says = [&] {
    ++message.sequence;
    post->log.push_back("signed:" + HostMessageText(message));
  };
  message.train_step = 30;
  message.action = "lower_lr";
  message.body = R"({"factor":0.5})";
  message.finding = "f9";
  message.cause = hosts_test::WordSeal().KeyedHash("LossSpike/spike");
  says();
  const std::string proposal = message.id();
  message.kind = HostMessage::Kind::kAnswer;
  message.proposal = proposal;
  message.ranks = {1};
  message.world = 2;
  says();
  const auto obey = [&](std::uint32_t verdict) {
    std::vector<query::WorkerInfo> workers(1);
    workers[0].alive = true;
    workers[0].last_train_step = 20;
    std::vector<std::pair<std::uint32_t, format::AckRow>> acks(1);
    acks[0].second.control = 1;
    acks[0].second.verdict = verdict;
    for (int i = 0; i < 3; ++i) static_cast<void>(runner.Poll((now_ms_ += 10) * kMs, 20, 2, workers, acks));
  };
  obey(1);
  runner.OnFinding(MakeFinding("before"), "new", false, 20, 0);  // while the hosts agree
  message.kind = HostMessage::Kind::kCommit;
  message.agreed = {std::string(32, 'b'), message.instance};
  says();
  obey(1);
  obey(3);
  rules::Finding finding = MakeFinding("late");
  finding.step = 29;
  runner.OnFinding(finding, "new", false, 31, 0);
  obey(3);
  const auto records = Log();
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].kind, "lower_lr");
  EXPECT_EQ(nlohmann::json::parse(records[0].body)["factor"], 0.5);
  EXPECT_EQ(records[1].phase, "commit");
  EXPECT_EQ(Events(), (std::vector<std::string>{"begun", "proposed", "begun", "silenced", "committed",
                                                "carried_out", "silenced"}));
  EXPECT_FALSE(runner.coordinator().busy());
  finding.id = "after";
  finding.step = 30;  // it did not help
  runner.OnFinding(finding, "new", false, 31, 0);
  obey(3);
  EXPECT_TRUE(runner.coordinator().busy());
  // Of another mode, the step of the finding and its updates are no TRAIN steps.
  finding.mode = "EVAL";
  finding.id = "eval before";
  finding.step = 99;
  finding.update = 4;
  runner.OnFinding(finding, "new", false, 29, 0);
  EXPECT_EQ(Events().back(), "silenced");
  finding.id = "eval after";
  finding.step = 3;
  runner.OnFinding(finding, "new", false, 31, 0);
  EXPECT_EQ(Events().back(), "begun");
}

}  // namespace
}  // namespace luff::actions::runner_test
