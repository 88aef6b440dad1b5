#include "device/driver.h"

#include <gtest/gtest.h>

#include <cstring>

#include "device/testing/loaded_double.h"

namespace luff::device::driver_test {
namespace {

using testing::BeginDouble;
using testing::Faults;

// Runs first, by its name: later tests have loaded the double, which nothing unloads.
TEST(ADriver, IsNotLoaded) {
  const FoundDriver found = FindDriver();
  EXPECT_EQ(found.driver, nullptr);
  EXPECT_EQ(found.why, "");
  EXPECT_EQ(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), nullptr);
}

TEST(Driver, IsFoundOnceLoaded) {
  BeginDouble({});
  const FoundDriver found = FindDriver();
  ASSERT_NE(found.driver, nullptr) << found.why;
  int version = 0;
  EXPECT_EQ(found.driver->DriverGetVersion(&version), kSuccess);
  EXPECT_EQ(version, 12040);
  EXPECT_EQ(found.driver->NameOf(700), "CUDA_ERROR_ILLEGAL_ADDRESS (700)");
  EXPECT_NE(found.driver->CtxGetId, nullptr);  // asked for as of the interface that has it
}

TEST(Driver, EachFunctionMayBeMissing) {
  for (const char* name : {"cuEventQuery", "cuMemPoolCreate", "cuLaunchKernel", "cuDriverGetVersion",
                           "cuThreadExchangeStreamCaptureMode"}) {
    Faults faults;
    std::strncpy(faults.missing, name, sizeof faults.missing - 1);
    BeginDouble(faults);
    const FoundDriver found = FindDriver();
    EXPECT_EQ(found.driver, nullptr) << name;
    EXPECT_EQ(found.why, "the driver lacks " + std::string(name) + ": update the driver");
  }
}

TEST(Driver, OlderOnesDoNotNumberContexts) {
  Faults faults;
  std::strncpy(faults.missing, "cuCtxGetId", sizeof faults.missing - 1);
  BeginDouble(faults);
  const FoundDriver found = FindDriver();
  ASSERT_NE(found.driver, nullptr) << found.why;
  EXPECT_EQ(found.driver->Check({nullptr, 0}), kSuccess);
}

TEST(Driver, OldOnesAreNamed) {
  Faults faults;
  faults.version = 11020;
  BeginDouble(faults);
  const FoundDriver found = FindDriver();
  EXPECT_EQ(found.driver, nullptr);
  EXPECT_EQ(found.why, "the driver supports CUDA 11.2; 11.3 or later is needed: update the driver");
}

TEST(Driver, StickyErrors) {
  for (const Code error : {700, 710, 716, 719, 721, 214}) EXPECT_TRUE(IsSticky(error)) << error;
  for (const Code error : {0, 2, 4, 400, 600, 709}) EXPECT_FALSE(IsSticky(error)) << error;
}

}  // namespace
}  // namespace luff::device::driver_test
