#include "luff/capture/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>

#include "capture/plan.h"

namespace luff::capture::config_test {
namespace {

using format::Form;
using format::Mode;
using format::Role;
using ::testing::HasSubstr;

std::string Error(std::string_view json) {
  Result<Config> config = ParseConfigUntrusted(json);
  return config.ok() ? "" : std::string(config.status().message());
}

const CollectionConfig* Find(const Config& config, std::string_view name) {
  for (const CollectionConfig& c : config.collections) {
    if (c.name == name) return &c;
  }
  return nullptr;
}

std::vector<std::string> CollectionsOf(std::string_view json, std::string_view name, Role role,
                                       std::string_view type = "") {
  Result<Config> config = ParseConfigUntrusted(json);
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  Result<Plan> plan = Plan::Make(*config);
  EXPECT_TRUE(plan.ok());
  std::vector<std::string> out;
  const std::uint64_t mask = plan->Match(name, role, type);
  for (std::size_t i = 0; i < config->collections.size(); ++i) {
    if ((mask >> i & 1U) != 0) out.push_back(config->collections[i].name);
  }
  return out;
}

TEST(ConfigTest, WithoutOptionsSummariesAtEveryStep) {
  Result<Config> config = ParseConfigUntrusted("");
  ASSERT_TRUE(config.ok());
  const CollectionConfig* weights = Find(*config, "weights");
  ASSERT_NE(weights, nullptr);
  EXPECT_EQ(weights->forms, static_cast<std::uint32_t>(Form::kSummary));
  EXPECT_EQ(weights->save[0].save_interval, 1);
  EXPECT_EQ(Find(*config, "losses")->forms,
            static_cast<std::uint32_t>(Form::kSummary) | static_cast<std::uint32_t>(Form::kRaw));
  EXPECT_EQ(Find(*config, "all"), nullptr);
}

TEST(ConfigTest, AListedCollectionReplacesTheDefaultOfItsName) {
  Result<Config> config = ParseConfigUntrusted(R"({"collections":[{"name":"weights"}],"save_interval":10})");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(Find(*config, "weights")->forms, 3U);
  EXPECT_EQ(Find(*config, "weights")->save[0].save_interval, 10);
  EXPECT_EQ(Find(*config, "gradients")->forms, 1U);
}

TEST(ConfigTest, MissingModesKeepTheRunsDefault) {
  Result<Config> config = ParseConfigUntrusted(
      R"({"save_interval":7,"collections":[{"name":"x","include":["x"],"save":{"EVAL":{"save_interval":2},"TRAIN":null}}]})");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(Find(*config, "x")->save[0].save_interval, 7);
  EXPECT_EQ(Find(*config, "x")->save[1].save_interval, 2);
}

TEST(ConfigTest, MistakesNameKeyPlaceAndRemedy) {
  EXPECT_THAT(Error(R"({"collections":[{"name":"w","inclde":["fc"]}]})"),
              HasSubstr("unknown key \"inclde\" in collection \"w\"; did you mean \"include\"?"));
  EXPECT_THAT(Error(R"({"zzz":1})"),
              HasSubstr("unknown key \"zzz\" in the configuration; known: collections,"));
  EXPECT_THAT(Error(R"({"colections":[]})"), HasSubstr("did you mean \"collections\""));
  EXPECT_THAT(Error(R"({"collections":[{"name":"x","include":["a"],"froms":[]}]})"),
              HasSubstr("in collection \"x\"; did you mean \"forms\""));
  EXPECT_THAT(Error(R"({"collections":[{"name":"x","include":["a("]}]})"),
              HasSubstr("collection \"x\", \"include\""));
  EXPECT_THAT(Error(R"({"collections":[{"name":"x"}]})"), HasSubstr("selects nothing"));
  EXPECT_THAT(Error(R"({"collections":[{"include":["x"]}]})"), HasSubstr("collections[0]: no name"));
  EXPECT_THAT(Error(R"({"collections":[{"name":"x","include":["a"],"forms":["histgram"]}]})"),
              HasSubstr("did you mean \"histogram\""));
  EXPECT_THAT(Error(R"({"save":{"TRIAN":{}}})"), HasSubstr("did you mean \"TRAIN\""));
  EXPECT_THAT(Error(R"({"save_interval":0})"), HasSubstr("a whole number from 1"));
  EXPECT_THAT(Error("{"), HasSubstr("mistake at byte"));
  EXPECT_THAT(Error("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(Error(R"({"collections":[{"name":"x","include":["a"]},{"name":"x","include":["a"]}]})"),
              HasSubstr("two collections"));
  EXPECT_THAT(Error(R"({"collections":[{"name":"x","include":["a"],"keep":"some"}]})"),
              HasSubstr(R"({"last": K})"));
}

TEST(ConfigTest, DescriptionReadsBackAsTheSame) {
  Result<Config> config = ParseConfigUntrusted(
      R"({"collections":[{"name":"acts","module_types":["ReLU"],"roles":["output"],"forms":["units","raw"],
          "unit_axis":"last","keep":{"last":3},"policy":"block","max_bytes":100}]})");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  const std::string text = DescribeCollections(*config);
  Result<Config> again = ParseConfigUntrusted(R"({"defaults":false,"collections":)" + text + "}");
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(DescribeCollections(*again), text);
}

TEST(PlanTest, TheOriginalsExpressions) {
  using ::testing::ElementsAre;
  EXPECT_THAT(CollectionsOf("", "ResNet_conv1.weight", Role::kWeight), ElementsAre("weights"));
  EXPECT_THAT(CollectionsOf("", "gradient/ResNet_conv1.weight", Role::kGradient), ElementsAre("gradients"));
  EXPECT_THAT(CollectionsOf("", "Net_fc.bias", Role::kBias), ElementsAre("biases"));
  EXPECT_THAT(CollectionsOf("", "CrossEntropyLoss_output_0", Role::kLoss), ElementsAre("losses"));
  EXPECT_THAT(CollectionsOf("", "CrossEntropyLoss_input_0", Role::kLossInput), ElementsAre());
  EXPECT_THAT(CollectionsOf("", "weight_norm_output_0", Role::kOutput), ElementsAre());
  EXPECT_THAT(CollectionsOf(R"({"save_all":true})", "Net_relu_output_0", Role::kOutput), ElementsAre("all"));
  EXPECT_THAT(CollectionsOf(R"({"include_regex":["relu"]})", "Net_relu_output_0", Role::kOutput),
              ElementsAre("default"));
}

TEST(PlanTest, NamesExclusionsRolesAndModuleTypes) {
  const char* json = R"({"defaults":false,"collections":[
    {"name":"named","tensor_names":["b","a"]},
    {"name":"relu","roles":["output"],"module_types":["ReLU"]},
    {"name":"most","include":["."],"exclude":["bias$"]}]})";
  using ::testing::ElementsAre;
  EXPECT_THAT(CollectionsOf(json, "a", Role::kWeight), ElementsAre("named", "most"));
  EXPECT_THAT(CollectionsOf(json, "x", Role::kOutput, "ReLU"), ElementsAre("relu", "most"));
  EXPECT_THAT(CollectionsOf(json, "x.bias", Role::kOutput, "Conv2d"), ElementsAre());
}

TEST(PlanTest, AnExpressionMayBeAskedOfSomeRolesOnly) {
  const char* json = R"({"defaults":false,"collections":[
    {"name":"trees","include":["^trees/"],"include_roles":["other","custom"]}]})";
  EXPECT_THAT(CollectionsOf(json, "trees/Node", Role::kOther), ::testing::ElementsAre("trees"));
  EXPECT_THAT(CollectionsOf(json, "trees/Node", Role::kOutput), ::testing::ElementsAre());
  Result<Config> config = ParseConfigUntrusted(json);
  Result<Plan> plan = Plan::Make(*config);
  EXPECT_EQ(plan->PossibleFor(Role::kOutput), 0U);
  EXPECT_NE(plan->PossibleFor(Role::kCustom), 0U);
  const std::string text = DescribeCollections(*config);
  Result<Config> again = ParseConfigUntrusted(R"({"defaults":false,"collections":)" + text + "}");
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(DescribeCollections(*again), text);
  EXPECT_THAT(Error(R"({"collections":[{"name":"x","include":["a"],"include_roles":["outputs"]}]})"),
              HasSubstr("\"output\""));
}

TEST(PlanTest, RolesOnRequestMustBeNamed) {
  using ::testing::ElementsAre;
  const auto possible = [](const char* json) {
    Result<Config> config = ParseConfigUntrusted(json);
    EXPECT_TRUE(config.ok()) << config.status().ToString();
    return Plan::Make(*config)->PossibleFor(Role::kOutputGradient) != 0;
  };
  constexpr const char* kName = "gradient/conv1_output_0";
  for (
      const char* silent :
      {R"({"save_all":true})", R"({"include_regex":["^gradient/"]})",
       R"({"collections":[{"name":"x","module_types":["Conv2d"]},{"name":"y","tensor_names":["conv1_output_0"]}]})",
       R"({"collections":[{"name":"gradients"},{"name":"outputs"}]})"}) {
    EXPECT_FALSE(possible(silent)) << silent;
    EXPECT_THAT(CollectionsOf(silent, kName, Role::kOutputGradient, "Conv2d"), ElementsAre()) << silent;
  }
  for (
      const char* asks :
      {R"({"defaults":false,"collections":[{"name":"output_gradients"}]})",
       R"({"defaults":false,"collections":[{"name":"x","roles":["output_gradient"],"module_types":["Conv2d"]}]})",
       R"({"defaults":false,"collections":[{"name":"x","include":["conv"],"include_roles":["output_gradient"]}]})",
       R"({"defaults":false,"collections":[{"name":"x","tensor_names":["gradient/conv1_output_0"]}]})"}) {
    EXPECT_TRUE(possible(asks)) << asks;
    EXPECT_EQ(CollectionsOf(asks, kName, Role::kOutputGradient, "Conv2d").size(), 1U) << asks;
  }
  EXPECT_TRUE(Plan::RoleSavedIn(Role::kInputGradient, Mode::kEval));  // a saliency map
  EXPECT_FALSE(Plan::RoleSavedIn(Role::kGradient, Mode::kEval));
}

TEST(PlanTest, ARoleIsAskedForOnlyIfSomethingMayMatch) {
  Result<Plan> plan = Plan::Make(*ParseConfigUntrusted(""));
  EXPECT_EQ(plan->PossibleFor(Role::kOutput), 0U);
  EXPECT_NE(plan->PossibleFor(Role::kWeight), 0U);
  Result<Plan> relu = Plan::Make(*ParseConfigUntrusted(R"({"include_regex":["relu"]})"));
  EXPECT_NE(relu->PossibleFor(Role::kOutput), 0U);
}

// smdebug's definition, written independently.
bool Oracle(const SaveMode& save, std::int64_t step) {
  if (step < 0) return false;
  for (std::int64_t s : save.save_steps) {
    if (s == step) return true;
  }
  if (step < save.start_step) return false;
  if (save.end_step && step >= *save.end_step) return false;
  return step % save.save_interval == 0;
}

RC_GTEST_PROP(PlanProperty, ShouldSaveIsTheUnionOfListAndInterval, ()) {
  SaveMode save;
  save.save_interval = *rc::gen::inRange<std::int64_t>(1, 20);
  save.start_step = *rc::gen::inRange<std::int64_t>(0, 30);
  if (*rc::gen::arbitrary<bool>()) save.end_step = *rc::gen::inRange<std::int64_t>(0, 60);
  save.save_steps = *rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, 80));
  std::sort(save.save_steps.begin(), save.save_steps.end());
  for (std::int64_t step = -2; step < 90; ++step) RC_ASSERT(save.ShouldSave(step) == Oracle(save, step));
}

TEST(SaveModeTest, ExamplesOfTheOriginal) {
  SaveMode save;
  save.save_steps = {3, 7};
  EXPECT_TRUE(save.ShouldSave(0));
  EXPECT_TRUE(save.ShouldSave(3));
  EXPECT_FALSE(save.ShouldSave(4));
  EXPECT_TRUE(save.ShouldSave(500));
  SaveMode late;
  late.start_step = 3;
  EXPECT_FALSE(late.ShouldSave(3));
  EXPECT_TRUE(late.ShouldSave(500));
  SaveMode never;
  never.end_step = 0;
  EXPECT_FALSE(never.ShouldSave(0));
}

}  // namespace
}  // namespace luff::capture::config_test
