// Norms of all gradients equal those worked out from the values.
#include "server/norms_api.h"

#include <gtest/gtest.h>

#include <cmath>

#include "query/testing.h"
#include "server/testing.h"

namespace luff::server::norms_api_test {
namespace {

using query::testing::TempRun;
using query::testing::Writing;

float GradientAt(int id, int step) {
  return static_cast<float>(id + 1) * (1.0F + static_cast<float>(step % 7));
}

PayloadReader Ask(const std::string& path, std::size_t points) {
  auto trial = query::Trial::Open(path).value();
  Overview overview(query::Mode::kTrain);
  while (!overview.Read(*trial, 1000).value()) continue;
  Payload payload;
  AddNorms(overview, *trial, points, &payload);
  return PayloadReader(payload.Bytes());
}

struct House {
  explicit House(int steps) {
    for (std::uint32_t id = 0; id < 3; ++id)
      writing.Define(id, "gradient/w" + std::to_string(id), 2, format::Role::kGradient);
    writing.Define(3, "w0", 2, format::Role::kWeight);
    for (int step = 0; step < steps; ++step) {
      for (int id = 0; id < 3; ++id) {
        const float values[] = {GradientAt(id, step), 0};
        writing.AddSummary(static_cast<std::uint32_t>(id), values);
      }
      const float weight[] = {1000, 1000};
      writing.AddSummary(3, weight);  // is no gradient
      writing.Step();
    }
  }
  TempRun run;
  Writing writing{run.path(), 0, 1};
};

double NormAt(int step) {
  double squares = 0;
  for (int id = 0; id < 3; ++id) squares += std::pow(static_cast<double>(GradientAt(id, step)), 2);
  return std::sqrt(squares);
}

TEST(Norms, AreThoseOfAllGradientsAtEachStep) {
  House house(20);
  const PayloadReader norms = Ask(house.run.path(), 256);
  const auto lo = norms.Get<double>("gradient.lo");
  EXPECT_EQ(norms.Text("steps"), "1");
  ASSERT_EQ(lo.size(), 20U);
  for (int step = 0; step < 20; ++step)
    EXPECT_NEAR(lo[static_cast<std::size_t>(step)], NormAt(step), 1e-5) << step;
  EXPECT_EQ(lo, norms.Get<double>("gradient.hi"));
  EXPECT_TRUE(std::isnan(norms.Get<double>("update.lo")[0]));  // no differences were recorded
}

TEST(Norms, OfSeveralStepsLieWithinTheirBounds) {
  House house(40);
  const PayloadReader norms = Ask(house.run.path(), 10);
  EXPECT_EQ(norms.Text("steps"), "4");
  const auto lo = norms.Get<double>("gradient.lo");
  const auto hi = norms.Get<double>("gradient.hi");
  ASSERT_EQ(lo.size(), 10U);
  for (int step = 0; step < 40; ++step) {
    EXPECT_LE(lo[static_cast<std::size_t>(step / 4)], NormAt(step) + 1e-5);
    EXPECT_GE(hi[static_cast<std::size_t>(step / 4)], NormAt(step) - 1e-5);
  }
}

TEST(Norms, ARunWithoutGradientsHasNone) {
  const TempRun run;
  Writing writing(run.path(), 0, 1);
  writing.Define(0, "w", 2, format::Role::kWeight);
  const float values[] = {1, 2};
  writing.AddSummary(0, values);
  writing.Step();
  const PayloadReader norms = Ask(run.path(), 256);
  ASSERT_EQ(norms.Get<double>("gradient.lo").size(), 1U);
  EXPECT_TRUE(std::isnan(norms.Get<double>("gradient.lo")[0]));
}

}  // namespace
}  // namespace luff::server::norms_api_test
