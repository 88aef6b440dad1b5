#include "watch/fleet.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "luff/base/env.h"
#include "query/testing.h"
#include "watch/answers.h"

namespace luff::watch {
namespace fleet_test {
namespace {

using query::testing::TempRun;
using query::testing::Writing;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kToken[] = "0123456789abcdef0123456789abcdef";

/// A directory of runs, and a fleet that judges them.
class Runs {
 public:
  Runs() { std::filesystem::create_directory(base()); }
  [[nodiscard]] std::string base() const { return temporary_.path(); }
  [[nodiscard]] std::string Path(const std::string& name) const { return base() + "/" + name; }

  /// What a fleet says until `steps` more steps are judged, or none has been for a while. Then it leaves, or
  /// is dropped as if it had been killed.
  std::vector<std::string> Judge(bool leaves, bool earlier = false) {
    std::vector<std::string> said;
    FleetOptions options;
    options.base = base();
    options.state = base() + "/.luff-watch/all";
    options.earlier = earlier;
    options.grace_s = 0;
    options.runs.choices = rules::ParseChoices("NonFinite", rules::ParameterSet::kLuff).value();
    Voice voice;
    voice.found = [&](const std::string& run, const rules::Finding& finding, const std::string& event) {
      said.push_back(run + " " + finding.rule + " " + event);
    };
    voice.say = [&](const std::string& line) { lines.push_back(line); };
    auto fleet = Fleet::Open(std::move(options), std::move(voice));
    EXPECT_TRUE(fleet.ok()) << fleet.status().ToString();
    if (!fleet.ok()) return said;
    for (int turns = 0; turns < 40; ++turns) {
      (*fleet)->Turn();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    metrics = (*fleet)->numbers().Prometheus();
    if (leaves) (*fleet)->Leave(5);
    return said;
  }
  /// The lines of the file of what was said: run and rule.
  [[nodiscard]] std::vector<std::string> Kept() const {
    std::ifstream file(base() + "/.luff-watch/all/findings.jsonl");
    std::vector<std::string> lines_kept;
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json json = TryParseJson(line);
      lines_kept.push_back(TextMember(json, "run") + " " + TextMember(json, "rule") + " " +
                           TextMember(json, "event"));
    }
    return lines_kept;
  }

  std::vector<std::string> lines;
  std::string metrics;

 private:
  TempRun temporary_;
};

/// A live run whose loss becomes NaN at a step.
class Training {
 public:
  explicit Training(const std::string& path) : w(path, 0, 1) { w.Define(0, "loss", 1, format::Role::kLoss); }
  void Step(double loss) {
    w.AddScalar(0, loss);
    w.Step();
  }
  Writing w;
};

TEST(Fleet, SaysEachFindingOnce_AlsoKilledAndStartedAgain) {
  Runs runs;
  Training healthy(runs.Path("healthy"));
  Training faulty(runs.Path("faulty"));
  for (int i = 0; i < 30; ++i) {
    healthy.Step(1.0 / (i + 1));
    faulty.Step(i < 20 ? 1.0 : std::nan(""));
  }
  EXPECT_THAT(runs.Judge(false), ElementsAre("faulty NonFinite new"));
  EXPECT_THAT(runs.metrics, HasSubstr("luff_watch_runs{state=\"live\"} 2"));
  EXPECT_THAT(runs.metrics, HasSubstr("luff_watch_steps_total 60"));
  EXPECT_THAT(runs.metrics, HasSubstr("luff_watch_findings_total{rule=\"NonFinite\""));
  EXPECT_THAT(runs.metrics, Not(HasSubstr("healthy")));
  EXPECT_THAT(runs.Judge(true), IsEmpty());
  for (int i = 0; i < 5; ++i) healthy.Step(std::nan(""));
  EXPECT_THAT(runs.Judge(true), ElementsAre("healthy NonFinite new"));
  EXPECT_THAT(runs.metrics, HasSubstr("luff_watch_steps_total 5\n"));  // it went on where the last one was
  EXPECT_THAT(runs.Kept(), ElementsAre("faulty NonFinite new", "healthy NonFinite new"));
}

TEST(Fleet, WhatWasFoundAndNotSaid_IsSaidByTheNext) {
  Runs runs;
  Training faulty(runs.Path("faulty"));
  for (int i = 0; i < 30; ++i) faulty.Step(i < 20 ? 1.0 : std::nan(""));
  (void)runs.Judge(true);
  // As if the process had been killed while it wrote the line.
  const std::string file = runs.base() + "/.luff-watch/all/findings.jsonl";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 7);
  EXPECT_THAT(runs.Judge(true), ElementsAre("faulty NonFinite new"));
  EXPECT_THAT(runs.Kept(), ElementsAre("faulty NonFinite new"));
}

TEST(Fleet, RunsThatEndedBefore_AreLeftAlone_UnlessAskedFor) {
  Runs runs;
  {
    Training old(runs.Path("old"));
    for (int i = 0; i < 10; ++i) old.Step(std::nan(""));
    old.w.Close();
  }
  EXPECT_THAT(runs.Judge(true), IsEmpty());
  {
    Training short_one(runs.Path("short"));  // begins and ends while nobody watches
    for (int i = 0; i < 10; ++i) short_one.Step(std::nan(""));
    short_one.w.Close();
  }
  EXPECT_THAT(runs.Judge(true), ElementsAre("short NonFinite new"));
  EXPECT_THAT(runs.metrics, HasSubstr("luff_watch_runs{state=\"live\"} 0"));
  EXPECT_THAT(runs.Judge(true), IsEmpty());

  Runs others;
  {
    Training old(others.Path("old"));
    for (int i = 0; i < 10; ++i) old.Step(std::nan(""));
    old.w.Close();
  }
  EXPECT_THAT(others.Judge(true, true), ElementsAre("old NonFinite new"));
}

TEST(Fleet, ARunThatCannotBeJudgedIsClosedOnlyWhenWhatWasFoundIsDelivered) {
  Runs runs;
  auto faulty = std::make_unique<Training>(runs.Path("faulty"));
  for (int i = 0; i < 5; ++i) faulty->Step(std::nan(""));
  const std::string go = runs.base() + "/go", seen = runs.base() + "/seen";
  FleetOptions options;
  options.base = runs.base();
  options.state = runs.base() + "/.luff-watch/all";
  options.grace_s = 0;
  options.runs.choices = rules::ParseChoices("NonFinite", rules::ParameterSet::kLuff).value();
  actions::ActionSpec slow;
  slow.name = "slow";
  slow.kind = actions::ActionKind::kCommand;
  slow.dry_run = false;
  slow.timeout_s = 60;
  slow.argv = {"sh", "-c", "while [ ! -e " + go + " ]; do sleep 0.02; done; cat > " + seen};
  options.runs.actions = {slow};
  std::vector<std::string> lines;
  bool found = false;
  Voice voice{[&](const std::string&, const rules::Finding&, const std::string&) { found = true; },
              [&](const std::string& line) { lines.push_back(line); }};
  auto fleet = Fleet::Open(std::move(options), std::move(voice));
  ASSERT_TRUE(fleet.ok());
  const pid_t another = fork();  // as the process of a rule, for which nobody waits for now
  if (another == 0) _exit(0);
  const auto turn = [&] {
    (*fleet)->Turn();
    (*fleet)->ReapChildren();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  for (int i = 0; i < 200 && !found; ++i) turn();
  ASSERT_TRUE(found);
  for (int i = 0; i < 5; ++i) turn();  // its delivery is under way
  for (int i = 0; i < 300; ++i) faulty->Step(std::nan(""));
  // The disk takes nothing any more, so what is found cannot be kept.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit nothing{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &nothing), 0);
  for (int i = 0; i < 200 && lines.empty(); ++i) turn();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  ASSERT_THAT(lines, Contains(HasSubstr("faulty is judged no further")));
  for (int i = 0; i < 10; ++i) turn();
  EXPECT_EQ((*fleet)->live(), 1U);
  {
    const std::ofstream told(go);
  }
  for (int i = 0; i < 400 && (*fleet)->live() > 0; ++i) turn();
  EXPECT_EQ((*fleet)->live(), 0U);
  EXPECT_TRUE(std::filesystem::exists(seen));
  EXPECT_GT(std::filesystem::file_size(seen), 10U);
  EXPECT_EQ(waitpid(another, nullptr, WNOHANG), another);
}

TEST(Fleet, OneProcessForAState_AndShardsPartTheRuns) {
  Runs runs;
  Training one(runs.Path("one"));
  FleetOptions options;
  options.base = runs.base();
  options.state = runs.base() + "/state";
  options.grace_s = 0;
  Voice silent{[](const std::string&, const rules::Finding&, const std::string&) {},
               [](const std::string&) {}};
  const auto first = Fleet::Open(options, silent);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(Fleet::Open(options, silent).status().code(), StatusCode::kAlreadyExists);
  one.Step(1);
  std::size_t live = 0;
  for (std::uint32_t shard = 0; shard < 3; ++shard) {
    options.state = runs.base() + "/state" + std::to_string(shard);
    options.shard = shard;
    options.shards = 3;
    const auto part = Fleet::Open(options, silent);
    ASSERT_TRUE(part.ok());
    (*part)->Turn();
    live += (*part)->live();
  }
  EXPECT_EQ(live, 1U);
}

TEST(Answers, ATokenIsNeeded_AndOnlyWhatIsThereIsAnswered) {
  Numbers numbers;
  const auto ask = [&](const std::string& line, const std::string& token) {
    return AnswerUntrusted(line + " HTTP/1.1\r\nHost: x\r\nauthorization:  Bearer " + token + " \r\n\r\n",
                           kToken, numbers);
  };
  EXPECT_THAT(ask("GET /metrics", "wrong"), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(ask("GET /metrics", ""), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(ask("GET /metrics", kToken), HasSubstr("luff_watch_ready 0"));
  EXPECT_THAT(ask("GET /ready", kToken), StartsWith("HTTP/1.1 503 "));
  numbers.SetRuns({}, 0, 0, true);
  EXPECT_THAT(ask("GET /ready", kToken), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(ask("GET /else", kToken), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(ask("POST /metrics", kToken), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(AnswerUntrusted("\r\n\r\n", kToken, numbers), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(AnswerUntrusted("GET /metrics HTTP/1.1\r\n\r\n", "", numbers), StartsWith("HTTP/1.1 401 "));
}

TEST(Numbers, LagsAreCountedByStep) {
  Numbers numbers;
  numbers.Judged(98, 0.3);
  numbers.Judged(2, 7);
  EXPECT_EQ(numbers.LagQuantile(0.5), 0.5);
  EXPECT_EQ(numbers.LagQuantile(0.99), 10);
  EXPECT_THAT(numbers.Prometheus(), HasSubstr("luff_watch_lag_seconds_bucket{le=\"0.5\"} 98\n"));
  EXPECT_THAT(numbers.Prometheus(), HasSubstr("luff_watch_lag_seconds_count 100\n"));
}

}  // namespace
}  // namespace fleet_test
}  // namespace luff::watch
