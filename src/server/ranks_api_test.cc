// What ranks did beside each other, read back from the bytes of the answer.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "query/testing.h"
#include "server/ranks_api.h"
#include "server/testing.h"

namespace luff::server::ranks_api_test {
namespace {

using query::testing::TempRun;
using query::testing::Writing;

struct House {
  explicit House(std::uint32_t ranks) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      auto writing = std::make_unique<Writing>(run.path(), rank, ranks);
      writing->Define(0, "loss", 1, format::Role::kLoss);
      writing->Define(1, "w", 2, format::Role::kWeight);
      writing->Define(2, "gradient/w", 2, format::Role::kGradient);
      workers.push_back(std::move(writing));
    }
  }
  /// Rank 1 is slow at step 5, and its weight differs from step 7 on.
  void Write(int steps) {
    for (int i = 0; i < steps; ++i) {
      for (std::size_t rank = 0; rank < workers.size(); ++rank) {
        Writing& writing = *workers[rank];
        const auto drift = rank == 1 && i >= 7 ? 1.5F : 1.0F;
        const float weight[] = {3 * drift, 4 * drift};
        const float gradient[] = {static_cast<float>(rank + 1), 0};
        writing.AddSummary(1, weight);
        writing.AddSummary(2, gradient);
        writing.AddScalar(0, rank == 0 && i == 9 ? std::nan("") : 1.0);
        format::FormRow hash{};
        hash.tensor = 1;
        hash.form = static_cast<std::uint16_t>(format::Form::kHash);
        hash.values[0] = drift;
        writing.batch.forms.push_back(hash);
        writing.Step(format::Mode::kTrain, -1, rank == 1 && i == 5 ? 3'000'000'000 : 1'000'000'000);
      }
    }
  }
  PayloadReader Ask(const RanksQuestion& question) {
    const auto trial = query::Trial::Open(run.path());
    EXPECT_TRUE(trial.ok());
    Payload payload;
    const Status added = AddRanks(**trial, question, &payload);
    EXPECT_TRUE(added.ok()) << added.ToString();
    return PayloadReader(payload.Bytes());
  }
  TempRun run;
  std::vector<std::unique_ptr<Writing>> workers;
};

TEST(Ranks, NameTheSlowOneAndTheOneThatDrifts) {
  House house(3);
  house.Write(10);
  const PayloadReader answer = house.Ask({});
  EXPECT_EQ(answer.Get<std::int64_t>("rank"), (std::vector<std::int64_t>{0, 1, 2}));
  ASSERT_EQ(answer.Get<std::int64_t>("step").size(), 10U);
  const auto duration = answer.Get<double>("duration_s");
  EXPECT_EQ(duration[5], 1);
  EXPECT_EQ(duration[10 + 5], 3);
  const auto distance = answer.Get<double>("parameters.distance");
  const auto tensor = answer.Get<std::int64_t>("parameters.tensor");
  EXPECT_EQ(distance[10 + 6], 0);
  EXPECT_DOUBLE_EQ(distance[10 + 7], 0.5);
  EXPECT_EQ(distance[7], 0);
  EXPECT_EQ(tensor[10 + 7], 1);
  const auto gradients = answer.Get<double>("gradients.distance");  // 1, 2 and 3
  EXPECT_DOUBLE_EQ(gradients[0], 0.5);
  EXPECT_DOUBLE_EQ(gradients[10], 0);
  const auto losses = answer.Get<double>("losses.distance");
  EXPECT_EQ(losses[8], 0);
  EXPECT_EQ(losses[9], std::numeric_limits<double>::infinity());
  const auto hashes = answer.Get<double>("hashes");
  EXPECT_EQ(hashes[6], 0);
  EXPECT_EQ(hashes[10 + 7], 1);
  EXPECT_EQ(hashes[7], 0);
}

TEST(Ranks, OfTwoThatDifferNeitherIsRight) {
  House house(2);
  house.Write(8);
  const auto hashes = house.Ask({}).Get<double>("hashes");
  EXPECT_EQ(hashes[7], 1);
  EXPECT_EQ(hashes[8 + 7], 1);
  EXPECT_EQ(hashes[6], 0);
}

TEST(Ranks, BucketsKeepTheLongestStep) {
  House house(2);
  house.Write(32);
  const PayloadReader answer = house.Ask({.points = 8});
  EXPECT_EQ(answer.Text("steps"), "4");
  EXPECT_EQ(answer.Get<std::int64_t>("last"), (std::vector<std::int64_t>{3, 7, 11, 15, 19, 23, 27, 31}));
  EXPECT_EQ(answer.Get<double>("duration_s")[8 + 1], 3);
  EXPECT_EQ(house.Ask({.from = 4, .to = 6}).Get<std::int64_t>("step"), (std::vector<std::int64_t>{4, 5, 6}));
}

TEST(Ranks, OfOneProcessAreNotCompared) {
  House house(1);
  house.Write(5);
  const PayloadReader answer = house.Ask({});
  EXPECT_EQ(answer.Get<double>("duration_s"), (std::vector<double>{1, 1, 1, 1, 1}));
  for (const double distance : answer.Get<double>("parameters.distance")) EXPECT_TRUE(std::isnan(distance));
}

}  // namespace
}  // namespace luff::server::ranks_api_test
