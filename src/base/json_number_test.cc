#include "base/json_number.h"

#include <cstdint>
#include <limits>
#include <string>

#include <gtest/gtest.h>

namespace luff {
namespace {

using Json = nlohmann::json;

TEST(JsonNumber, IsWholeAndFits) {
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(WholeNumber<std::uint64_t>(Json(kMost)), kMost);
  EXPECT_EQ(WholeNumber<std::int64_t>(Json(-7)), -7);
  EXPECT_EQ(WholeNumber<std::uint32_t>(Json(7)), 7u);
  for (const char* text :
       {"1e300", "17000700000000000000000", "1.5", "-1", "4294967296", "true", "\"7\"", "null", "[7]"}) {
    EXPECT_THROW((void)WholeNumber<std::uint32_t>(Json::parse(text)), std::invalid_argument) << text;
  }
  EXPECT_THROW((void)WholeNumber<std::int64_t>(Json(kMost)), std::invalid_argument);
}

TEST(JsonNumber, OfAMemberNamesTheKey) {
  const Json json = Json::parse(R"({"step": 1e31, "worker": 3})");
  EXPECT_EQ(WholeNumber<std::uint32_t>(json, "worker", 0), 3u);
  EXPECT_EQ(WholeNumber<std::int64_t>(json, "none", 5), 5);
  try {
    (void)WholeNumber<std::int64_t>(json, "step", 0);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string(error.what()), "step: found a number, expected a whole number that fits");
  }
}

}  // namespace
}  // namespace luff
