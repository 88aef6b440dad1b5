// A stop that several hosts agree upon, by simulation.
#include <string>
#include <utility>

#include "actions/hosts_testing.h"

namespace luff::actions::hosts_test {
namespace {

TEST_F(Hosts, AStopThatOneIsAskedForStopsAllAfterTheSameStepWithinSeconds) {
  Begin(3);
  RunFor(5);
  hosts[1]->Ask("a");
  for (int i = 0; i < 100 && !AllStopped(); ++i) Tick();
  EXPECT_TRUE(AllStopped());
  EXPECT_LE(now_ms, 15'000);
  for (const auto& host : hosts) {
    EXPECT_TRUE(host->Said(ActionNews::What::kCommitted));
    EXPECT_TRUE(host->coordinator.stop_decided());
    EXPECT_EQ(host->coordinator.committed_step(), host->finished);
    EXPECT_EQ(host->news.front().request.elsewhere, host != hosts[1]);
  }
  EXPECT_FALSE(AnyKilled());
}

TEST_F(Hosts, TwoThatAskAtOnceGetOneStop) {
  Begin(2);
  RunFor(5);
  hosts[0]->Ask("a");
  hosts[1]->Ask("b");
  RunFor(20);
  EXPECT_TRUE(AllStopped());
  for (const auto& host : hosts) {
    ASSERT_TRUE(host->Said(ActionNews::What::kCommitted));
    EXPECT_FALSE(host->news.back().request.elsewhere);  // each answers who has asked it
  }
}

TEST_F(Hosts, OneWhoseSupervisorIsDeadLetsNobodyStop) {
  Begin(2);
  RunFor(5);
  hosts[1]->dead = true;
  hosts[0]->Ask("a");
  RunFor(40);
  EXPECT_EQ(Stopped(), 0U);
  EXPECT_FALSE(AnyKilled());
  ASSERT_TRUE(hosts[0]->Said(ActionNews::What::kRefused));
  EXPECT_NE(hosts[0]->news.back().detail.find("rank 1 of 2 has not answered"), std::string::npos);
  const std::int64_t then = hosts[0]->finished;
  RunFor(5);
  EXPECT_GT(hosts[0]->finished, then);  // the training goes on
  EXPECT_FALSE(hosts[0]->coordinator.stopping());
  hosts[1]->dead = false;  // as if it were started again
  hosts[0]->Ask("b");
  RunFor(30);
  EXPECT_TRUE(AllStopped());
}

TEST_F(Hosts, ABucketThatIsAwayStopsNothing) {
  Begin(2);
  RunFor(5);
  for (const auto& host : hosts) host->post->up = false;
  hosts[0]->Ask("a");
  RunFor(30);
  EXPECT_TRUE(hosts[0]->Said(ActionNews::What::kRefused));
  EXPECT_NE(hosts[0]->news.back().detail.find("the bucket does not answer"), std::string::npos);
  for (const auto& host : hosts) host->post->up = true;
  RunFor(30);
  EXPECT_EQ(Stopped(), 0U);  // what was taken back is not put later
  EXPECT_FALSE(AnyKilled());
}

TEST_F(Hosts, OneWhoseBucketIsAwayLetsNobodyStop) {
  Begin(2);
  RunFor(5);
  hosts[1]->post->up = false;
  hosts[0]->Ask("a");
  RunFor(100);
  hosts[1]->post->up = true;
  RunFor(30);
  EXPECT_EQ(Stopped(), 0U);
  EXPECT_FALSE(AnyKilled());
}

TEST_F(Hosts, OneThatConsentsAndLosesTheBucketIsEndedBySignalOnceTheOthersHaveStopped) {
  Begin(2);
  RunFor(5);
  hosts[0]->Ask("a");
  while (hosts[1]->post->up) {
    Tick();
    // Cut off as soon as its consent is in the log.
    for (const std::string& object : bucket.log) {
      if (object.find("\"answer\"") != std::string::npos &&
          object.find("\"instance\":\"" + hosts[1]->log->instance()) != std::string::npos)
        hosts[1]->post->up = false;
    }
  }
  RunFor(20);
  EXPECT_TRUE(hosts[0]->stopped);
  EXPECT_FALSE(hosts[1]->killed);  // its rank waits at the step, then goes on
  RunFor(150);
  EXPECT_FALSE(hosts[1]->stopped);
  EXPECT_TRUE(hosts[1]->killed);  // bounded, whether the bucket comes back or not
  EXPECT_NE(hosts[1]->coordinator.remark().find("cannot be read"), std::string::npos);
}

TEST_F(Hosts, TheSameIsEndedAtOnceWhenTheBucketComesBack) {
  Begin(2);
  RunFor(5);
  hosts[0]->Ask("a");
  UntilBothConsent();
  hosts[1]->post->up = false;
  RunFor(40);
  EXPECT_TRUE(hosts[0]->stopped);
  hosts[1]->post->up = true;
  RunFor(2);
  EXPECT_TRUE(hosts[1]->killed);
  EXPECT_NE(hosts[1]->coordinator.remark().find("had gone on"), std::string::npos);
}

TEST_F(Hosts, WhatNobodyHasSignedAndCopiesOfAnEarlierStopDoNothing) {
  Begin(2);
  RunFor(5);
  hosts[0]->Ask("a");
  RunFor(20);
  ASSERT_TRUE(AllStopped());
  const std::vector<std::string> before = bucket.log;
  hosts.clear();
  bucket.log.emplace_back("another job was here");
  now_ms += 3'000;
  Begin(2);
  RunFor(5);
  for (std::string object : before) {
    bucket.log.push_back(object.substr(7));
    bucket.log.push_back(std::move(object));
  }
  RunFor(60);
  EXPECT_EQ(Stopped(), 0U);
  EXPECT_FALSE(AnyKilled());
  const auto [refused, why] = hosts[0]->log->TakeRefused();
  EXPECT_GE(refused, before.size());
  const std::int64_t then = hosts[0]->finished;
  RunFor(5);
  EXPECT_GT(hosts[0]->finished, then);
}

TEST_F(Hosts, AnotherJobOfTheSameNameIsNoticed) {
  Begin(2);
  RunFor(5);
  HostMessage stranger;
  hosts[0]->Ask("a");
  while (hosts[0]->log->open() == nullptr) Tick();
  stranger.kind = HostMessage::Kind::kAnswer;
  stranger.job = kJob;
  stranger.instance = std::string(32, 'f');
  stranger.sequence = 1;
  stranger.proposal = hosts[0]->log->open()->id();
  stranger.ranks = {1};
  stranger.world = 2;
  bucket.log.push_back("signed:" + HostMessageText(stranger));
  RunFor(30);
  EXPECT_EQ(Stopped(), 0U);
  ASSERT_TRUE(hosts[0]->Said(ActionNews::What::kRefused));
  EXPECT_NE(hosts[0]->news.back().detail.find("two hosts say that they have rank 1"), std::string::npos);
}

TEST_F(Hosts, ACommitWithoutTheConsentOfAHostCountsForNothingThere) {
  Begin(2);
  RunFor(5);
  HostMessage message;
  message.job = kJob;
  message.instance = std::string(32, 'f');
  message.sequence = 1;
  message.created_unix_ns = kUnixNs + now_ms * kMs;
  message.train_step = 1'000'000;
  bucket.log.push_back("signed:" + HostMessageText(message));
  message.proposal = message.id();
  message.sequence = 2;
  message.kind = HostMessage::Kind::kCommit;
  message.agreed = {hosts[0]->log->instance(), hosts[1]->log->instance()};
  bucket.log.push_back("signed:" + HostMessageText(message));
  RunFor(60);
  EXPECT_EQ(Stopped(), 0U);
  EXPECT_FALSE(AnyKilled());
}

TEST_F(Hosts, AHostThatTakesAllRanksForItsOwnDoesNotLeaveAlone) {
  for (int i = 0; i < 2; ++i) hosts.push_back(std::make_unique<Host>(&bucket, 0, 1));
  RunFor(5);
  hosts[0]->Ask("a");
  RunFor(30);
  EXPECT_EQ(Stopped(), 0U);
  ASSERT_TRUE(hosts[0]->Said(ActionNews::What::kRefused));
  EXPECT_NE(hosts[0]->news.back().detail.find("RANK and WORLD_SIZE"), std::string::npos);
}

TEST_F(Hosts, ADoubtEndsWhileTheOthersGoOn) {
  Begin(2);
  RunFor(5);
  hosts[0]->Ask("a");
  while (std::ranges::count_if(bucket.log, [](const auto& object) {
           return object.find("\"accepted\"") != std::string::npos;
         }) < 2)
    Tick();
  for (int i = 0; i < 5; ++i) Tick();                     // who has asked reads the answers
  for (const auto& host : hosts) host->post->up = false;  // before the commit is sent
  RunFor(60);
  EXPECT_EQ(Stopped(), 0U);
  RunFor(120);  // steps come
  EXPECT_FALSE(hosts[1]->coordinator.busy());
  hold = true;  // an evaluation, longer than any doubt
  RunFor(400);
  EXPECT_FALSE(AnyKilled());
  hold = false;
  for (const auto& host : hosts) host->post->up = true;
  RunFor(60);
  EXPECT_EQ(Stopped(), 0U);  // a commit that was not sent is not sent later
  EXPECT_FALSE(AnyKilled());
}

TEST_F(Hosts, WhereACommitWasOverwrittenTheOwnAbortTellsNothing) {
  Begin(2);
  RunFor(5);
  hosts[0]->Ask("a");
  while (std::ranges::count_if(bucket.log, [](const auto& object) {
           return object.find("\"accepted\"") != std::string::npos;
         }) < 2)
    Tick();
  for (int i = 0; i < 5; ++i) Tick();  // both read the answers
  hosts[1]->post->up = false;
  RunFor(10);
  ASSERT_TRUE(hosts[0]->stopped);
  for (std::string& object : bucket.log) {
    if (object.find("\"commit\"") != std::string::npos) object = "overwritten";
  }
  hosts[1]->post->up = true;
  RunFor(150);
  EXPECT_TRUE(hosts[1]->killed);  // not at peace with its own abort
}

TEST_F(Hosts, NorWhereItWasOverwrittenByACopy) {
  Begin(2);
  RunFor(5);
  hosts[0]->Ask("a");
  UntilBothConsent();
  for (int i = 0; i < 5; ++i) Tick();
  hosts[1]->post->up = false;
  RunFor(10);
  ASSERT_TRUE(hosts[0]->stopped);
  for (std::string& object : bucket.log) {
    if (object.find("\"commit\"") != std::string::npos) object = bucket.log[0];
  }
  hosts[1]->post->up = true;
  RunFor(150);
  EXPECT_FALSE(hosts[1]->stopped);
  EXPECT_TRUE(hosts[1]->killed);
}

TEST_F(Hosts, ACommitBehindWhatCannotBeReadIsADoubt) {
  Begin(2);
  RunFor(5);
  hosts[0]->Ask("a");
  UntilBothConsent();
  for (int i = 0; i < 5; ++i) Tick();
  hosts[1]->post->up = false;
  RunFor(3);
  const auto commit = std::ranges::find_if(
      bucket.log, [](const auto& object) { return object.find("\"commit\"") != std::string::npos; });
  ASSERT_NE(commit, bucket.log.end());
  bucket.log.emplace(commit, "here an abort was overwritten, perhaps");
  hosts[1]->post->up = true;
  RunFor(20);
  EXPECT_FALSE(hosts[1]->stopped);
  EXPECT_FALSE(hosts[1]->killed);
  RunFor(150);
  EXPECT_FALSE(hosts[1]->stopped);
  EXPECT_TRUE(hosts[1]->killed);  // here the other one has stopped
}

TEST_F(Hosts, WhatIsPutBetweenTheMessagesCostsOneProposal) {
  Begin(2);
  RunFor(5);
  hosts[0]->Ask("a");
  while (hosts[0]->log->open() == nullptr) Tick();
  bucket.log.emplace_back("of a stranger");
  RunFor(60);
  EXPECT_TRUE(AllStopped());
  EXPECT_TRUE(hosts[0]->Said(ActionNews::What::kAborted));
}

TEST_F(Hosts, ACommitThatIsReadAfterADoubtHasEndedEndsTheJob) {
  Begin(2);
  RunFor(5);
  hosts[0]->Ask("a");
  UntilBothConsent();
  hosts[1]->post->up = false;
  RunFor(20);
  ASSERT_TRUE(hosts[0]->stopped);
  for (int i = 0; i < 1500; ++i) {  // its rank needs the other one seldom
    Tick();
    if (hosts[1]->Boundary(now_ms)) ++hosts[1]->finished;
  }
  EXPECT_FALSE(hosts[1]->coordinator.busy());
  EXPECT_FALSE(hosts[1]->killed);
  hosts[1]->post->up = true;
  RunFor(2);
  EXPECT_TRUE(hosts[1]->killed);
  EXPECT_NE(hosts[1]->coordinator.remark().find("had gone on"), std::string::npos);
}

TEST_F(Hosts, ALongReasonIsCutBetweenTwoCharacters) {
  Begin(1);
  std::string reason;
  for (int i = 0; i < 1000; ++i) reason += "\u5931";
  HostMessage message;
  message.reason = reason;
  ASSERT_TRUE(hosts[0]->log->Send(std::move(message)).ok());
  for (int i = 0; i < 3; ++i) hosts[0]->post->Turn();
  ASSERT_EQ(bucket.log.size(), 1U);
  const std::string& text = bucket.log[0];
  const std::size_t from = text.find("\u5931");
  ASSERT_NE(from, std::string::npos);
  const std::size_t bytes = text.find('"', from) - from;
  EXPECT_GT(bytes, 1000U);
  EXPECT_EQ(text.substr(from, bytes), reason.substr(0, bytes));
  EXPECT_EQ(bytes % 3, 0U);
}

/// Whatever fails: no host is left alone with ranks that wait for ranks that have stopped.
TEST_F(Hosts, WhateverFailsNoneIsLeftWaitingForOthersThatHaveStopped) {
  int stops = 0, refusals = 0, ended = 0;
  for (unsigned seed = 1; seed <= 150; ++seed) {
    hosts.clear();
    bucket = Bucket();
    bucket.random.seed(seed);
    bucket.faults = true;
    now_ms = 0;
    Begin(2 + seed % 2);
    RunFor(3);
    hosts[seed % hosts.size()]->Ask("a");
    if (seed % 3 == 0) hosts[(seed + 1) % hosts.size()]->Ask("b");
    for (int second = 0; second < 40; ++second) {
      Host& one = *hosts[bucket.random() % hosts.size()];
      if (bucket.random() % 8 == 0) one.post->up = !one.post->up;
      if (seed % 4 == 0 && bucket.random() % 40 == 0) one.dead = true;
      RunFor(1);
    }
    if (seed % 2 == 0) {
      for (const auto& host : hosts) host->post->up = true;
    }
    RunFor(200);
    const bool any = Stopped() > 0 || AnyKilled();
    std::int64_t step = -1;
    for (const auto& host : hosts) {
      if (!host->stopped) continue;
      if (step < 0) step = host->finished;
      EXPECT_EQ(host->finished, step) << seed;  // all that stop do so after the same step
    }
    for (const auto& host : hosts) {
      if (any && !host->stopped) {
        EXPECT_TRUE(host->killed) << seed << ": left waiting";
      }
    }
    stops += Stopped() == hosts.size();
    refusals += !any;
    ended += AnyKilled();
  }
  EXPECT_GT(stops, 20);
  EXPECT_GT(refusals, 10);
  RecordProperty("stops", stops);
  RecordProperty("refusals", refusals);
  RecordProperty("ended", ended);
}

}  // namespace
}  // namespace luff::actions::hosts_test
