#include "luff/rules/evaluator.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "luff/format/collections.h"
#include "rules/engine/evidence.h"
#include "rules/engine/recorded.h"
#include "rules/kit/ends_later.h"
#include "rules/kit/select.h"
#include "rules/testing/fake_trial.h"

namespace luff::rules::evaluator_test {
namespace {

using format::Role;
using testing::FakeTrial;

class EvaluatorTest : public ::testing::Test {  // NOLINT(*-virtual-class-destructor): as gtest asks
 protected:
  EvaluatorTest() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("luff_" + std::string(test->name()) + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    for (int step = 0; step < 40; ++step) {
      trial_.Step()
          .Loss(step < 20 ? 1.0 : std::nan(""))
          .Tensor("w", Role::kWeight, {step < 21 ? 1.0 : std::nan("")});
    }
  }
  ~EvaluatorTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Evaluator> Open(const std::string& rules = "all") {
    EvaluatorOptions options;
    options.folder = folder_;
    options.choices = ParseChoices(rules, ParameterSet::kLuff).value();
    auto opened = Evaluator::Open(
        options, [this](const Finding&, const std::string& event) { heard_.push_back(event); });
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    return std::move(opened).value();
  }
  std::string Lines() const {
    std::ifstream file(folder_ / "findings.jsonl");
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::filesystem::path folder_;
  FakeTrial trial_;
  std::vector<std::string> heard_;
};

TEST_F(EvaluatorTest, AnyInterruption_GivesTheSameFile) {
  {
    auto whole = Open();
    EXPECT_TRUE(whole->Advance(trial_, 1000).ok());
    EXPECT_TRUE(whole->Finish(trial_).ok());
  }
  const std::string expected = Lines();
  EXPECT_NE(expected.find("NonFinite"), std::string::npos);
  for (std::size_t cut = 0; cut <= 40; cut += 3) {
    for (const bool checkpoint : {false, true}) {
      std::filesystem::remove_all(folder_);
      {
        auto first = Open();
        EXPECT_TRUE(first->Advance(trial_, cut / 2).ok());
        if (checkpoint) {
          EXPECT_TRUE(first->Checkpoint().ok());
        }
        EXPECT_TRUE(first->Advance(trial_, cut - cut / 2).ok());
      }  // dies here
      auto second = Open();
      EXPECT_TRUE(second->Advance(trial_, 1000).ok());
      EXPECT_TRUE(second->Finish(trial_).ok());
      EXPECT_EQ(Lines(), expected) << "cut after " << cut;
    }
  }
}

TEST_F(EvaluatorTest, TornLastLine_IsCutOffAndWrittenAgain) {
  {
    auto whole = Open();
    EXPECT_TRUE(whole->Advance(trial_, 30).ok());
  }
  const std::string expected = Lines();
  std::filesystem::resize_file(folder_ / "findings.jsonl", expected.size() - 10);
  auto again = Open();
  EXPECT_TRUE(again->Advance(trial_, 30).ok());
  EXPECT_EQ(Lines(), expected);
}

TEST_F(EvaluatorTest, ReplayedFindings_AreNotHeardAgain) {
  {
    auto whole = Open();
    EXPECT_TRUE(whole->Advance(trial_, 40).ok());
  }
  const std::size_t heard = heard_.size();
  EXPECT_GT(heard, 0U);
  auto again = Open();
  EXPECT_TRUE(again->Advance(trial_, 40).ok());
  EXPECT_EQ(heard_.size(), heard);
}

// A faulty rule: it throws in one of its calls, from step 7 on.
class Throwing final : public Rule {
 public:
  enum class In { kStep, kPause, kEnd, kSave };
  explicit Throwing(In in) : in_(in) {}
  void OnStep(const StepView& view, Sink& sink) override {
    now_ = view.number;
    if (view.number == 0) sink.Report(FindingAt("Throwing", "cause", view.trial, 0, 0, view.rows.info));
    ThrowIn(In::kStep);
  }
  void OnPause(Sink& /*sink*/) override { ThrowIn(In::kPause); }
  void OnEnd(const query::Trial& /*trial*/, Sink& /*sink*/) override { ThrowIn(In::kEnd); }
  std::string SaveState() const override {
    ThrowIn(In::kSave);
    return "{}";
  }
  Status LoadState(std::string_view /*json*/) override { return Status::Ok(); }

 private:
  void ThrowIn(In in) const {
    if (in == in_ && now_ >= 7) throw std::out_of_range("vector::_M_range_check");
  }
  const In in_;
  std::size_t now_ = 0;
};

// Judges when it is asked between steps, as a rule in another process; with each checkpoint it is behind.
class Slow final : public Rule, public EndsLater {
 public:
  void OnStep(const StepView& /*view*/, Sink& /*sink*/) override {}
  void Judges(const query::Trial& trial) override { trial_ = &trial; }
  void OnPause(Sink& /*sink*/) override {
    if (trial_ != nullptr && behind_ > 0) --behind_;
  }
  std::size_t behind() const override { return behind_; }
  void Ending(const query::Trial& /*trial*/, Sink& /*sink*/) override {}
  bool pending() const override { return false; }
  std::string SaveState() const override { return "{}"; }
  Status LoadState(std::string_view /*json*/) override {
    behind_ = 3;
    return Status::Ok();
  }

 private:
  const query::Trial* trial_ = nullptr;
  std::size_t behind_ = 0;
};

TEST_F(EvaluatorTest, ARuleThatWasBehind_JudgesTheRestAlsoIfNoStepComes) {
  RuleSpec spec;
  spec.name = "Slow";
  spec.needs = [](const Parameters&) { return std::vector<Need>{}; };
  spec.make = [](const Parameters&) -> Result<std::unique_ptr<Rule>> {
    return std::unique_ptr<Rule>(new Slow());
  };
  EvaluatorOptions options;
  options.folder = folder_;
  options.choices = {{&spec, {}}};
  {
    auto first = Evaluator::Open(options, nullptr);
    ASSERT_TRUE(first.ok());
    EXPECT_TRUE((*first)->Advance(trial_, 1000).ok());
    EXPECT_TRUE((*first)->Checkpoint().ok());
  }
  auto second = Evaluator::Open(options, nullptr);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ((*second)->behind(), 3U);
  for (int i = 0; i < 3; ++i) EXPECT_EQ((*second)->Advance(trial_, 1000).value(), 0U);
  EXPECT_EQ((*second)->behind(), 0U);
}

TEST_F(EvaluatorTest, ARuleThatThrows_IsSetAsideAndToldOnce) {
  std::string expected;
  {
    auto alone = Open("NonFinite");
    EXPECT_TRUE(alone->Advance(trial_, 1000).ok());
    EXPECT_TRUE(alone->Finish(trial_).ok());
    expected = Lines();
  }
  using In = Throwing::In;
  for (const In in : {In::kStep, In::kPause, In::kEnd, In::kSave}) {
    std::filesystem::remove_all(folder_);
    RuleSpec spec;
    spec.name = "Throwing";
    spec.needs = [](const Parameters&) { return std::vector<Need>{}; };
    spec.make = [in](const Parameters&) -> Result<std::unique_ptr<Rule>> {
      return std::unique_ptr<Rule>(new Throwing(in));
    };
    std::vector<RuleNote> notes;
    EvaluatorOptions options;
    options.folder = folder_;
    options.choices = ParseChoices("NonFinite", ParameterSet::kLuff).value();
    options.choices.insert(options.choices.begin(), {&spec, {}});
    options.on_note = [&](const RuleNote& note) { notes.push_back(note); };
    for (int life = 0; life < 2; ++life) {  // the second begins where the first ended
      auto evaluator = Evaluator::Open(options, nullptr);
      ASSERT_TRUE(evaluator.ok());
      EXPECT_TRUE((*evaluator)->Advance(trial_, 20).ok());
      EXPECT_TRUE((*evaluator)->Advance(trial_, 1000).ok());
      EXPECT_EQ((*evaluator)->steps_done(), 40U);
      EXPECT_TRUE((*evaluator)->Finish(trial_).ok());
      ASSERT_EQ((*evaluator)->notes().size(), 1U);
      EXPECT_TRUE((*evaluator)->coverage()[0].aside);
      EXPECT_FALSE((*evaluator)->coverage()[1].aside);
      ASSERT_EQ(notes.size(), static_cast<std::size_t>(life) + 1);
      EXPECT_EQ(notes.back().rule, "Throwing");
      EXPECT_TRUE(notes.back().failed);
      EXPECT_NE(notes.back().text.find("set aside"), std::string::npos);
      EXPECT_NE(notes.back().text.find("_M_range_check"), std::string::npos);
      std::string others;
      std::stringstream lines(Lines());
      for (std::string line; std::getline(lines, line);) {
        if (line.find("Throwing") == std::string::npos) others += line + "\n";
      }
      EXPECT_EQ(others, expected) << static_cast<int>(in) << life;
      EXPECT_NE(Lines().find("Throwing"), std::string::npos);  // its findings stay
    }
  }
}

TEST_F(EvaluatorTest, Coverage_SaysWhatRulesHadNothingToLookAt) {
  const auto lacks = [](const Evaluator& evaluator) {
    std::map<std::string, std::string> by_rule;
    for (const RuleCoverage& one : evaluator.coverage()) by_rule[one.rule] = one.lacks;
    return by_rule;
  };
  const std::string rules = "NonFinite,LossSpike,Overfit,VanishingGradient,TreeDepth,TensorVariance";
  {
    auto evaluator = Open(rules);
    EXPECT_EQ(Summarize(evaluator->coverage()).judged, 0U);
    EXPECT_TRUE(evaluator->Advance(trial_, 1000).ok());
    EXPECT_EQ(lacks(*evaluator)["NonFinite"], "");
    EXPECT_EQ(lacks(*evaluator)["LossSpike"], "");
    EXPECT_EQ(lacks(*evaluator)["Overfit"], "losses of an evaluation");
    EXPECT_EQ(lacks(*evaluator)["VanishingGradient"], "gradients");
    EXPECT_EQ(lacks(*evaluator)["TreeDepth"], "boosting rounds");
    EXPECT_EQ(lacks(*evaluator)["TensorVariance"], "tensors that you name");
    EXPECT_EQ(Summarize(evaluator->coverage()).judged, 2U);
    EXPECT_TRUE(evaluator->Checkpoint().ok());
  }
  trial_.Step(query::Mode::kEval).Loss(1.0);
  auto again = Open(rules);  // the checkpoint holds what came before
  EXPECT_TRUE(again->Advance(trial_, 1000).ok());
  EXPECT_EQ(lacks(*again)["Overfit"], "");
  EXPECT_EQ(Summarize(again->coverage()).judged, 3U);
}

std::string CollectionsText(const std::string& rules) {
  const auto choices = ParseChoices(rules, ParameterSet::kLuff).value();
  return nlohmann::json::parse(CaptureConfigFor(choices).value())["collections"].dump();
}

TEST_F(EvaluatorTest, Coverage_SaysWhatTheRunWasNotToRecord) {
  trial_.SetDocument("collections", CollectionsText("none"));
  auto evaluator = Open("NonFinite,LossInputContract,TrainValSkew,Swapping");
  ASSERT_TRUE(evaluator->Advance(trial_, 1000).ok());
  const CoverageSummary coverage = Summarize(evaluator->coverage());
  EXPECT_THAT(coverage.lacks.at(kNotRecorded), ::testing::ElementsAre("LossInputContract", "TrainValSkew"));
  EXPECT_EQ(coverage.lacks.size(), 2U);  // no need of Swapping's is a tensor
  EXPECT_THAT(NotRecordedText(coverage), ::testing::StartsWith("recorded without what 2 rules look at"));
  trial_.SetDocument("collections", CollectionsText("later"));  // a capture was begun meanwhile
  ASSERT_TRUE(evaluator->Finish(trial_).ok());
  const CoverageSummary now = Summarize(evaluator->coverage());
  EXPECT_FALSE(now.lacks.contains(kNotRecorded));
  EXPECT_THAT(now.lacks, ::testing::Contains(::testing::Key("calls of a loss")));
  EXPECT_EQ(NotRecordedText(now), "");
}

TEST(Recorded, HoldsWhatACaptureConfigurationWasMadeFor) {
  Recorded all;
  all.ReadUntrusted(CollectionsText("all"));
  Recorded nothing;
  nothing.ReadUntrusted(CollectionsText("none"));
  std::size_t lacking = 0;
  for (const RuleSpec& spec : BuiltinRules()) {
    for (const ParameterSet set : {ParameterSet::kLuff, ParameterSet::kOriginal}) {
      const Choice choice = ParseChoices(spec.name, set).value().front();
      const std::vector<Need> needs = spec.needs(choice.parameters);
      Recorded alone;
      alone.ReadUntrusted(
          nlohmann::json::parse(CaptureConfigFor({&choice, 1}).value())["collections"].dump());
      EXPECT_TRUE(alone.Holds(needs)) << spec.name;
      if (set != ParameterSet::kLuff) continue;
      EXPECT_TRUE(all.Holds(needs)) << spec.name;
      lacking += nothing.Holds(needs) ? 0 : 1;
      if (needs.empty()) {
        EXPECT_TRUE(nothing.Holds(needs)) << spec.name;
      }
    }
  }
  EXPECT_GE(lacking, 30U);
}

TEST(Recorded, OfTheBeginAlone_AndMuchTooRarely_IsNotRecorded) {
  Need need;
  need.roles = {Role::kInput};
  need.forms = static_cast<std::uint32_t>(format::Form::kRaw);
  need.save_interval = 4;
  const auto holds = [&](const std::string& save, const std::string& forms = R"(["raw"])") {
    Recorded recorded;
    recorded.ReadUntrusted(R"([{"name": "inputs", "roles": ["input"], "forms": )" + forms +
                           R"(, "save": {"TRAIN": )" + save + "}}]");
    return recorded.Holds({&need, 1});
  };
  EXPECT_TRUE(holds(R"({"save_interval": 4, "end_step": null})"));
  EXPECT_TRUE(holds(R"({"save_interval": 40, "end_step": 1000})"));
  EXPECT_FALSE(holds(R"({"save_interval": 1, "end_step": 1})"));
  EXPECT_FALSE(holds(R"({"save_interval": 500, "end_step": null})"));
  EXPECT_FALSE(holds(R"({"save_interval": 4})", R"(["summary"])"));
}

TEST(Recorded, OfWhatIsNoListOfCollections_NothingIsKnown) {
  Need need;
  need.collection = "samples";
  for (const char* text : {"", "{}", "[]", "[", "3", R"({"collections": {}})"}) {
    Recorded recorded;
    recorded.ReadUntrusted(text);
    EXPECT_TRUE(recorded.Holds({&need, 1})) << text;
  }
  for (const char* text :
       {"[3]", R"([{"name": 3, "roles": {}, "save": [], "forms": [null]}])", R"([{"save": {"TRAIN": 3}}])"}) {
    Recorded recorded;
    recorded.ReadUntrusted(text);
    EXPECT_FALSE(recorded.Holds({&need, 1})) << text;
  }
}

TEST_F(EvaluatorTest, Coverage_KnowsEveryBuiltInRule) {
  for (const RuleSpec& spec : BuiltinRules()) EXPECT_TRUE(Evidence::Knows(spec.name)) << spec.name;
}

TEST_F(EvaluatorTest, OtherParameters_StartFromTheFirstStep) {
  {
    auto first = Open("NonFinite");
    EXPECT_TRUE(first->Advance(trial_, 40).ok());
    EXPECT_TRUE(first->Checkpoint().ok());
  }
  auto second = Open("NonFinite:loss_steps=2");
  EXPECT_EQ(second->steps_done(), 0U);
  auto same = Evaluator::Open({.folder = folder_, .choices = {}}, nullptr);
  EXPECT_EQ(same.status().code(), StatusCode::kFailedPrecondition);  // one evaluator per folder
}

TEST_F(EvaluatorTest, LiveAndAfterwards_GiveTheSameFindings) {
  {
    auto live = Open();
    for (std::size_t shown = 1; shown <= 40; ++shown) {
      trial_.ShowOnly(shown);
      EXPECT_TRUE(live->Advance(trial_, 1000).ok());
    }
    EXPECT_TRUE(live->Finish(trial_).ok());
  }
  const std::string expected = Lines();
  std::filesystem::remove_all(folder_);
  auto after = Open();
  EXPECT_TRUE(after->Advance(trial_, 1000).ok());
  EXPECT_TRUE(after->Finish(trial_).ok());
  EXPECT_EQ(Lines(), expected);
}

// Sums of squares of an exploding loss are far beyond 2^53, but they are finite doubles and must load again.
TEST_F(EvaluatorTest, StatesOfLargeValues_AreGoneOnWith) {
  for (const double scale : {1e3, 1e9, 1e30, 1e150, 1e200}) {
    testing::FakeTrial trial;
    trial.SetDocument("model", R"({"parameters":[{"name":"fc.weight","trainable":true}]})");
    for (int step = 0; step < 60; ++step) {
      const double x = scale * (1 + 0.1 * (step % 7));
      trial.Step()
          .Loss(x)
          .Scalar("optimizer_0/lr", Role::kOptimizerSetting, 0.1)
          .Tensor("fc.weight", Role::kWeight, {x, -2 * x, 3 * x})
          .Tensor("fc.bias", Role::kBias, {x})
          .Tensor("gradient/fc.weight", Role::kGradient, {x, -x, x / 3})
          .Difference("fc.weight", x, 10 * x, 1, 1)
          .Units("relu_output_0", {0, 1, 5, 0}, 8)
          .Event(format::EventKind::kBackward)
          .Event(format::EventKind::kOptimizerStep)
          .Event(format::EventKind::kZeroGrad);
      if (step % 5 == 4) trial.Step(query::Mode::kEval).Loss(2 * x);
    }
    for (const auto set : {ParameterSet::kLuff, ParameterSet::kOriginal}) {
      for (const RuleSpec& spec : BuiltinRules()) {
        const auto open = [&] {
          EvaluatorOptions options;
          options.folder = folder_;
          options.choices = ParseChoices(spec.name, set).value();
          return std::move(Evaluator::Open(options, nullptr)).value();
        };
        const auto finish = [&](Evaluator& evaluator) {
          EXPECT_TRUE(evaluator.Advance(trial, 1000).ok());
          EXPECT_TRUE(evaluator.Finish(trial).ok());
          return Lines();
        };
        std::filesystem::remove_all(folder_);
        const std::string expected = finish(*open());
        std::filesystem::remove_all(folder_);
        {
          auto first = open();
          ASSERT_TRUE(first->Advance(trial, 50).ok());
          ASSERT_TRUE(first->Checkpoint().ok());
        }
        auto second = open();
        // Squares overflow at the last scale: a rule may refuse such a state and start over.
        if (scale < 1e154) {
          EXPECT_EQ(second->steps_done(), 50U) << spec.name << " at " << scale;
        }
        EXPECT_EQ(finish(*second), expected) << spec.name << " at " << scale;
      }
    }
  }
}

TEST_F(EvaluatorTest, HostileStates_BeginAnew) {
  using Json = nlohmann::json;
  testing::FakeTrial trial;
  for (int step = 0; step < 20; ++step) trial.Step().Loss(1.0).Units("relu_output_0", {0, 0, 5}, 64);
  const auto open = [&] { return Open("DeadRelu"); };
  {
    auto first = open();
    ASSERT_TRUE(first->Advance(trial, 20).ok());
  }
  const std::string expected = Lines();
  ASSERT_NE(expected.find("DeadRelu"), std::string::npos);
  const std::vector<std::pair<std::function<void(Json&)>, std::size_t>> hostile = {
      {[](Json&) {}, 10},                                                 // unchanged: continues
      {[](Json& layer) { layer["ever"] = Json::array(); }, 0},            // fewer flags than units
      {[](Json& layer) { layer["captures"] = 9223372036854775807; }, 0},  // one more overflows
      {[](Json& layer) { layer["since"] = -1e308; }, 0},                  // not a step number
      {[](Json& layer) { layer["idle"] = Json::object(); }, 0},
      {[](Json& layer) { layer.erase("open"); }, 0},
  };
  for (const auto& [change, begins_at] : hostile) {
    std::filesystem::remove_all(folder_);
    {
      auto first = open();
      ASSERT_TRUE(first->Advance(trial, 10).ok());
      ASSERT_TRUE(first->Checkpoint().ok());
    }
    Json checkpoint = Json::parse(std::ifstream(folder_ / "checkpoint.json"));
    Json state = Json::parse(checkpoint["rules"][0]["state"].get<std::string>());
    ASSERT_EQ(state["layers"].size(), 1U);
    change(state["layers"].begin().value());
    checkpoint["rules"][0]["state"] = state.dump();
    std::ofstream(folder_ / "checkpoint.json") << checkpoint.dump();
    auto again = open();
    EXPECT_EQ(again->steps_done(), begins_at) << state.dump();
    EXPECT_TRUE(again->Advance(trial, 20).ok());
    if (begins_at == 0) {
      EXPECT_EQ(Lines(), expected);
    }
  }
}

TEST(Findings, SurviveJson) {
  Finding finding;
  finding.rule = "ExplodingTensor";
  finding.tensor = "a\nb\x1b[31m";
  finding.evidence = {{"loss", HUGE_VAL}};
  finding.series = {{3, 1.5}};
  const auto parsed = ParseFindingUntrusted(ToJson(finding, "new"));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed.value().first.tensor, finding.tensor);
  EXPECT_EQ(parsed.value().first.evidence, finding.evidence);
  EXPECT_EQ(parsed.value().first.series, finding.series);
  EXPECT_EQ(ParseFindingUntrusted("{\"severity\": 3}").status().code(), StatusCode::kCorruption);
  EXPECT_EQ(ParseFindingUntrusted("[").status().code(), StatusCode::kCorruption);
}

TEST(Choices, NearestNamesInErrors) {
  const auto rule = ParseChoices("ExplodingTensr", ParameterSet::kLuff);
  EXPECT_EQ(rule.status().code(), StatusCode::kNotFound);
  EXPECT_NE(rule.status().message().find("ExplodingTensor"), std::string_view::npos);
  const auto parameter = ParseChoices("DeadRelu:windw=3", ParameterSet::kLuff);
  EXPECT_EQ(parameter.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(parameter.status().message().find("window"), std::string_view::npos);
  EXPECT_FALSE(ParseChoices("DeadRelu:window=x", ParameterSet::kLuff).ok());
  EXPECT_FALSE(ParseChoices("DeadRelu,DeadRelu", ParameterSet::kLuff).ok());
  EXPECT_TRUE(ParseChoices("none", ParameterSet::kLuff).value().empty());
}

TEST(Choices, LaterSaysWhoJudges_NotWhat) {
  const auto names = [](const std::string& text) {
    std::string all;
    for (const Choice& choice : ParseChoices(text, ParameterSet::kLuff).value())
      all += (all.empty() ? "" : ",") + choice.spec->name;
    return all;
  };
  EXPECT_EQ(names("later"), names("all"));
  EXPECT_EQ(names("later,DeadRelu"), "DeadRelu");
  EXPECT_EQ(names("none,later"), "");
  for (const auto& [given, left] :
       {std::pair("later", ""), std::pair("DeadRelu:window=3,later,Overfit", "DeadRelu:window=3,Overfit")}) {
    std::string text = given;
    EXPECT_TRUE(TakeLater(&text));
    EXPECT_EQ(text, left);
  }
  std::string text = "DeadRelu,Later,sooner";
  EXPECT_FALSE(TakeLater(&text));
  EXPECT_EQ(text, "DeadRelu,Later,sooner");
}

TEST(Choices, TextGivesTheSameChoices) {
  const auto choices =
      ParseChoices("ExplodingTensor:tensor_regex=(?:a|b);c:only_nan=true,DeadRelu", ParameterSet::kOriginal)
          .value();
  EXPECT_EQ(choices[0].parameters.at("tensor_regex"), "(?:a|b);c");
  const auto again = ParseChoices(ChoicesToText(choices), ParameterSet::kOriginal).value();
  ASSERT_EQ(again.size(), 2U);
  EXPECT_EQ(again[0].parameters, choices[0].parameters);
  EXPECT_EQ(again[1].parameters, choices[1].parameters);
}

TEST(CaptureConfig, HoldsDefaultsAndNeeds) {
  const auto choices = ParseChoices("all", ParameterSet::kLuff).value();
  const auto config = nlohmann::json::parse(
      CaptureConfigFor(choices, R"({"max_overhead": 0.1, "collections": [{"name": "mine"}]})").value());
  EXPECT_EQ(config["max_overhead"], 0.1);
  std::map<std::string, nlohmann::json> by_name;
  for (const auto& collection : config["collections"]) by_name[collection["name"]] = collection;
  EXPECT_EQ(by_name["weight_changes"]["save"]["TRAIN"]["save_interval"], 8);
  EXPECT_EQ(by_name["weight_changes"]["forms"], nlohmann::json::array({"difference"}));
  EXPECT_EQ(by_name["relu_outputs"]["module_types"], nlohmann::json::array({"ReLU", "ReLU6"}));
  EXPECT_EQ(by_name["gradients"]["save"]["TRAIN"]["save_interval"], 1);
  EXPECT_TRUE(by_name.contains("mine"));
  EXPECT_FALSE(CaptureConfigFor(choices, "[1]").ok());
}

std::map<std::string, nlohmann::json> CollectionsFor(const std::string& rules,
                                                     const std::string& own = "{}") {
  const auto choices = ParseChoices(rules, ParameterSet::kOriginal);
  const auto config = nlohmann::json::parse(CaptureConfigFor(choices.value(), own).value());
  std::map<std::string, nlohmann::json> by_name;
  for (const auto& collection : config["collections"]) by_name[collection["name"]] = collection;
  return by_name;
}

TEST(CaptureConfig, RulesNameBuiltInCollections) {
  for (const format::BuiltInCollection& one : format::kBuiltInCollections) {
    if (one.name == "default") continue;
    for (const char* rule : {"LossNotDecreasing", "TensorVariance", "AllZero", "UnchangedTensor"}) {
      const auto found = CollectionsFor(fmt::format("{}:collection_names={}", rule, one.name));
      for (const auto& [name, collection] : found)
        EXPECT_FALSE(collection["roles"].empty() && collection["include"].empty()) << rule << " " << name;
      EXPECT_TRUE(found.contains(std::string(one.name))) << rule << " " << one.name;
    }
  }
  const auto again = CollectionsFor("TensorVariance:collection_names=losses").at("losses_2");
  EXPECT_EQ(again["include"], nlohmann::json::array({"[Ll]oss_(?!input).*output"}));
  EXPECT_EQ(again["roles"], nlohmann::json::array({"loss"}));
  EXPECT_EQ(again["include_roles"], nlohmann::json::array({"other", "loss", "custom"}));
}

TEST(CaptureConfig, RulesNameCollectionsOfTheUser) {
  const auto own = R"({"collections": [{"name": "mine", "include": ["a"], "forms": ["raw"]}]})";
  const auto found = CollectionsFor("AllZero:collection_names=mine", own);
  EXPECT_EQ(found.at("mine")["include"], nlohmann::json::array({"a"}));
  EXPECT_EQ(found.at("mine")["forms"], nlohmann::json::array({"raw", "summary"}));
  EXPECT_FALSE(found.contains("mine_2"));
}

TEST(CaptureConfig, ACollectionThatNobodyHasDefinedIsNamed) {
  const auto choices = ParseChoices("AllZero:collection_names=wieghts", ParameterSet::kOriginal).value();
  const auto config = CaptureConfigFor(choices);
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(
      std::string(config.status().message()),
      ::testing::AllOf(::testing::HasSubstr("rule AllZero"), ::testing::HasSubstr("\"wieghts\""),
                       ::testing::HasSubstr("tensor_regex"), ::testing::HasSubstr("weights, biases")));
}

}  // namespace
}  // namespace luff::rules::evaluator_test
