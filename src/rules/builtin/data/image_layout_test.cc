#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "rules/testing/recorder.h"

namespace luff::rules::image_layout_test {
namespace {

using testing::FakeTrial;
using testing::FindingsOf;

constexpr int kChannels = 3, kHeight = 16, kWidth = 24;

enum class Kind { kPictures, kGrey, kNoise, kStripes, kPeriods };

// Eight images a step, in memory with channels first or last, under a shape that says either.
FakeTrial Images(Kind kind, bool memory_first, bool shape_first, int steps = 20) {
  FakeTrial trial;
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0, 1);
  for (int step = 0; step < steps; ++step) {
    std::vector<double> values(8UL * kChannels * kHeight * kWidth);
    for (int n = 0; n < 8; ++n) {
      const double a = normal(random), b = normal(random), shift = normal(random);
      for (int c = 0; c < kChannels; ++c) {
        for (int y = 0; y < kHeight; ++y) {
          for (int x = 0; x < kWidth; ++x) {
            const int at = memory_first ? (c * kHeight + y) * kWidth + x : (y * kWidth + x) * kChannels + c;
            double value = std::sin(0.3 * a * x + 0.4 * b * y + shift + (kind == Kind::kGrey ? 0 : 1.3 * c));
            if (kind == Kind::kNoise) value = normal(random);
            if (kind == Kind::kStripes) value = (y / 2) % 2 + 0.01 * normal(random);
            if (kind == Kind::kPeriods) value = y % kChannels + 0.01 * normal(random);
            values[static_cast<std::size_t>(n * kChannels * kHeight * kWidth + at)] = value;
          }
        }
      }
    }
    trial.Step();
    if (shape_first)
      trial.Sample("sample/Net_input_0", {8, kChannels, kHeight, kWidth}, values);
    else
      trial.Sample("sample/Net_input_0", {8, kHeight, kWidth, kChannels}, values);
  }
  return trial;
}

TEST(ImageLayout, ReshapedImages_AreNamed_WithTheTranspositionThatMends) {
  for (const Kind kind : {Kind::kPictures, Kind::kGrey}) {
    for (const bool shape_first : {true, false}) {
      const auto findings =
          FindingsOf(Images(kind, !shape_first, shape_first), "ImageLayout", ParameterSet::kLuff);
      ASSERT_EQ(findings.size(), 1U);
      EXPECT_EQ(findings[0].cause, shape_first ? "reshaped_to_planes" : "reshaped_to_lines");
      EXPECT_EQ(findings[0].since_step, 0);
      EXPECT_NE(findings[0].remedy.find(shape_first ? "0, 3, 1, 2" : "0, 2, 3, 1"), std::string::npos);
    }
  }
}

TEST(ImageLayout, ImagesAsTheirShapeSays_Noise_Stripes_AndFewImagesAreSilent) {
  for (const Kind kind : {Kind::kPictures, Kind::kGrey, Kind::kNoise, Kind::kStripes, Kind::kPeriods}) {
    for (const bool first : {true, false})
      EXPECT_TRUE(FindingsOf(Images(kind, first, first), "ImageLayout", ParameterSet::kLuff).empty());
  }
  EXPECT_TRUE(FindingsOf(Images(Kind::kNoise, true, false), "ImageLayout", ParameterSet::kLuff).empty());
  EXPECT_TRUE(
      FindingsOf(Images(Kind::kPictures, false, true, 7), "ImageLayout", ParameterSet::kLuff).empty());
}

}  // namespace
}  // namespace luff::rules::image_layout_test
