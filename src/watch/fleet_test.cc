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
#include <functional>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "keys/secret_key.h"
#include "luff/base/env.h"
#include "luff/store/reader.h"
#include "query/testing.h"
#include "watch/answers.h"
#include "watch/door.h"

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
using ::testing::SizeIs;
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

// ---- Runs of a bucket ----

/// A door to no bucket: notes what it is asked, and tells what the test wants.
class Double final : public Door {
 public:
  bool Commit(const std::string& run_id, const std::vector<std::string>& lines) override {
    for (const std::string& line : lines) asked.emplace_back(run_id, line);
    return true;
  }
  bool Done(const std::string&, std::uint64_t number) override { return done.push_back(number), true; }
  bool Request(const std::string& run_id, const std::string&) override {
    if (refuses) return false;
    return requests.push_back(run_id), true;
  }
  bool Failed(const std::string& run_id) override { return failed.push_back(run_id), true; }
  bool Judged(const std::string& run_id, std::size_t steps) override {
    return judged.emplace_back(run_id, steps), true;
  }
  std::vector<Told> Hear() override { return std::exchange(tells, {}); }
  bool BegunAnew() override { return std::exchange(anew, false); }
  void Leave(double) override { left = true; }
  [[nodiscard]] std::vector<std::string> Lines() const {
    std::vector<std::string> lines;
    for (const auto& [run_id, line] : asked) lines.push_back(line);
    return lines;
  }

  std::vector<std::pair<std::string, std::string>> asked;
  std::vector<std::uint64_t> done;
  std::vector<std::string> requests, failed;
  std::vector<std::pair<std::string, std::size_t>> judged;
  std::vector<Told> tells;
  bool anew = false, left = false, refuses = false;
};

/// A run with a NaN that has ended, called by its id as copies are, and a fleet that judges it.
class Copy {
 public:
  explicit Copy(bool lives = false) {
    training_ = std::make_unique<Training>(runs_.Path("faulty"));
    for (int i = 0; i < 30; ++i) training_->Step(i < 20 ? 1.0 : std::nan(""));
    if (!lives) {
      training_->w.Close();
      training_.reset();
    }
    id = store::ReadRunId(runs_.Path("faulty")).value();
    std::filesystem::rename(runs_.Path("faulty"), runs_.Path(id));
  }
  void Begin(bool stops = false) {
    FleetOptions options;
    options.base = runs_.base();
    options.state = runs_.base() + "/.state";
    options.grace_s = 0;
    options.earlier = true;
    options.door = door;
    options.runs.choices = rules::ParseChoices("NonFinite", rules::ParameterSet::kLuff).value();
    options.runs.stop_on_finding = stops;
    if (stops)
      options.runs.key = std::make_shared<const keys::SecretKey>(
          keys::SecretKey::Create(runs_.base() + "/key", "judge").value());
    options.runs.ask = [to = door](const std::string& run_id, const std::string& object) {
      return to->Request(run_id, object);
    };
    Voice voice{[&](const std::string& run, const rules::Finding& finding, const std::string& event) {
                  said.push_back(run + " " + finding.rule + " " + event);
                },
                [&](const std::string& line) { lines.push_back(line); }};
    auto opened = Fleet::Open(std::move(options), std::move(voice));
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    fleet = std::move(*opened);
    Open(true);
  }
  void Open(bool open) {
    Told told;
    told.run_id = id;
    told.open = open;
    door->tells.push_back(told);
  }
  void Turn(int times = 20) {
    for (int i = 0; i < times; ++i) {
      fleet->Turn();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  /// Turns until something holds; fails after a minute.
  void TurnUntil(const std::function<bool()>& holds) {
    for (int i = 0; i < 3000 && !holds(); ++i) Turn(1);
    EXPECT_TRUE(holds());
  }
  void Tell(const std::vector<std::string>& of, std::uint64_t number, bool act) {
    Told told;
    told.run_id = id;
    told.lines = of;
    told.number = number;
    told.act = act;
    door->tells.push_back(told);
  }

  [[nodiscard]] std::string Path() const { return runs_.Path(id); }
  [[nodiscard]] Training& training() { return *training_; }  // of one that lives

  std::string id;
  std::shared_ptr<Double> door = std::make_shared<Double>();
  std::unique_ptr<Fleet> fleet;
  std::vector<std::string> said, lines;

 private:
  Runs runs_;
  std::unique_ptr<Training> training_;
};

TEST(Bucket, AFindingIsSaidOnceItStandsInACommitOfOurs) {
  Copy copy;
  copy.Begin();
  copy.TurnUntil([&] { return !copy.door->asked.empty(); });
  copy.Turn();
  EXPECT_THAT(copy.said, IsEmpty());
  EXPECT_THAT(copy.door->judged, IsEmpty());  // it waits for the answer
  const std::vector<std::string> asked = copy.door->Lines();
  copy.Tell(asked, 1, true);
  copy.TurnUntil([&] { return !copy.door->judged.empty(); });
  EXPECT_THAT(copy.said, ElementsAre(copy.id + " NonFinite new"));
  EXPECT_THAT(copy.door->done, ElementsAre(1U));
  EXPECT_EQ(copy.door->judged.front(), std::make_pair(copy.id, std::size_t{30}));
  EXPECT_EQ(copy.door->Lines(), asked);  // each line was asked for once
  EXPECT_FALSE(copy.fleet->idle());      // the door has not said so
  Told idle;
  idle.idle = true;
  copy.door->tells.push_back(idle);
  copy.TurnUntil([&] { return copy.fleet->idle(); });
  copy.fleet->Leave(1);
  EXPECT_TRUE(copy.door->left);
}

TEST(Bucket, WhatAnotherHasCommittedIsNotSaid) {
  Copy copy;
  copy.Begin(true);
  copy.TurnUntil([&] { return !copy.door->asked.empty(); });
  copy.Tell(copy.door->Lines(), 1, false);
  copy.TurnUntil([&] { return !copy.door->judged.empty(); });
  EXPECT_THAT(copy.said, IsEmpty());
  EXPECT_THAT(copy.door->done, IsEmpty());
  EXPECT_THAT(copy.door->requests, IsEmpty());
}

TEST(Bucket, WhatWasKnownBefore_AndWhatIsToBeActedOn_ComesBeforeTheRunIsOpened) {
  std::vector<std::string> known;
  {
    Copy copy;
    copy.Begin();
    copy.TurnUntil([&] { return !copy.door->asked.empty(); });
    known = copy.door->Lines();
  }
  Copy knows;
  knows.Tell(known, 0, false);
  knows.Begin();
  knows.TurnUntil([&] { return !knows.door->asked.empty(); });
  knows.Tell(knows.door->Lines(), 0, false);
  knows.TurnUntil([&] { return !knows.door->judged.empty(); });
  EXPECT_THAT(knows.said, IsEmpty());
  Copy acts;
  acts.Tell(known, 3, true);
  acts.Begin();
  acts.TurnUntil([&] { return !acts.door->done.empty(); });
  EXPECT_THAT(acts.said, ElementsAre(acts.id + " NonFinite new"));
  EXPECT_THAT(acts.door->done, ElementsAre(3U));
}

TEST(Bucket, WhatNobodyHasActedOnIsSaid_AlsoByWhoKnewOfIt) {
  Copy copy(true);
  copy.Begin();
  copy.TurnUntil([&] { return !copy.door->asked.empty(); });
  const std::vector<std::string> known = copy.door->Lines();
  copy.Tell(known, 3, false);  // another one's
  copy.Turn(3);
  EXPECT_THAT(copy.said, IsEmpty());
  copy.Tell(known, 3, true);  // who has died, so it is ours
  copy.TurnUntil([&] { return !copy.door->done.empty(); });
  EXPECT_THAT(copy.said, ElementsAre(copy.id + " NonFinite new"));

  Copy begins(true);
  begins.Tell(known, 3, false);  // after a restart: before its copy is there
  begins.Tell(known, 3, true);
  begins.Begin();
  begins.TurnUntil([&] { return !begins.door->done.empty(); });
  EXPECT_THAT(begins.said, ElementsAre(begins.id + " NonFinite new"));
  begins.Tell(known, 3, true);
  begins.Turn(3);
  EXPECT_THAT(begins.said, SizeIs(1));

  Copy later;
  later.Tell(known, 2, false);
  later.Tell(known, 3, true);  // an earlier commit says it
  later.Begin();
  later.TurnUntil([&] { return !later.door->done.empty(); });
  EXPECT_THAT(later.said, IsEmpty());
}

TEST(Bucket, AStopIsSignedForWhatTheRulesHereHaveFoundAlone_UntilTheDoorTakesIt) {
  Copy forged(true);
  forged.Begin(true);
  forged.TurnUntil([&] { return !forged.door->asked.empty(); });
  nlohmann::json line = TryParseJson(forged.door->Lines().front());
  line["id"] = "f0f0f0f0f0f0f0f0";
  line["severity"] = "stop";
  forged.Tell({line.dump()}, 1, true);
  forged.TurnUntil([&] { return !forged.said.empty(); });
  forged.Turn();
  EXPECT_THAT(forged.door->requests, IsEmpty());
  EXPECT_THAT(forged.door->done, IsEmpty());  // it waits, until all is judged
  forged.door->refuses = true;
  forged.Tell(forged.door->Lines(), 2, true);
  forged.TurnUntil([&] { return forged.said.size() == 2; });
  forged.Turn();
  EXPECT_THAT(forged.door->done, IsEmpty());
  forged.door->refuses = false;
  forged.TurnUntil([&] { return forged.door->done.size() == 2; });
  EXPECT_THAT(forged.door->requests, ElementsAre(forged.id));
}

TEST(Bucket, ACopyThatCannotBeJudgedIsGivenBack) {
  Copy copy;
  std::filesystem::resize_file(copy.Path() + "/run.json", 3);
  copy.Begin();
  copy.TurnUntil([&] { return !copy.door->failed.empty(); });
  EXPECT_THAT(copy.door->failed, ElementsAre(copy.id));
  Told idle;
  idle.idle = true;
  copy.door->tells.push_back(idle);
  copy.TurnUntil([&] { return copy.fleet->idle(); });
}

TEST(Bucket, ACopyIsJudgedOnlyWhileTheDoorSaysSo) {
  Copy copy;
  copy.Begin();
  copy.door->tells.clear();  // as one that an earlier process left
  copy.Turn();
  EXPECT_EQ(copy.fleet->live(), 0U);
  copy.Open(true);
  copy.TurnUntil([&] { return !copy.door->asked.empty(); });
  copy.Open(false);
  copy.TurnUntil([&] { return copy.fleet->live() == 0; });
  copy.Turn();
  EXPECT_EQ(copy.fleet->live(), 0U);
  EXPECT_THAT(copy.door->judged, IsEmpty());
}

TEST(Bucket, ADoorThatWasBegunAnewIsAskedAgain) {
  Copy copy;
  copy.Begin();
  copy.TurnUntil([&] { return !copy.door->asked.empty(); });
  copy.Turn(5);
  const std::vector<std::string> asked = copy.door->Lines();
  copy.door->asked.clear();
  copy.door->anew = true;
  copy.TurnUntil([&] { return !copy.door->asked.empty(); });
  EXPECT_EQ(copy.door->Lines(), asked);
}

TEST(Bucket, ACopyIsLookedAtInTheTurnThatItsNewsComesIn) {
  Copy copy(true);
  copy.Begin();
  copy.TurnUntil([&] { return !copy.door->asked.empty(); });
  for (int i = 0; i < 5; ++i) copy.training().Step(1.0);
  Told told;
  told.news = {"another", copy.id, ""};
  copy.door->tells.push_back(told);
  copy.Turn(1);
  EXPECT_THAT(copy.fleet->numbers().Prometheus(), HasSubstr("luff_watch_steps_total 35\n"));
}

TEST(Bucket, WhatADoorTellsIsNotTrusted) {
  EXPECT_EQ(ParseToldUntrusted("").run_id, "");
  EXPECT_EQ(ParseToldUntrusted("[[[[[[[[[[]]]]]]]]]]").run_id, "");
  EXPECT_EQ(ParseToldUntrusted(R"({"run":3,"lines":[4,"x"],"number":-1})").lines.size(), 1U);
  EXPECT_EQ(ParseToldUntrusted(R"({"number":-1})").number, 0U);
  EXPECT_TRUE(ParseToldUntrusted(R"({"run":"a","act":true})").act);
  EXPECT_EQ(ParseToldUntrusted(R"({"asked":[1]})").asked.gets, 0U);
  EXPECT_EQ(ParseToldUntrusted(R"({"asked":{"gets":-5,"puts":"x"}})").asked.gets, 0U);
  EXPECT_EQ(ParseToldUntrusted(R"({"asked":{"received":9223372036854775807}})").asked.received, 1ULL << 48);
  EXPECT_FALSE(ParseToldUntrusted(R"({"run":"a"})").idle.has_value());
  EXPECT_THAT(ParseToldUntrusted(R"({"news":["a",1,null,"b"]})").news, ElementsAre("a", "b"));
  EXPECT_THAT(ParseToldUntrusted(R"({"news":{"a":"b"}})").news, IsEmpty());
  Copy copy;
  copy.Begin();
  copy.Tell({"no finding", "{}", R"({"run":1})"}, 1, true);
  copy.TurnUntil([&] { return !copy.door->done.empty(); });
  EXPECT_THAT(copy.said, IsEmpty());
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

TEST(Bucket, WhatItWasAskedForIsCounted) {
  Copy copy;
  copy.Begin();
  EXPECT_THAT(copy.fleet->numbers().Prometheus(), Not(HasSubstr("luff_watch_bucket_requests_total")));
  for (int i = 0; i < 2; ++i) {
    copy.door->tells.push_back(
        ParseToldUntrusted(R"({"asked":{"gets":7,"puts":2,"sent":30,"received":500}})"));
    copy.Turn(1);
  }
  const std::string metrics = copy.fleet->numbers().Prometheus();
  EXPECT_THAT(metrics, HasSubstr("luff_watch_bucket_requests_total{kind=\"get\"} 14\n"));
  EXPECT_THAT(metrics, HasSubstr("luff_watch_bucket_requests_total{kind=\"put\"} 4\n"));
  EXPECT_THAT(metrics, HasSubstr("luff_watch_bucket_bytes_total{direction=\"received\"} 1000\n"));
  EXPECT_THAT(metrics, HasSubstr("luff_watch_bucket_bytes_total{direction=\"sent\"} 60\n"));
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
