#include "base/nearest_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace luff {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Nearest(std::string_view name, std::vector<std::string> known) {
  return NearestNames(name, known);
}

TEST(NearestNames, AFewWrongLettersComeFirst_ThenWhatContainsTheName) {
  EXPECT_THAT(Nearest("los", {"eval_loss", "eval_loss.first", "eval_loss.max", "loss"}),
              ElementsAre("loss", "eval_loss", "eval_loss.max"));
  EXPECT_THAT(Nearest("rnus", {"run", "rules", "runs", "show"}), ElementsAre("runs"));
  EXPECT_THAT(Nearest("SEVRITY", {"name", "severity"}), ElementsAre("severity"));
  EXPECT_THAT(Nearest("inclde", {"name", "include_roles", "include"}), ElementsAre("include"));
}

TEST(NearestNames, ABeginningIsNear_HoweverLongTheRest) {
  EXPECT_THAT(Nearest("fc", {"conv.weight", "fc.weight", "gradient/fc.weight"}),
              ElementsAre("fc.weight", "gradient/fc.weight"));
  EXPECT_THAT(Nearest("losses_of_all", {"losses", "weights"}), ElementsAre("losses"));
}

TEST(NearestNames, WhatIsNotNearIsNotNamed) {
  EXPECT_THAT(Nearest("Foo", {"AllZero", "Overfit", "Confusion"}), IsEmpty());
  EXPECT_THAT(Nearest("nosuch", {"live", "act2", "20261126-train"}), IsEmpty());
  EXPECT_THAT(Nearest("", {"a", "loss"}), IsEmpty());
  EXPECT_THAT(Nearest("x", {"y", "xy"}), IsEmpty());
  EXPECT_THAT(Nearest("a", {}), IsEmpty());
}

TEST(NearestNames, TextIsEmptyWhereNothingIsNear) {
  const std::vector<std::string> known = {"warn", "stop"};
  EXPECT_EQ(NearestText("stpo", known), "; nearest: stop");
  EXPECT_EQ(NearestText("halt", known), "");
}

}  // namespace
}  // namespace luff
