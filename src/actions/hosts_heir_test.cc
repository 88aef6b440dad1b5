// Supervisors of several hosts that die while these agree upon something, and their heirs, by simulation.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actions/hosts_testing.h"
#include "base/format.h"

namespace luff::actions::hosts_test {
namespace {

TEST_F(Hosts, ASupervisorThatDiesAtAnyPointOfAStopLeavesNobodyWaiting) {
  int stops = 0, runs = 0;
  for (const auto at : {Death::At::kSend, Death::At::kWrite, Death::At::kDecide}) {
    for (const bool after : {false, true}) {
      for (int times = 1; times <= 3; ++times) {
        for (const std::size_t who : {0U, 1U, 2U}) {
          hosts.clear();
          bucket = Bucket();
          now_ms = 0;
          Begin(3);
          RunFor(3);
          hosts[who]->death = {at, times, after};
          hosts[0]->Ask("a");
          RunFor(90);
          const std::string where = fmt::format("{} {} {} {}", static_cast<int>(at), after, times, who);
          EXPECT_TRUE(Stopped() == 0 || AllStopped()) << where;
          EXPECT_FALSE(AnyKilled()) << where;
          stops += AllStopped();
          ++runs;
        }
      }
    }
  }
  EXPECT_GT(stops, runs / 3);
  EXPECT_LT(stops, runs);
}

TEST_F(Hosts, WithoutItsHeirTheRanksOfADeadSupervisorAreLeft) {
  Begin(2);
  RunFor(3);
  hosts[1]->has_heir = false;
  hosts[0]->Ask("a");
  UntilBothConsent();
  hosts[1]->dead = true;
  RunFor(90);
  EXPECT_TRUE(hosts[0]->stopped);
  EXPECT_FALSE(hosts[1]->stopped || hosts[1]->killed);  // what an heir is for
}

TEST_F(Hosts, AnHeirWhoseBucketIsAwayEndsTheJobByTheSameBoundAsItsSupervisor) {
  Begin(2);
  RunFor(3);
  hosts[0]->Ask("a");
  UntilBothConsent();
  hosts[1]->dead = true;
  hosts[1]->post->up = false;
  RunFor(20);
  EXPECT_TRUE(hosts[0]->stopped);
  EXPECT_FALSE(hosts[1]->killed);
  RunFor(150);
  EXPECT_TRUE(hosts[1]->killed);
}

TEST_F(Hosts, AnHeirTakesBackAConsentThatWasNotSent) {
  Begin(2);
  RunFor(3);
  hosts[0]->Ask("a");
  hosts[1]->death = {Death::At::kSend, 1, true};
  while (!hosts[1]->dead) {
    Tick();
    if (hosts[1]->dead) hosts[1]->post->up = false;
  }
  RunFor(100);
  hosts[1]->post->up = true;
  RunFor(30);
  EXPECT_EQ(Stopped(), 0U);
  EXPECT_FALSE(AnyKilled());
}

/// What it is given stands in the log.
class GivenPost final : public HostPost {
 public:
  bool reaches() override { return true; }
  Status Send(std::uint64_t, const std::string&) override { return Status::Ok(); }
  bool TakeBack(std::uint64_t) override { return false; }
  std::vector<std::string> Take() override { return std::exchange(log, {}); }
  std::vector<std::string> log;
};

/// An heir reads from somewhere before the proposal on, and knows what its supervisor had heard by then.
TEST(HostHeirs, JudgeEachMessageAsTheirSupervisorDid) {
  const std::string own(32, 'b'), other(32, 'c'), gone(32, 'd');
  const auto said = [](const std::string& instance, std::uint64_t sequence, HostMessage::Kind kind,
                       const std::string& proposal) {
    HostMessage message;
    message.job = kJob;
    message.instance = instance;
    message.sequence = sequence;
    message.created_unix_ns = kUnixNs;
    message.kind = kind;
    message.proposal = proposal;
    message.train_step = 40;
    if (kind == HostMessage::Kind::kCommit) message.agreed = {std::string(32, 'b'), std::string(32, 'c')};
    return "signed:" + HostMessageText(message);
  };
  using Kind = HostMessage::Kind;
  const std::string old = gone + "-1", ours = other + "-3";
  const std::string copy = said(gone, 1, Kind::kPropose, "");
  const std::vector<std::string> before = {copy, said(other, 1, Kind::kAbort, old)};
  const std::string propose = said(other, 3, Kind::kPropose, "");
  const std::vector<std::string> decided = {said(own, 1, Kind::kAnswer, ours),
                                            said(other, 4, Kind::kAnswer, ours),
                                            said(other, 5, Kind::kCommit, ours)};
  const std::string late = said(gone, 2, Kind::kAnswer, old);  // to what is decided: no doubt
  const std::string fresh = said(std::string(32, 'e'), 1, Kind::kPropose, "");
  struct Case {
    const char* name;
    std::vector<std::string> kept, behind;
    HostLog::Decision decision;
  };
  const std::vector<Case> cases = {
      {"nothing", {}, {}, HostLog::Decision::kCommit},
      {"a copy in front", {copy}, {}, HostLog::Decision::kCommit},
      {"a copy behind", {}, {copy}, HostLog::Decision::kOpen},
      {"a late answer behind", {}, {late}, HostLog::Decision::kCommit},
      {"another proposal behind", {}, {fresh}, HostLog::Decision::kCommit},
  };
  for (const Case& one : cases) {
    auto* post = new GivenPost;
    HostLog log(kJob, own, std::unique_ptr<HostPost>(post), std::make_unique<WordSeal>());
    std::string why;
    bool is_late = false;
    post->log = before;
    log.Look(kUnixNs);
    ASSERT_EQ(log.open(), nullptr);
    post->log = one.kept;
    post->log.push_back(propose);
    log.Look(kUnixNs);
    ASSERT_NE(log.open(), nullptr);
    const auto past = log.past();
    std::vector<std::string> rest = one.behind;
    rest.insert(rest.end(), decided.begin(), decided.end());
    post->log = rest;
    log.Look(kUnixNs);
    EXPECT_EQ(log.DecisionOf(ours, &why, &is_late), one.decision) << one.name;

    auto* kept = new GivenPost;
    HostLog heir(kJob, own, std::unique_ptr<HostPost>(kept), std::make_unique<WordSeal>(), false);
    heir.Recall(*past);
    kept->log = one.kept;
    kept->log.push_back(propose);
    kept->log.insert(kept->log.end(), rest.begin(), rest.end());
    heir.Look(kUnixNs);
    EXPECT_EQ(heir.DecisionOf(ours, &why, &is_late), one.decision) << one.name;
  }
}

}  // namespace
}  // namespace luff::actions::hosts_test
