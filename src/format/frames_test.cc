#include "luff/format/frames.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>

namespace luff::format::frames_test {
namespace {

SummaryRow Row(std::uint32_t tensor, double sum) {
  SummaryRow row{};
  row.tensor = tensor;
  row.dtype = static_cast<std::uint8_t>(DType::kFloat32);
  row.steps = 1;
  row.count = 4;
  row.sum = sum;
  return row;
}

TEST(FrameTest, TwoFramesReadBackInOrder) {
  FrameBuffer buffer;
  buffer.Reset(3, 4096);
  const SummaryRow row = Row(7, 1.5);
  buffer.Begin(FrameKind::kSummaryRows, 11);
  buffer.PutRows(std::span(&row, 1));
  buffer.End();
  buffer.Begin(FrameKind::kEventJson, 11);
  buffer.Put("{}", 2);
  buffer.End();

  FrameView view;
  ASSERT_EQ(ParseFrameInWindowUntrusted(buffer.bytes(), 4096, 4096, 3, &view), FrameOutcome::kFrame);
  EXPECT_EQ(view.kind, FrameKind::kSummaryRows);
  EXPECT_EQ(view.ordinal, 11U);
  auto rows = ParseSummaryRowsUntrusted(view.body);
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  ASSERT_EQ(rows->size(), 1U);
  EXPECT_EQ((*rows)[0].sum, 1.5);
  ASSERT_EQ(ParseFrameInWindowUntrusted(buffer.bytes(), 4096, view.next_offset, 3, &view),
            FrameOutcome::kFrame);
  EXPECT_EQ(view.kind, FrameKind::kEventJson);
  EXPECT_EQ(view.next_offset, buffer.next_offset());
}

TEST(FrameTest, AFrameIsValidOnlyAtItsPlace) {
  FrameBuffer buffer;
  buffer.Reset(3, 4096);
  buffer.Begin(FrameKind::kEventJson, 0);
  buffer.Put("{}", 2);
  buffer.End();
  FrameView view;
  EXPECT_EQ(ParseFrameInWindowUntrusted(buffer.bytes(), 4104, 4104, 3, &view), FrameOutcome::kBad);
  EXPECT_EQ(ParseFrameInWindowUntrusted(buffer.bytes(), 4096, 4096, 4, &view), FrameOutcome::kBad);
}

TEST(FrameTest, EveryTruncationIsIncompleteAndEveryFlippedBitIsBad) {
  FrameBuffer buffer;
  buffer.Reset(1, 0);
  const SummaryRow row = Row(1, -2);
  buffer.Begin(FrameKind::kSummaryRows, 5);
  buffer.PutRows(std::span(&row, 1));
  buffer.End();
  FrameView view;
  for (std::size_t n = 0; n < buffer.bytes().size(); ++n) {
    EXPECT_EQ(ParseFrameUntrusted(buffer.bytes().first(n), 0, 1, &view), FrameOutcome::kIncomplete) << n;
  }
  std::vector<std::byte> copy(buffer.bytes().begin(), buffer.bytes().end());
  for (std::size_t bit = 0; bit < copy.size() * 8; ++bit) {
    copy[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_NE(ParseFrameUntrusted(copy, 0, 1, &view), FrameOutcome::kFrame) << bit;
    copy[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
}

TEST(FrameTest, DefinitionsKeepTheirTexts) {
  FrameBuffer buffer;
  buffer.Reset(1, 0);
  const std::uint32_t collections[] = {2, 5};
  buffer.Begin(FrameKind::kTensorDefs, kLooseOrdinal);
  PutTensorDef({4, Role::kGradient, "gradient/fc.weight", "fc", "Linear", collections}, &buffer);
  PutTensorDef({5, Role::kLoss, "loss", "", "", {}}, &buffer);
  buffer.End();
  FrameView view;
  ASSERT_EQ(ParseFrameUntrusted(buffer.bytes(), 0, 1, &view), FrameOutcome::kFrame);
  auto defs = ParseTensorDefsUntrusted(view.body);
  ASSERT_TRUE(defs.ok()) << defs.status().ToString();
  ASSERT_EQ(defs->size(), 2U);
  EXPECT_EQ((*defs)[0].name, "gradient/fc.weight");
  EXPECT_EQ((*defs)[0].module_type, "Linear");
  EXPECT_EQ((*defs)[0].role, Role::kGradient);
  ASSERT_EQ((*defs)[0].collections.size(), 2U);
  EXPECT_EQ((*defs)[0].collections[1], 5U);
  EXPECT_EQ((*defs)[1].name, "loss");
}

TEST(FrameTest, ALayoutOfAShardKeepsTheWhole) {
  const std::int64_t dims[] = {3, 4};
  const std::int64_t whole[] = {6, 4};
  const std::int64_t offset[] = {3, 0};
  FrameBuffer buffer;
  buffer.Reset(1, 0);
  buffer.Begin(FrameKind::kLayoutDefs, 0);
  PutLayoutDef({1, Layout::Contiguous(DType::kBFloat16, dims).value(), whole, offset}, &buffer);
  PutLayoutDef({2, Layout::Contiguous(DType::kFloat64, {}).value(), {}, {}}, &buffer);
  buffer.End();
  FrameView view;
  ASSERT_EQ(ParseFrameUntrusted(buffer.bytes(), 0, 1, &view), FrameOutcome::kFrame);
  auto defs = ParseLayoutDefsUntrusted(view.body);
  ASSERT_TRUE(defs.ok()) << defs.status().ToString();
  ASSERT_EQ(defs->size(), 2U);
  EXPECT_EQ((*defs)[0].layout.dims[1], 4);
  EXPECT_EQ((*defs)[0].global_shape[0], 6);
  EXPECT_EQ((*defs)[0].global_offset[0], 3);
  EXPECT_EQ((*defs)[1].layout.rank, 0);
  EXPECT_TRUE((*defs)[1].global_shape.empty());
}

TEST(FrameTest, PhasesAddUpToTheirStep_OrAreRefused) {
  const PhasesHead head{30, 20, -1, -1, 1, 2, kNoId, 0};
  const PhaseRow rows[] = {{1, 0, 1, kNoId, 0, 10}, {0, 0, 1, kNoId, -1, 20}};
  const auto parsed = [](const PhasesHead& of, std::span<const PhaseRow> with) {
    FrameBuffer buffer;
    buffer.Reset(1, 0);
    buffer.Begin(FrameKind::kPhases, 5);
    buffer.PutValue(of);
    buffer.PutRows(with);
    buffer.End();
    FrameView view;
    EXPECT_EQ(ParseFrameUntrusted(buffer.bytes(), 0, 1, &view), FrameOutcome::kFrame);
    const auto phases = ParsePhasesUntrusted(view.body);
    return phases.ok() ? Result<std::size_t>(phases->rows.size()) : phases.status();
  };
  EXPECT_EQ(parsed(head, rows).value(), 2U);
  const auto refused = [&](auto change) {
    PhasesHead other = head;
    PhaseRow others[] = {rows[0], rows[1]};
    change(other, others);
    return parsed(other, others).status().code() == StatusCode::kCorruption;
  };
  using Head = PhasesHead&;
  using Rows = PhaseRow*;
  EXPECT_TRUE(refused([](Head of, Rows) { of.wall_ns = 31; }));
  EXPECT_TRUE(refused([](Head of, Rows) { of.wall_ns = -30; }));
  EXPECT_TRUE(refused([](Head of, Rows) { of.steps = 0; }));
  EXPECT_TRUE(refused([](Head of, Rows) { of.rows = 3; }));
  EXPECT_TRUE(refused([](Head of, Rows) { of.cpu_ns = -2; }));
  EXPECT_TRUE(refused([](Head of, Rows with) {
    of.wall_ns = INT64_MAX;
    with[0].duration_ns = INT64_MAX - 20;
  }));
  EXPECT_TRUE(refused([](Head, Rows with) {
    with[0].duration_ns = 40;
    with[1].duration_ns = -10;
  }));
  EXPECT_FALSE(refused([](Head, Rows with) { with[0].phase = 200; }));  // a later version's
  EXPECT_FALSE(parsed({0, -1, -1, -1, 1, 65, kNoId, 0}, std::vector<PhaseRow>(65)).ok());
}

TEST(FrameTest, ModuleTimesAreReadBack_OrRefusedWhereImpossible) {
  const ModuleTimesHead head{1, 2, 7, kModulesHidden};
  const ModuleTimeRow rows[] = {{3, 2, 500, 200, 900, 300}, {kNoId, 5, -1, 40, -1, -1}};
  const auto parsed = [](const ModuleTimesHead& of, std::span<const ModuleTimeRow> with) {
    FrameBuffer buffer;
    buffer.Reset(1, 0);
    buffer.Begin(FrameKind::kModuleTimes, 5);
    buffer.PutValue(of);
    buffer.PutRows(with);
    buffer.End();
    FrameView view;
    EXPECT_EQ(ParseFrameUntrusted(buffer.bytes(), 0, 1, &view), FrameOutcome::kFrame);
    const auto times = ParseModuleTimesUntrusted(view.body);
    return times.ok() ? Result<std::int64_t>(times->rows[0].backward_self_ns) : times.status();
  };
  EXPECT_EQ(parsed(head, rows).value(), 300);
  const auto refused = [&](auto change) {
    ModuleTimesHead other = head;
    ModuleTimeRow others[] = {rows[0], rows[1]};
    change(other, others);
    return parsed(other, others).status().code() == StatusCode::kCorruption;
  };
  using Head = ModuleTimesHead&;
  using Rows = ModuleTimeRow*;
  EXPECT_TRUE(refused([](Head of, Rows) { of.steps = 0; }));
  EXPECT_TRUE(refused([](Head of, Rows) { of.rows = 3; }));
  EXPECT_TRUE(refused([](Head, Rows with) { with[0].calls = 0; }));
  EXPECT_TRUE(refused([](Head, Rows with) { with[0].forward_self_ns = -1; }));
  EXPECT_TRUE(refused([](Head, Rows with) { with[1].backward_ns = -2; }));
  EXPECT_TRUE(refused([](Head, Rows with) { with[1].forward_ns = INT64_MAX; }));
  EXPECT_FALSE(refused([](Head of, Rows) { of.flags = 1U << 31U; }));  // a later version's
  EXPECT_FALSE(parsed({1, 1025, 1025, 0}, std::vector<ModuleTimeRow>(1025, rows[0])).ok());
  EXPECT_EQ(ParseModuleTimesUntrusted({}).status().code(), StatusCode::kCorruption);
}

TEST(FileHeaderTest, ANewerVersionSaysSo) {
  FileHeader header{};
  SealFileHeader(&header, kMetaMagic);
  std::vector<std::byte> bytes(kFileHeaderBytes);
  std::memcpy(bytes.data(), &header, sizeof(header));
  EXPECT_TRUE(ParseFileHeaderUntrusted(bytes, kMetaMagic).ok());
  EXPECT_EQ(ParseFileHeaderUntrusted(bytes, kDataMagic).status().code(), StatusCode::kCorruption);
  header.major = 9;
  header.minor = 4;
  header.checksum = HashBytes(std::as_bytes(std::span(&header, 1)).first(offsetof(FileHeader, checksum)));
  std::memcpy(bytes.data(), &header, sizeof(header));
  const Status status = ParseFileHeaderUntrusted(bytes, kMetaMagic).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupportedVersion);
  EXPECT_EQ(status.message(), "found format version 9.4, this build reads up to 1; use a newer luff");
}

RC_GTEST_PROP(HistogramProperty, RoundTrips, (const std::map<std::uint16_t, std::uint64_t>& chosen)) {
  SparseHistogram bins;
  for (const auto& [bin, count] : chosen) {
    if (bin < kHistogramBins) bins.push_back({bin, count});
  }
  FrameBuffer buffer;
  buffer.Reset(1, 0);
  buffer.Begin(FrameKind::kHistogramRows, 0);
  PutHistogram(3, bins, &buffer);
  PutHistogram(4, {}, &buffer);
  buffer.End();
  FrameView view;
  RC_ASSERT(ParseFrameUntrusted(buffer.bytes(), 0, 1, &view) == FrameOutcome::kFrame);
  auto views = ParseHistogramsUntrusted(view.body);
  RC_ASSERT(views.ok());
  RC_ASSERT(views->size() == 2U);
  SparseHistogram back;
  RC_ASSERT(DecodeHistogramUntrusted((*views)[0], &back).ok());
  RC_ASSERT(back.size() == bins.size());
  for (std::size_t i = 0; i < bins.size(); ++i) {
    RC_ASSERT(back[i].bin == bins[i].bin);
    RC_ASSERT(back[i].count == bins[i].count);
  }
}

RC_GTEST_PROP(UnitsProperty, RoundTrips,
              (const std::vector<std::pair<std::uint32_t, std::uint64_t>>& chosen)) {
  UnitCounts units;
  units.axis = UnitAxis::kLast;
  units.values_per_unit = 99;
  for (const auto& [positive, zero] : chosen) {
    units.positive.push_back(positive);
    units.zero.push_back(zero);
    units.sum.push_back(static_cast<float>(positive) * 0.5F);
  }
  FrameBuffer buffer;
  buffer.Reset(1, 0);
  buffer.Begin(FrameKind::kUnitRows, 0);
  PutUnits(3, units, &buffer);
  buffer.End();
  FrameView view;
  RC_ASSERT(ParseFrameUntrusted(buffer.bytes(), 0, 1, &view) == FrameOutcome::kFrame);
  auto views = ParseUnitsUntrusted(view.body);
  RC_ASSERT(views.ok());
  RC_ASSERT(views->size() == 1U);
  UnitCounts back;
  RC_ASSERT(DecodeUnitsUntrusted((*views)[0], &back).ok());
  RC_ASSERT(back.positive == units.positive);
  RC_ASSERT(back.zero == units.zero);
  RC_ASSERT(back.sum == units.sum);
  RC_ASSERT(back.axis == UnitAxis::kLast);
}

}  // namespace
}  // namespace luff::format::frames_test
