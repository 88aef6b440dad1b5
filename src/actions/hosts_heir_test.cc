// Supervisors of several hosts that die while these agree upon something, and their heirs, by simulation.
#include <string>
#include <utility>

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

}  // namespace
}  // namespace luff::actions::hosts_test
