// Series and samples as they go through a frame, and what damage does to them.
#include "luff/format/samples.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

namespace luff::format {
namespace {

/// Puts it into a frame and returns its body, aligned as readers have it.
std::vector<std::uint64_t> Body(const auto& put, std::size_t* bytes) {
  FrameBuffer buffer;
  buffer.Reset(1, kFileHeaderBytes);
  buffer.Begin(FrameKind::kSamples, kLooseOrdinal);
  put(&buffer);
  buffer.End();
  FrameView view;
  EXPECT_EQ(ParseFrameInWindowUntrusted(buffer.bytes(), kFileHeaderBytes, kFileHeaderBytes, 1, &view),
            FrameOutcome::kFrame);
  std::vector<std::uint64_t> words(view.body.size() / 8 + 1);
  std::memcpy(words.data(), view.body.data(), view.body.size());
  *bytes = view.body.size();
  return words;
}

SampleBlock Example() {
  SampleBlock block;
  block.first_unix_ns = 1'700'000'000'000'000'000;
  block.mono_ns = {5'000'000'000, 5'500'000'100, 6'000'000'000, 6'000'000'000};
  block.series = {{3, SeriesKind::kCounter, {10, 20, kNoSample, 40}, {}},
                  {1, SeriesKind::kGauge, {-5, kNoSample, kMaxSampleValue, -kMaxSampleValue}, {}}};
  return block;
}

TEST(Samples, GoThroughAFrame) {
  const SampleBlock block = Example();
  std::size_t bytes = 0;
  const auto words = Body([&](FrameBuffer* to) { PutSamples(block, to); }, &bytes);
  const auto body = std::as_bytes(std::span(words)).first(bytes);
  const auto read = ParseSamplesUntrusted(body);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->mono_ns, block.mono_ns);
  EXPECT_EQ(read->unix_ns(1), block.first_unix_ns + 500'000'100);
  ASSERT_EQ(read->series.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read->series[i].id, block.series[i].id);
    EXPECT_EQ(read->series[i].kind, block.series[i].kind);
    EXPECT_EQ(read->series[i].values, block.series[i].values);
    EXPECT_TRUE(read->series[i].maxima.empty());
  }
  for (std::size_t cut = 0; cut < bytes; ++cut)
    EXPECT_FALSE(ParseSamplesUntrusted(body.first(cut)).ok()) << "cut off at byte " << cut;
}

TEST(Samples, ValuesThatFitNowhereBecomeTheNearest) {
  SampleBlock block = Example();
  block.series = {
      {0, SeriesKind::kGauge, {std::numeric_limits<std::int64_t>::max(), kNoSample + 1, 0, 1}, {}}};
  std::size_t bytes = 0;
  const auto words = Body([&](FrameBuffer* to) { PutSamples(block, to); }, &bytes);
  const auto read = ParseSamplesUntrusted(std::as_bytes(std::span(words)).first(bytes));
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->series[0].values, (std::vector<std::int64_t>{kMaxSampleValue, -kMaxSampleValue, 0, 1}));
}

TEST(Samples, SteadySeriesTakeAboutTwoBytesAValue) {
  SampleBlock block;
  block.first_unix_ns = 1;
  std::mt19937_64 random(1);
  for (std::uint32_t s = 0; s < 60; ++s) block.series.push_back({s, SeriesKind::kCounter, {}, {}});
  for (std::int64_t i = 0; i < 120; ++i) {
    block.mono_ns.push_back(i * 500'000'000);
    for (std::uint32_t s = 0; s < 60; ++s)
      block.series[s].values.push_back((i * 5000) + static_cast<std::int64_t>(random() % 4000));
  }
  std::size_t bytes = 0;
  Body([&](FrameBuffer* to) { PutSamples(block, to); }, &bytes);
  EXPECT_LT(bytes, std::size_t{120} * 60 * 5 / 2);
}

TEST(Samples, DamageIsRefused) {
  std::size_t bytes = 0;
  auto words = Body([&](FrameBuffer* to) { PutSamples(Example(), to); }, &bytes);
  const auto broken = [&](auto change) {
    auto copy = words;
    SamplesHead head{};
    std::memcpy(&head, copy.data(), sizeof(head));
    change(&head);
    std::memcpy(copy.data(), &head, sizeof(head));
    return !ParseSamplesUntrusted(std::as_bytes(std::span(copy)).first(bytes)).ok();
  };
  EXPECT_TRUE(broken([](SamplesHead* head) { head->samples = 0; }));
  EXPECT_TRUE(broken([](SamplesHead* head) { head->samples = kMaxSamples + 1; }));
  EXPECT_TRUE(broken([](SamplesHead* head) { head->series = 3; }));
  EXPECT_TRUE(broken([](SamplesHead* head) { head->series = 1; }));
  EXPECT_TRUE(broken([](SamplesHead* head) { head->merged = 0; }));
  EXPECT_TRUE(broken([](SamplesHead* head) { head->flags = 2; }));
  EXPECT_TRUE(broken([](SamplesHead* head) { head->first_mono_ns = -1; }));
  EXPECT_TRUE(broken([](SamplesHead* head) { head->first_unix_ns = std::int64_t{1} << 62; }));
}

TEST(Samples, DefinitionsGoThroughAFrame) {
  std::size_t bytes = 0;
  const auto words = Body(
      [&](FrameBuffer* to) {
        PutSeriesDef({0, SeriesUnit::kBytes, SeriesKind::kCounter, kNoId, "disk.vda.read_bytes"}, to);
        PutSeriesDef({1, SeriesUnit::kShare, SeriesKind::kGauge, 2, ""}, to);
      },
      &bytes);
  auto body = std::as_bytes(std::span(words)).first(bytes);
  const auto defs = ParseSeriesDefsUntrusted(body);
  ASSERT_TRUE(defs.ok()) << defs.status().ToString();
  ASSERT_EQ(defs->size(), 2U);
  EXPECT_EQ((*defs)[0].name, "disk.vda.read_bytes");
  EXPECT_EQ((*defs)[0].unit, SeriesUnit::kBytes);
  EXPECT_EQ((*defs)[1].device, 2U);
  EXPECT_FALSE(ParseSeriesDefsUntrusted(body.first(body.size() - 8)).ok());
}

TEST(Samples, TenBecomeOneWithMeanAndMaximum) {
  std::vector<SampleBlock> blocks;
  for (std::int64_t b = 0; b < 4; ++b) {
    SampleBlock block;
    block.first_unix_ns = 1'000'000'000'000 + b * 5'000;
    for (std::int64_t i = 0; i < 5; ++i) block.mono_ns.push_back(b * 5'000 + i * 1'000);
    block.series = {{0, SeriesKind::kCounter, {}, {}}, {1, SeriesKind::kGauge, {}, {}}};
    for (std::int64_t i = 0; i < 5; ++i) {
      block.series[0].values.push_back(b * 5 + i);
      block.series[1].values.push_back(b == 0 && i == 2 ? kNoSample : b * 5 + i);
    }
    blocks.push_back(block);
  }
  const auto once = MergeSamples(blocks, 10);
  ASSERT_EQ(once.size(), 1U);
  EXPECT_EQ(once[0].merged, 10U);
  EXPECT_EQ(once[0].mono_ns, (std::vector<std::int64_t>{9'000, 19'000}));
  EXPECT_EQ(once[0].unix_ns(1), 1'000'000'000'000 + 19'000);
  EXPECT_EQ(once[0].series[0].values, (std::vector<std::int64_t>{9, 19}));
  EXPECT_EQ(once[0].series[1].values, (std::vector<std::int64_t>{4, 14}));  // 43 / 9, 145 / 10
  EXPECT_EQ(once[0].series[1].maxima, (std::vector<std::int64_t>{9, 19}));
  const auto twice = MergeSamples(once, 10);
  ASSERT_EQ(twice.size(), 1U);
  EXPECT_EQ(twice[0].merged, 20U);
  EXPECT_EQ(twice[0].series[1].maxima, (std::vector<std::int64_t>{19}));

  blocks[2].first_unix_ns += 3'600'000'000'000;  // somebody sets the clock
  blocks[3].first_unix_ns += 3'600'000'000'000;
  EXPECT_EQ(MergeSamples(blocks, 10).size(), 2U);
}

TEST(Samples, StoredUnitsBecomeBaseUnits) {
  EXPECT_DOUBLE_EQ(SampleValue(SeriesUnit::kNanoseconds, 1'500'000'000), 1.5);
  EXPECT_DOUBLE_EQ(SampleValue(SeriesUnit::kPower, 250'000), 250);
  EXPECT_DOUBLE_EQ(SampleValue(SeriesUnit::kFrequency, 1'410'000), 1.41e9);
  EXPECT_DOUBLE_EQ(SampleValue(SeriesUnit::kBytes, 7), 7);
  EXPECT_TRUE(std::isnan(SampleValue(SeriesUnit::kShare, kNoSample)));
}

}  // namespace
}  // namespace luff::format
