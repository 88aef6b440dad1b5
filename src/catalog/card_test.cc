#include "catalog/card.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "catalog/labels.h"
#include "luff/rules/finding.h"
#include "luff/store/control.h"
#include "query/testing.h"

namespace luff::catalog {
namespace {

using format::Mode;
using query::testing::TempRun;
using query::testing::Writing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Card Read(const std::string& run) {
  auto card = ReadCard(run);
  EXPECT_TRUE(card.ok()) << card.status().ToString();
  return card.ok() ? *card : Card();
}

double Number(const std::map<std::string, Parameter>& of, const std::string& name) {
  const auto at = of.find(name);
  return at == of.end() || !std::holds_alternative<double>(at->second) ? -1 : std::get<double>(at->second);
}

TEST(ParametersOf, ReadsOptionsOfACommand) {
  const auto found = ParametersOf({"python", "train.py", "--lr", "0.01", "--batch-size=32", "model=resnet",
                                   "--amp", "--shift", "-1", "-v", "data.csv", "--name", "x y"});
  EXPECT_DOUBLE_EQ(Number(found, "lr"), 0.01);
  EXPECT_DOUBLE_EQ(Number(found, "batch_size"), 32);
  EXPECT_DOUBLE_EQ(Number(found, "shift"), -1);
  EXPECT_EQ(found.at("model"), Parameter(std::string("resnet")));
  EXPECT_EQ(found.at("amp"), Parameter(true));
  EXPECT_EQ(found.at("name"), Parameter(std::string("x y")));
  EXPECT_EQ(found.size(), 6U);
}

TEST(ParametersOf, LeavesOutSecretsAndStrangeNames) {
  EXPECT_TRUE(
      ParametersOf({"a", "--api-key", "123", "--hf_token=abc", "=", "--=", "https://x?a=b", "--a b=1"})
          .empty());
  EXPECT_TRUE(ParametersOf({}).empty());
}

TEST(ReadCard, HasStepsAndScalarsByMode) {
  const TempRun run;
  Writing w(run.path(), 0, 1);
  w.Define(0, "loss", 1, format::Role::kLoss);
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int i = 0; i < 4; ++i) {
      w.AddScalar(0, 10.0 - epoch - i * 0.1);
      w.Step(Mode::kTrain);
    }
    for (int i = 0; i < 2; ++i) {
      w.AddScalar(0, 20.0);
      w.Step(Mode::kEval);
    }
  }
  w.Close();
  const Card card = Read(run.path());
  EXPECT_EQ(card.verdict, "ok");
  EXPECT_EQ(card.outcome, "completed");
  EXPECT_EQ(card.steps.at("TRAIN"), 12U);
  EXPECT_EQ(card.steps.at("EVAL"), 6U);
  EXPECT_EQ(card.loss, "loss");
  EXPECT_EQ(card.eval_loss, "loss");
  const Scalar* loss = FindScalar(card, "loss", false);
  ASSERT_NE(loss, nullptr);
  EXPECT_EQ(loss->count, 12U);
  EXPECT_DOUBLE_EQ(loss->first, 10.0);
  EXPECT_DOUBLE_EQ(loss->last, 7.7);
  EXPECT_DOUBLE_EQ(loss->min, 7.7);
  EXPECT_EQ(loss->min_step, 11);
  EXPECT_DOUBLE_EQ(loss->max, 10.0);
  EXPECT_EQ(loss->max_step, 0);
}

TEST(ReadCard, NamesTheTrialOfASweepAndItsParameters) {
  const TempRun run;
  Writing w(run.path(), 0, 1);
  w.batch.documents.emplace_back("trial", R"({"name": "t3", "sweep": "digits", "params":
      {"lr": 0.1, "bias": true, "kind": "relu", "api_key": "x", "shape": [1, 2], "none": null}})");
  w.Step();
  w.Close();
  const Card card = Read(run.path());
  EXPECT_EQ(card.trial, "t3");
  EXPECT_EQ(card.sweep, "digits");
  EXPECT_EQ(card.parameters.at("lr"), Parameter(0.1));
  EXPECT_EQ(card.parameters.at("bias"), Parameter(true));
  EXPECT_EQ(card.parameters.at("kind"), Parameter(std::string("relu")));
  EXPECT_EQ(card.parameters.at("shape"), Parameter(std::string("[1,2]")));
  EXPECT_FALSE(card.parameters.contains("api_key"));

  for (const char* bad : {"", "[]", "{", R"({"name": 3, "params": []})", R"({"params": {"": 1}})"}) {
    const TempRun other;
    Writing v(other.path(), 0, 1);
    v.batch.documents.emplace_back("trial", bad);
    v.Step();
    v.Close();
    EXPECT_EQ(Read(other.path()).trial, "") << bad;
    EXPECT_TRUE(Read(other.path()).parameters.empty()) << bad;
  }
}

TEST(ReadCard, HasTheMeanOfEachEvaluation) {
  const TempRun run;
  Writing w(run.path(), 0, 1);
  w.Define(0, "loss", 1, format::Role::kLoss);
  std::int64_t updates = 0;
  const auto step = [&](Mode mode, double loss) {
    w.AddScalar(0, loss);
    w.Step(mode, updates);
    updates += mode == Mode::kTrain ? 1 : 0;
  };
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int i = 0; i < 4; ++i) step(Mode::kTrain, 1.0);
    for (int i = 0; i < 2; ++i) step(Mode::kEval, 20.0 - epoch + i);
  }
  w.Close();
  const Card card = Read(run.path());
  const Scalar* loss = FindScalar(card, "loss", true);
  ASSERT_NE(loss, nullptr);
  EXPECT_EQ(loss->count, 3U);
  EXPECT_DOUBLE_EQ(loss->first, 20.5);
  EXPECT_DOUBLE_EQ(loss->last, 18.5);
  EXPECT_EQ(loss->last_step, 5);
}

TEST(CardOf, IsTheSameOfARunThatSomebodyHasOpen) {
  const TempRun run;
  Writing writing(run.path(), 0, 1);
  writing.Define(0, "loss", 1, format::Role::kLoss);
  const auto trial = query::Trial::Open(run.path()).value();
  for (int i = 0; i < 5; ++i) {
    writing.AddScalar(0, 1.0 / (i + 1));
    writing.Step();
  }
  writing.Close();
  ASSERT_TRUE(trial->RefreshAll().ok());
  EXPECT_EQ(ToJson(CardOf(run.path(), *trial)), ToJson(Read(run.path())));
}

TEST(ReadCard, PartsOfAResumedJobAreOneWorker) {
  const TempRun run;
  std::int64_t step = 0;
  for (std::uint32_t part = 0; part < 2; ++part) {
    Writing writing(run.path(), part, 1, part > 0);
    writing.global_step = step;
    for (int i = 0; i < 3; ++i) writing.Step();
    step = writing.global_step;
    writing.Close();
  }
  EXPECT_EQ(Read(run.path()).workers, 1U);
}

TEST(ReadCard, NamesTheFindingThatStoppedAJobWhoseOutcomeIsNotWrittenYet) {
  const TempRun run;
  Writing w(run.path(), 0, 1);
  w.Step();
  w.Close(format::EndReason::kStopped);
  const std::string folder = run.path() + "/rules/luff";
  std::filesystem::create_directories(folder);
  for (const char* rule : {"LossSpike", "WeightUpdateRatio"}) {
    rules::Finding finding;
    finding.id = finding.rule = rule;
    finding.severity = rules::Severity::kStop;
    std::ofstream(folder + "/findings.jsonl", std::ios::app) << rules::ToJson(finding, "new") << "\n";
  }
  store::ControlRecord proposal;
  proposal.kind = "stop";
  proposal.phase = "propose";
  proposal.finding = "WeightUpdateRatio";
  store::ControlRecord commit = proposal;
  commit.phase = "commit";
  commit.proposal = store::WriteControl(run.path(), proposal).value();
  EXPECT_EQ(Read(run.path()).headline.rule, "");  // asked for only
  ASSERT_TRUE(store::DecideControl(run.path(), commit).ok());
  const Card card = Read(run.path());
  EXPECT_EQ(card.verdict, "stopped");
  EXPECT_EQ(card.headline.rule, "WeightUpdateRatio");
}

TEST(ReadCard, SaysThatARunIsEmptyOrDamaged) {
  const TempRun empty;
  Writing(empty.path(), 0, 1).Close();
  EXPECT_EQ(Read(empty.path()).verdict, "empty");
  const TempRun damaged;
  {
    Writing w(damaged.path(), 0, 1);
    w.Step();
    w.Close();
  }
  std::ofstream(damaged.path() + "/run.json") << "{";
  const Card card = Read(damaged.path());
  EXPECT_EQ(card.verdict, "damaged");
  EXPECT_THAT(card.problems, ElementsAre(HasSubstr("run.json")));
  EXPECT_EQ(ReadCard(damaged.path() + "/nowhere").status().code(), StatusCode::kNotFound);
}

TEST(ToJson, IsJsonWithoutNumbersThatJsonLacks) {
  Card card;
  card.name = "a\x01\xff";
  card.parameters = {{"lr", 0.1}, {"amp", true}, {"model", std::string("m")}};
  Scalar bad;
  bad.name = "loss";
  bad.last = std::nan("");
  card.scalars = {bad};
  const auto json = ParseJson(ToJson(card));
  EXPECT_EQ(json.at("scalars").at(0).at("last"), "NaN");
  EXPECT_EQ(json.at("parameters").at("amp"), true);
  EXPECT_EQ(json.at("findings").at("count"), 0);
}

TEST(Label, IsWhatAllChangesTogetherSay) {
  const TempRun run;
  Writing(run.path(), 0, 1).Close();
  EXPECT_TRUE(ChangeLabel(run.path(), {.add = {"b", "a", "b"}, .title = "first", .author = "me@here"}).ok());
  EXPECT_THAT(LabelOf(run.path()).tags, ElementsAre("a", "b"));
  EXPECT_TRUE(ChangeLabel(run.path(), {.add = {"c"}, .remove = {"a", "nothing"}, .note = "two\nlines"}).ok());
  const Label label = LabelOf(run.path());
  EXPECT_THAT(label.tags, ElementsAre("b", "c"));
  EXPECT_EQ(label.title, "first");
  EXPECT_EQ(label.note, "two\nlines");
  EXPECT_EQ(LabelChangesOf(run.path()).front().author, "me@here");
  EXPECT_TRUE(ChangeLabel(run.path(), {.title = ""}).ok());
  EXPECT_EQ(Read(run.path()).title, "");
  EXPECT_EQ(Read(run.path()).note, "two\nlines");
}

TEST(Label, RefusesWhatIsNone) {
  const TempRun run;
  Writing(run.path(), 0, 1).Close();
  for (const std::string bad : {"", "two words", "a,b", "-x", "\n"})
    EXPECT_EQ(ChangeLabel(run.path(), {.add = {bad}}).status().code(), StatusCode::kInvalidArgument) << bad;
  EXPECT_EQ(ChangeLabel(run.path(), {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ChangeLabel(run.path(), {.title = "a\nb"}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ChangeLabel(run.path(), {.note = std::string(kMaxNoteBytes + 1, 'x')}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(ChangeLabel(run.path() + "/nowhere", {.add = {"a"}}).status().code(), StatusCode::kNotFound);
  LabelChange many;
  for (std::size_t i = 0; i <= kMaxTags; ++i) many.add.push_back("t" + std::to_string(i));
  EXPECT_FALSE(ChangeLabel(run.path(), many).ok());
  for (const char* bad :
       {"", "[]", R"({"add": "a"})", R"({"add": [1]})", R"({"title": 3})", R"({"tags": ["a"]})"})
    EXPECT_EQ(ParseLabelUntrusted(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  store::ControlRecord strange;  // of a hand
  strange.kind = "label";
  strange.body = R"({"add": ["ok", "not ok"]})";
  ASSERT_TRUE(store::WriteControl(run.path(), strange).ok());
  EXPECT_TRUE(LabelOf(run.path()).tags.empty());
}

}  // namespace
}  // namespace luff::catalog
