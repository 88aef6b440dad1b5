#include "luff/base/status.h"

#include <gtest/gtest.h>

#include "luff/base/result.h"

namespace luff::status_test {
namespace {

Result<int> Half(int x) {
  if (x % 2 != 0) return InvalidArgument("3 is odd");
  return x / 2;
}

Result<int> Quarter(int x) {
  LUFF_ASSIGN_OR_RETURN(int h, Half(x));
  LUFF_ASSIGN_OR_RETURN(int q, Half(h));
  return q;
}

TEST(StatusTest, OkIsOnePointerAndSaysOk) {
  EXPECT_EQ(sizeof(Status), sizeof(void*));
  EXPECT_TRUE(Status::Ok().ok());
  EXPECT_EQ(Status::Ok().ToString(), "ok");
}

TEST(StatusTest, ContextKeepsTheCode) {
  Status s = Corruption("bad tail").WithContext("opening segment 3");
  EXPECT_EQ(s.code(), StatusCode::kCorruption);
  EXPECT_EQ(s.ToString(), "corruption: opening segment 3: bad tail");
}

TEST(ResultTest, MacroPropagatesTheFirstError) {
  EXPECT_EQ(Quarter(8).value(), 2);
  EXPECT_EQ(Quarter(6).status().message(), "3 is odd");
  EXPECT_FALSE(Result<int>(Status::Ok()).ok());
}

}  // namespace
}  // namespace luff::status_test
