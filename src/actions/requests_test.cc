#include "luff/actions/requests.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "actions/testing.h"
#include "luff/actions/marks.h"
#include "luff/actions/runner.h"
#include "luff/rules/finding.h"

namespace luff::actions::requests_test {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr const char* kWatch = R"({"collections":[{"name":"zoom","include":"fc"}],"for_steps":50})";

class RequestsTest : public testing::RunFolderTest {
 protected:
  RunnerOptions Options() const { return {run_, "train", {}, false, {}, {}}; }

  /// Lets two workers answer every proposal with `first`, then with `later`, for half a second.
  void Turn(Runner* runner, std::uint32_t first = 1, std::uint32_t later = 3) {
    for (int i = 0; i < 50; ++i) {
      std::vector<query::WorkerInfo> workers(2);
      std::vector<std::pair<std::uint32_t, format::AckRow>> acks;
      for (std::uint32_t n = 0; n < 2; ++n) {
        workers[n].worker = n;
        workers[n].alive = true;
        workers[n].last_train_step = 20;
        for (const store::ControlRecord& record : Log()) {
          if (record.phase != "propose") continue;
          format::AckRow row{};
          row.control = record.number;
          row.verdict = i < 25 ? first : later;
          acks.emplace_back(n, row);
        }
      }
      static_cast<void>(runner->Poll((now_ms_ += 10) * kMs, 20, 2, workers, acks));
    }
  }
  std::vector<Asked> Requests() const { return RequestsIn(Log()); }
  std::uint64_t Want(const std::string& action, const std::string& arguments = "") {
    const Result<std::uint64_t> number = Ask(run_, action, arguments, "why not", "somebody@here");
    EXPECT_TRUE(number.ok()) << number.status().ToString();
    return number.ok() ? *number : 0;
  }

  std::int64_t now_ms_ = 0;
};

TEST_F(RequestsTest, AStopIsProposedToAllRanksAndAnsweredWhenTheyAgree) {
  Runner runner(Options());
  Turn(&runner);
  EXPECT_FALSE(runner.coordinator().busy());
  Want("stop");
  EXPECT_EQ(Requests().at(0).state, Asked::State::kAsked);
  Turn(&runner, 1, 1);
  const Asked asked = Requests().at(0);
  EXPECT_EQ(asked.state, Asked::State::kDone);
  EXPECT_GT(asked.train_step, 20);
  EXPECT_TRUE(runner.coordinator().stop_decided());
  EXPECT_EQ(runner.stop_asked(), "asked by somebody@here: why not");
  EXPECT_EQ(runner.stop_finding().id, "");
  // Another one is refused, since the job is leaving.
  Want("stop");
  Turn(&runner, 1, 1);
  EXPECT_EQ(Requests().at(1).state, Asked::State::kRefused);
  EXPECT_EQ(Requests().at(1).why, "the job is being stopped already");
}

TEST_F(RequestsTest, RanksWhoseJobHasOtherHostsAreNotStoppedByWhoSpeaksToNone) {
  std::filesystem::create_directories(run_ + "/hosts/out");
  Runner runner(Options());
  Want("stop");
  Turn(&runner, 1, 1);
  EXPECT_EQ(Requests().at(0).state, Asked::State::kRefused);
  EXPECT_NE(Requests().at(0).why.find("ranks on other hosts"), std::string::npos);
  EXPECT_FALSE(runner.coordinator().stopping());
}

TEST_F(RequestsTest, ACaptureReachesTheWorkersWithItsArguments) {
  Runner runner(Options());
  Want("capture", kWatch);
  Turn(&runner);
  const Asked asked = Requests().at(0);
  EXPECT_EQ(asked.state, Asked::State::kDone);
  for (const store::ControlRecord& record : Log()) {
    if (record.phase != "propose") continue;
    EXPECT_EQ(record.kind, "capture");
    const auto body = nlohmann::json::parse(record.body);
    EXPECT_EQ(body["for_steps"], 50);
    EXPECT_EQ(body["collections"][0]["name"], "zoom");
    EXPECT_EQ(body["request"], 1);
  }
}

TEST_F(RequestsTest, ARefusalByOneRankEndsItInAll) {
  Runner runner(Options());
  Want("capture", kWatch);
  Turn(&runner, 4, 4);
  EXPECT_EQ(Requests().at(0).state, Asked::State::kRefused);
  EXPECT_NE(Requests().at(0).why.find("worker 0 cannot record that"), std::string::npos);
}

TEST_F(RequestsTest, ARequestWithoutAnAnswerIsAnsweredAtTheEndOfTheJob) {
  Runner runner(Options());
  Want("lower_lr", R"({"factor":0.5})");
  Turn(&runner, 0, 0);  // nobody answers
  EXPECT_EQ(Requests().at(0).state, Asked::State::kProposed);
  runner.JobEnded();
  EXPECT_EQ(Requests().at(0).state, Asked::State::kRefused);
  Want("stop");
  Turn(&runner);
  EXPECT_EQ(Requests().at(1).why, "the job has ended");
}

TEST_F(RequestsTest, TheNextSupervisorAnswersWhatTheLastOneCarriedOutAndRefusesWhatIsOld) {
  {
    Runner runner(Options());
    Want("lower_lr", R"({"factor":0.5})");
    Turn(&runner);
  }
  std::filesystem::remove(run_ + "/control/000004.json");  // the supervisor died before it answered
  store::ControlRecord old;
  old.kind = "request";
  old.body = R"({"action":"stop"})";
  old.author = "somebody@here";
  old.created_unix_ns = 1;
  ASSERT_TRUE(store::WriteControl(run_, old).ok());
  Runner next(Options());
  Turn(&next);
  const auto requests = Requests();
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_EQ(requests[0].state, Asked::State::kDone);
  EXPECT_EQ(requests[1].state, Asked::State::kRefused);
  EXPECT_FALSE(next.coordinator().stopping());
}

TEST_F(RequestsTest, WhatCannotBeCarriedOutIsNotWritten) {
  EXPECT_EQ(Ask(run_, "stopp", "", "", "me").status().message(),
            "'stopp' is nothing that can be asked for; nearest: stop; there are stop, capture, lower_lr, "
            "skip_batch, rollback, trace");
  EXPECT_EQ(Ask(run_, "capture", "", "", "me").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Ask(run_, "capture", R"({"collections":[1],"for_steps":0})", "", "me").status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_NE(Ask(run_, "capture", R"({"collections":[{"include":"weigh("}]})", "", "me")
                .status()
                .message()
                .find("does not compile"),
            std::string::npos);
  EXPECT_EQ(Ask(run_, "lower_lr", R"({"factor":1.5})", "", "me").status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Ask(run_, "stop", "", std::string(5000, 'x'), "me").status().code(),
            StatusCode::kInvalidArgument);
  chmod(run_.c_str(), 0777);
  EXPECT_EQ(Ask(run_, "stop", "", "", "me").status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Log().empty());
}

TEST_F(RequestsTest, ARequestThatSomebodyWroteByHandIsAnswered) {
  for (const char* body : {"", "[]", R"({"action":7})", R"({"action":"fly"})", R"({"action":"capture"})"}) {
    store::ControlRecord record;
    record.kind = "request";
    record.body = body;
    ASSERT_TRUE(store::WriteControl(run_, record).ok());
  }
  Runner runner(Options());
  Turn(&runner);
  const auto requests = Requests();
  ASSERT_EQ(requests.size(), 5U);
  for (const Asked& asked : requests) EXPECT_EQ(asked.state, Asked::State::kRefused) << asked.number;
}

// ---- Marks ----

class MarksTest : public RequestsTest {
 protected:
  void Keep(const rules::Finding& finding) {
    std::filesystem::create_directories(run_ + "/rules/luff");
    std::ofstream(run_ + "/rules/luff/findings.jsonl", std::ios::app)
        << rules::ToJson(finding, "new") << "\n";
  }
  static Mark Marked(const std::string& finding, Mark::As as, const std::string& note = "") {
    Mark mark;
    mark.finding = finding;
    mark.as = as;
    mark.note = note;
    mark.author = "me@here";
    return mark;
  }
  static rules::Finding Spike(const std::string& id) {
    rules::Finding finding;
    finding.id = id;
    finding.rule = "LossSpike";
    finding.cause = "spike";
    finding.what = "the loss jumped";
    return finding;
  }
};

TEST_F(MarksTest, TheLatestOneCounts) {
  Keep(Spike("0a"));
  Keep(Spike("0b"));
  ASSERT_TRUE(SetMark(run_, Marked("0a", Mark::As::kMute, "known")).ok());
  ASSERT_TRUE(SetMark(run_, Marked("0b", Mark::As::kAcknowledge)).ok());
  auto marks = MarksIn(Log());
  ASSERT_EQ(marks.size(), 2U);
  EXPECT_EQ(marks.at("0a").as, Mark::As::kMute);
  EXPECT_EQ(marks.at("0a").note, "known");
  EXPECT_TRUE(marks.at("0a").mutes(1'000'000));
  EXPECT_FALSE(marks.at("0b").mutes(0));
  ASSERT_TRUE(SetMark(run_, Marked("0a", Mark::As::kReopen)).ok());
  marks = MarksIn(Log());
  EXPECT_FALSE(marks.contains("0a"));
}

TEST_F(MarksTest, ARecordWithANumberThatIsNoneMarksNothingAndEndsNobody) {
  for (const char* body : {R"({"as":"mute","until_step":1.5})", R"({"as":"mute","until_step":"x"})",
                           R"({"as":"mute","until_step":18446744073709551615})", R"({"as":7})", "[]"}) {
    store::ControlRecord record;
    record.kind = "mark";
    record.finding = "0a";
    record.body = body;
    ASSERT_TRUE(store::WriteControl(run_, record).ok());
    EXPECT_EQ(MarkOf(record).status().code(), StatusCode::kInvalidArgument) << body;
  }
  EXPECT_TRUE(MarksIn(Log()).empty());
  Runner runner(Options());
  Turn(&runner);
}

TEST_F(MarksTest, AFindingThatIsNotThereCannotBeMarked) {
  EXPECT_EQ(SetMark(run_, Marked("0a", Mark::As::kMute)).status().code(), StatusCode::kNotFound);
  Keep(Spike("0ab1"));
  const Status status = SetMark(run_, Marked("0ab2", Mark::As::kMute)).status();
  EXPECT_NE(status.message().find("nearest: 0ab1"), std::string::npos) << status.message();
}

TEST_F(MarksTest, AMutedFindingIsNotDeliveredAndTheAuditSaysWhoMutedIt) {
  ActionSpec command;
  command.name = "tell";
  command.kind = ActionKind::kCommand;
  command.argv = {"/bin/true"};
  command.dry_run = false;
  command.limit = 100;
  RunnerOptions options = Options();
  options.specs = {command};
  Runner runner(options);
  const rules::Finding spike = Spike("0a");
  Keep(spike);
  Mark mark = Marked("0a", Mark::As::kMute);
  mark.until_step = 30;
  ASSERT_TRUE(SetMark(run_, mark).ok());
  Turn(&runner);
  runner.OnFinding(spike, "new", false, 20, now_ms_ * kMs);
  EXPECT_TRUE(runner.deliveries().idle());
  const Audit audit(run_ + "/rules/luff/actions.jsonl");
  ASSERT_EQ(audit.earlier().size(), 1U);
  EXPECT_EQ(audit.earlier()[0].event, "silenced");
  EXPECT_EQ(audit.earlier()[0].detail, "muted by me@here");
  EXPECT_FALSE(mark.mutes(30));
  runner.OnFinding(Spike("0b"), "new", false, 20, now_ms_ * kMs);  // another finding is none of the mute's
  EXPECT_FALSE(runner.deliveries().idle());
}

}  // namespace
}  // namespace luff::actions::requests_test
