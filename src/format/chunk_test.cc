#include "luff/format/chunk.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>

#include "luff/format/frames.h"

namespace luff::format::chunk_test {
namespace {

std::vector<std::byte> RoundTrip(DType dtype, const std::vector<std::byte>& raw, Codec* codec) {
  std::vector<std::byte> chunk;
  ChunkInfo info;
  info.tensor = 1;
  info.dtype = dtype;
  *codec = EncodeChunk(info, raw, true, HashBytes(raw), &chunk);
  EXPECT_EQ(chunk.size() % kChunkAlign, 0U);
  auto view = ParseChunkUntrusted(chunk, 0);
  EXPECT_TRUE(view.ok()) << view.status().ToString();
  std::vector<std::byte> back(raw.size());
  if (view.ok()) {
    const Status status = DecodeChunkUntrusted(*view, back);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  return back;
}

RC_GTEST_PROP(ChunkProperty, EveryDTypeRoundTripsWithEveryShareOfZeros, ()) {
  const auto code = *rc::gen::inRange(1, kDTypeCount);
  const auto elements = *rc::gen::inRange(0, 700);
  const auto zeros_of_ten = *rc::gen::inRange(0, 11);
  const auto dtype = static_cast<DType>(code);
  std::vector<std::byte> raw(static_cast<std::size_t>(elements) * DTypeSize(dtype));
  std::uint64_t state = static_cast<std::uint64_t>(*rc::gen::arbitrary<std::uint32_t>()) + 1;
  for (int i = 0; i < elements; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    if (static_cast<int>((state >> 33) % 10) < zeros_of_ten) continue;
    for (std::size_t b = 0; b < DTypeSize(dtype); ++b) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      raw[static_cast<std::size_t>(i) * DTypeSize(dtype) + b] = static_cast<std::byte>(state >> 40);
    }
  }
  Codec codec{};
  RC_ASSERT(RoundTrip(dtype, raw, &codec) == raw);
}

TEST(ChunkTest, SparseAndConstantValuesAreStoredShort) {
  std::vector<std::byte> raw(4000);
  std::memset(raw.data() + 400, 7, 40);
  Codec codec{};
  EXPECT_EQ(RoundTrip(DType::kFloat32, raw, &codec), raw);
  EXPECT_EQ(codec, Codec::kZeroBitmap);
  std::memset(raw.data(), 7, raw.size());
  EXPECT_EQ(RoundTrip(DType::kFloat64, raw, &codec), raw);
  EXPECT_EQ(codec, Codec::kConstant);
}

TEST(ChunkTest, EveryTruncationAndEveryFlippedBitIsFound) {
  std::vector<std::byte> raw(96);
  for (const bool sparse : {false, true}) {
    for (std::size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<std::byte>(sparse && i > 7 ? 0 : i + 1);
    std::vector<std::byte> chunk;
    ChunkInfo info;
    info.dtype = DType::kFloat32;
    EncodeChunk(info, raw, true, HashBytes(raw), &chunk);
    const std::size_t used = sizeof(ChunkHeader) + ParseChunkUntrusted(chunk, 0)->stored.size();
    std::vector<std::byte> out(raw.size());
    for (std::size_t n = 0; n < used; ++n)
      EXPECT_FALSE(ParseChunkUntrusted(std::span(chunk).first(n), 0).ok()) << n;
    for (std::size_t bit = 0; bit < used * 8; ++bit) {
      chunk[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      const auto view = ParseChunkUntrusted(chunk, 0);
      EXPECT_FALSE(view.ok() && DecodeChunkUntrusted(*view, out).ok()) << bit;
      chunk[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    }
  }
}

TEST(ChunkTest, WalkingSkipsThePaddingBeforeAPage) {
  std::vector<std::byte> raw(64, std::byte{3});
  raw[0] = std::byte{4};
  std::vector<std::byte> chunk;
  ChunkInfo info;
  info.dtype = DType::kUInt8;
  EncodeChunk(info, raw, false, HashBytes(raw), &chunk);
  std::vector<std::byte> file(3 * kPageBytes);
  std::memcpy(file.data() + kPageBytes, chunk.data(), chunk.size());
  std::memcpy(file.data() + 2 * kPageBytes, chunk.data(), chunk.size());
  EXPECT_EQ(NextChunkOffsetUntrusted(file, kPageBytes).value(), kPageBytes);
  EXPECT_EQ(NextChunkOffsetUntrusted(file, kPageBytes + chunk.size()).value(), 2 * kPageBytes);
  EXPECT_EQ(NextChunkOffsetUntrusted(file, 2 * kPageBytes + chunk.size()).status().code(),
            StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace luff::format::chunk_test
