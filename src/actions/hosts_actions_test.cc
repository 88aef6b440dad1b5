// Corrections, captures and traces that several hosts agree upon, by simulation.
#include <string>
#include <utility>

#include "actions/hosts_testing.h"

namespace luff::actions::hosts_test {
namespace {

TEST_F(Hosts, ACorrectionThatOneIsAskedForIsDoneByAllAfterTheSameStep) {
  Begin(3);
  RunFor(5);
  hosts[1]->AskFor("lower_lr", "a", R"({"action":"a","name":"request 3","request":3,"factor":0.5})");
  RunFor(15);
  for (const auto& host : hosts) {
    ASSERT_EQ(host->done.size(), 1U);
    EXPECT_EQ(host->done[0].first, hosts[0]->done[0].first);
    EXPECT_NE(host->done[0].second.find("\"factor\":0.5"), std::string::npos);
    EXPECT_EQ(host->done[0].second.find("\"request\"") != std::string::npos, host == hosts[1]);
    EXPECT_TRUE(host->Said(ActionNews::What::kCarriedOut));
    EXPECT_FALSE(host->coordinator.busy());
    EXPECT_FALSE(host->coordinator.stopping());
  }
  hosts[2]->AskFor("capture", "b",
                   R"({"action":"b","collections":[{"name":"x","include":["w"]}],"for_steps":5})");
  RunFor(20);
  for (const auto& host : hosts) EXPECT_EQ(host->done.size(), 2U);
  hosts[0]->Ask("c");
  RunFor(20);
  EXPECT_TRUE(AllStopped());
}

TEST_F(Hosts, ACorrectionThatOneHostCannotDoIsDoneNowhere) {
  Begin(3);
  RunFor(5);
  hosts[2]->opted_in = false;
  hosts[0]->AskFor("lower_lr", "a", R"({"action":"a","factor":0.5})");
  RunFor(40);
  for (const auto& host : hosts) EXPECT_TRUE(host->done.empty());
  ASSERT_TRUE(hosts[0]->Said(ActionNews::What::kRefused));
  EXPECT_NE(hosts[0]->news.back().detail.find("has not opted in to lower_lr; no host does it"),
            std::string::npos);
  hosts[0]->Ask("b");
  RunFor(20);
  EXPECT_TRUE(AllStopped());
}

TEST_F(Hosts, WhatAnotherHostAsksForIsChecked) {
  Begin(2);
  RunFor(5);
  hosts[0]->AskFor("lower_lr", "a", R"({"action":"a","factor":7})");
  RunFor(40);
  for (const auto& host : hosts) EXPECT_TRUE(host->done.empty());
  EXPECT_NE(hosts[0]->news.back().detail.find("'factor' is missing"), std::string::npos);
}

TEST_F(Hosts, OneCauseThatTwoHostsSeeIsCorrectedOnce) {
  Begin(2);
  RunFor(5);
  for (const std::size_t i : {0U, 1U})
    hosts[i]->AskFor("lower_lr", std::to_string(i), R"({"action":"a","factor":0.5})", "LossSpike/up");
  RunFor(60);
  for (const auto& host : hosts) EXPECT_EQ(host->done.size(), 1U);
  EXPECT_EQ(hosts[0]->Said(ActionNews::What::kElsewhere), !hosts[1]->Said(ActionNews::What::kElsewhere));
}

TEST_F(Hosts, TwoCausesOfAnEncryptedRunAreTwo) {
  for (const bool same : {true, false}) {
    hosts.clear();
    bucket = Bucket();
    encrypted = true;
    now_ms = 0;
    Begin(2);
    RunFor(5);
    hosts[0]->AskFor("lower_lr", "a", R"({"action":"a","factor":0.5})", "LossSpike/up");
    hosts[1]->AskFor("lower_lr", "b", R"({"action":"b","factor":0.5})",
                     same ? "LossSpike/up" : "DeadUnits/x");
    RunFor(90);
    for (const auto& host : hosts) EXPECT_EQ(host->done.size(), same ? 1U : 2U);
    for (const std::string& object : bucket.log) EXPECT_EQ(object.find("LossSpike"), std::string::npos);
  }
}

/// Own rules name causes as they like.
TEST_F(Hosts, ACauseOfAnyLengthHoldsNothingUp) {
  Begin(2);
  RunFor(5);
  hosts[0]->AskFor("lower_lr", "a", R"({"action":"a","factor":0.5})", std::string(5'000, 'x'));
  RunFor(20);
  for (const auto& host : hosts) EXPECT_EQ(host->done.size(), 1U);
  hosts[0]->AskFor("stop", "b", "", "Own/" + std::string(5'000, 'x'));
  RunFor(20);
  EXPECT_TRUE(AllStopped());
}

TEST_F(Hosts, TwoThatAskForDifferentThingsGetBoth) {
  Begin(2);
  RunFor(5);
  hosts[0]->AskFor("lower_lr", "a", R"({"action":"a","factor":0.5})");
  hosts[1]->AskFor("skip_batch", "b", R"({"action":"b"})");
  RunFor(90);
  for (const auto& host : hosts) {
    EXPECT_EQ(host->done.size(), 2U);
    EXPECT_EQ(host->done, host == hosts[0] ? host->done : hosts[1]->done);
  }
}

TEST_F(Hosts, AHostThatLearnsOfACorrectionTooLateEndsItsJob) {
  Begin(2);
  RunFor(5);
  hosts[0]->AskFor("lower_lr", "a", R"({"action":"a","factor":0.5})");
  UntilBothConsent();
  hosts[1]->post->up = false;
  RunFor(60);
  EXPECT_EQ(hosts[0]->done.size(), 1U);
  EXPECT_TRUE(hosts[1]->done.empty());
  EXPECT_FALSE(hosts[1]->killed);
  hosts[1]->post->up = true;
  RunFor(5);
  EXPECT_TRUE(hosts[1]->killed);
  EXPECT_NE(hosts[1]->coordinator.remark().find("agreed upon lower_lr"), std::string::npos);
}

TEST_F(Hosts, ACaptureThatAHostLearnsOfTooLateEndsNothing) {
  Begin(2);
  RunFor(5);
  hosts[0]->AskFor("capture", "a", R"({"action":"a","collections":[{"name":"x"}]})");
  UntilBothConsent();
  hosts[1]->post->up = false;
  RunFor(60);
  hosts[1]->post->up = true;
  RunFor(5);
  EXPECT_FALSE(AnyKilled());
  EXPECT_TRUE(hosts[1]->Said(ActionNews::What::kFailed));
}

/// Whatever fails: no host trains on for long without a correction that another has carried out.
TEST_F(Hosts, WhateverFailsNoneIsLeftWithoutWhatOthersHaveCorrected) {
  int all = 0, none = 0, ended = 0;
  for (unsigned seed = 1; seed <= 100; ++seed) {
    hosts.clear();
    bucket = Bucket();
    bucket.random.seed(seed);
    bucket.faults = true;
    now_ms = 0;
    Begin(2 + seed % 2);
    RunFor(3);
    hosts[seed % hosts.size()]->AskFor("lower_lr", "a", R"({"action":"a","factor":0.5})");
    for (int second = 0; second < 40; ++second) {
      Host& one = *hosts[bucket.random() % hosts.size()];
      if (bucket.random() % 8 == 0) one.post->up = !one.post->up;
      if (seed % 4 == 0 && bucket.random() % 40 == 0) one.dead = true;
      RunFor(1);
    }
    for (const auto& host : hosts) host->post->up = true;
    RunFor(200);
    std::size_t have = 0;
    std::int64_t step = -1;
    for (const auto& host : hosts) {
      EXPECT_LE(host->done.size(), 1U) << seed;
      if (host->done.empty()) continue;
      ++have;
      if (step < 0) step = host->done[0].first;
      EXPECT_EQ(host->done[0].first, step) << seed;
    }
    for (const auto& host : hosts) {
      if (have > 0 && host->done.empty()) {
        EXPECT_TRUE(host->killed) << seed << ": trains on without it";
      }
    }
    all += have == hosts.size();
    none += have == 0;
    ended += AnyKilled();
  }
  EXPECT_GT(all, 10);
  EXPECT_GT(none, 10);
  RecordProperty("ended", ended);
}

}  // namespace
}  // namespace luff::actions::hosts_test
