// Curves are the same whenever they are asked for, exact when zoomed in, and hide nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "query/testing.h"
#include "server/columns.h"
#include "server/testing.h"

namespace luff::server::columns_test {
namespace {

using query::testing::TempRun;
using query::testing::Writing;

struct House {
  House() : writing(run.path(), 0, 1) {
    writing.Define(0, "loss", 1, format::Role::kLoss);
    writing.Define(1, "weight", 2);
  }
  /// Steps 100 to 149 have no weight, step 300 has one that is infinite.
  void Write(int count) {
    for (int i = 0; i < count; ++i) {
      const std::int64_t step = writing.global_step;
      writing.AddScalar(0, step == 250 ? std::nan("") : 1000.0 - static_cast<double>(step));
      const float values[] = {step == 300 ? std::numeric_limits<float>::infinity() : static_cast<float>(step),
                              0};
      if (step < 100 || step >= 150) writing.AddSummary(1, values);
      writing.Step();
    }
  }
  PayloadReader Ask(CurveQuestion question) {
    auto trial = query::Trial::Open(run.path());
    EXPECT_TRUE(trial.ok());
    Payload payload;
    const Status added = AddCurve(**trial, question, &payload).status();
    EXPECT_TRUE(added.ok()) << added.ToString();
    return PayloadReader(payload.Bytes());
  }
  TempRun run;
  Writing writing;
};

TEST(Columns, MeansAreThoseOfEachBucket) {
  House house;
  house.Write(400);
  auto trial = query::Trial::Open(house.run.path()).value();
  for (const std::int64_t bucket : {1, 16, 512}) {
    const auto columns = static_cast<std::size_t>((399 / bucket) + 1);
    const auto means = MeansOf(*trial, 1, Statistic::kL2, query::Mode::kTrain, bucket, columns).value();
    ASSERT_EQ(means.size(), columns);
    for (std::size_t column = 0; column < columns; ++column) {
      double sum = 0;
      int count = 0;
      for (std::int64_t step = static_cast<std::int64_t>(column) * bucket;
           step < std::min<std::int64_t>(400, static_cast<std::int64_t>(column + 1) * bucket); ++step) {
        if (step >= 100 && step < 150) continue;
        sum += step == 300 ? 0 : static_cast<double>(step);  // of the finite element
        ++count;
      }
      if (count == 0)
        EXPECT_TRUE(std::isnan(means[column])) << column;
      else
        EXPECT_NEAR(means[column], sum / count, 1e-9) << bucket << " " << column;
    }
  }
  const auto none = MeansOf(*trial, 1, Statistic::kUpdateRatio, query::Mode::kTrain, 16, 4).value();
  EXPECT_TRUE(std::isnan(none[0]));
}

TEST(Columns, KeepExtremesAndGaps) {
  House house;
  house.Write(1000);
  const PayloadReader curve = house.Ask({.tensor = 1, .points = 64});
  EXPECT_EQ(curve.Text("1.steps"), "16");
  EXPECT_EQ(curve.Text("1.exact"), "0");
  EXPECT_EQ(curve.Text("1.mode"), "TRAIN");
  const auto step = curve.Get<std::int64_t>("1.step");
  const auto last = curve.Get<std::int64_t>("1.last");
  const auto lo = curve.Get<double>("1.lo");
  const auto hi = curve.Get<double>("1.hi");
  const auto mean = curve.Get<double>("1.mean");
  const auto flags = curve.Get<std::uint8_t>("1.flags");
  EXPECT_LE(step.size(), 64U);
  for (std::size_t i = 0; i < step.size(); ++i) {
    EXPECT_TRUE(step[i] < 100 || step[i] >= 150) << step[i];
    const bool bad = step[i] <= 300 && 300 <= last[i];
    EXPECT_EQ(flags[i] & 1, bad ? 1 : 0);
    if (bad) continue;
    EXPECT_EQ(lo[i], static_cast<double>(step[i]));
    EXPECT_EQ(hi[i], static_cast<double>(last[i]));
    EXPECT_GE(mean[i], lo[i]);
    EXPECT_LE(mean[i], hi[i]);
  }
}

TEST(Columns, AreExactWhenZoomedIn) {
  House house;
  house.Write(1000);
  const PayloadReader curve = house.Ask({.tensor = 0, .from = 240, .to = 260, .points = 32});
  EXPECT_EQ(curve.Text("0.exact"), "1");
  const auto step = curve.Get<std::int64_t>("0.step");
  const auto mean = curve.Get<double>("0.mean");
  ASSERT_EQ(step.size(), 21U);
  for (std::size_t i = 0; i < step.size(); ++i) {
    EXPECT_EQ(step[i], 240 + static_cast<std::int64_t>(i));
    if (step[i] == 250) {
      EXPECT_TRUE(std::isnan(mean[i]));
      EXPECT_EQ(curve.Get<std::uint8_t>("0.flags")[i], 1);
    } else {
      EXPECT_EQ(mean[i], 1000.0 - static_cast<double>(step[i]));
    }
  }
}

TEST(Columns, DoNotChangeWhileTheRunGrows) {
  House house;
  house.Write(700);
  const CurveQuestion question{.tensor = 1, .from = 0, .to = 511, .points = 100};
  const PayloadReader before = house.Ask(question);
  house.Write(3000);
  const PayloadReader after = house.Ask(question);
  EXPECT_EQ(before.Get<double>("1.mean"), after.Get<double>("1.mean"));
  EXPECT_EQ(before.Get<std::int64_t>("1.step"), after.Get<std::int64_t>("1.step"));
}

TEST(Columns, ShowTheMeanOfEachEvaluationOfALoss) {
  House house;
  for (int i = 0; i < 12; ++i) {
    house.writing.AddScalar(0, i);
    house.writing.Step(i % 4 == 3 || i % 4 == 2 ? format::Mode::kEval : format::Mode::kTrain, i / 4);
  }
  const PayloadReader curve = house.Ask({.tensor = 0, .mode = query::Mode::kEval});
  EXPECT_EQ(curve.Get<double>("0.mean"), (std::vector<double>{2.5, 6.5, 10.5}));
  EXPECT_EQ(curve.Get<std::int64_t>("0.step"), (std::vector<std::int64_t>{3, 7, 11}));
}

TEST(Columns, RefuseWhatHasNoAnswer) {
  House house;
  house.Write(10);
  auto trial = query::Trial::Open(house.run.path());
  ASSERT_TRUE(trial.ok());
  Payload payload;
  EXPECT_EQ(AddCurve(**trial, {.tensor = 9}, &payload).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(AddCurve(**trial, {.tensor = 0, .points = 0}, &payload).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(AddCurve(**trial, {.tensor = 0, .from = 5, .to = 4}, &payload).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(AddCurve(**trial, {.tensor = 0, .worker = 7}, &payload).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(AddCurve(**trial, {.tensor = 0, .from = 500}, &payload).ok());  // nothing there: an empty curve
}

}  // namespace
}  // namespace luff::server::columns_test
