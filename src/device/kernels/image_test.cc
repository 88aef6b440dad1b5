// The image of the kernels, and what unpacks it.
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "device/kernels/image.h"
#include "device/kernels/inflate.h"

namespace luff::device::image_test {
namespace {

constexpr std::string_view kText = "of all the tensors that a tensor of tensors has, the tensor has all";
// The text as zlib 1.2.13 packs it: bytes as they are, with the fixed codes, with codes of its own.
constexpr std::string_view kStored(
    "\x01\x43\x00\xbc\xff\x6f\x66\x20\x61\x6c\x6c\x20\x74\x68\x65\x20\x74\x65\x6e\x73\x6f\x72\x73\x20"
    "\x74\x68\x61\x74\x20\x61\x20\x74\x65\x6e\x73\x6f\x72\x20\x6f\x66\x20\x74\x65\x6e\x73\x6f\x72\x73"
    "\x20\x68\x61\x73\x2c\x20\x74\x68\x65\x20\x74\x65\x6e\x73\x6f\x72\x20\x68\x61\x73\x20\x61\x6c\x6c",
    72);
constexpr std::string_view kFixed(
    "\xcb\x4f\x53\x48\xcc\xc9\x51\x28\xc9\x48\x55\x28\x49\xcd\x2b\xce\x2f\x2a\x06\xb2\x13\x4b\x14\x12"
    "\xa1\x5c\x85\xfc\x34\xb8\x44\x46\x62\xb1\x0e\x92\x4a\x10\x1f\xa4\x19\x00",
    42);
// 3,000 bytes i * i % 251 / 25, with codes of their own.
constexpr std::string_view kSquares(
    "\xed\x8f\x49\x8e\x04\x30\x08\x03\x01\xb3\xfe\xff\xc3\x6d\xa2\xee\xc3\x3c\x61\x24\x08\x71\x72\x2b"
    "\x97\x08\x47\x55\x0d\xee\x91\x35\xa2\xe6\x51\xc3\xcc\x51\x44\x0b\xb2\xd5\x4b\xf0\xd6\x5b\x63\x50"
    "\x9a\xe2\xe3\x8d\xef\xf1\x09\x49\x6b\xdf\x08\x2d\xdf\xed\xb0\x29\x7f\x57\x3a\x19\x53\xe9\xe0\xd3"
    "\x95\x19\xee\x00\xec\x0d\x3f\x4b\xce\xea\x11\x96\xd8\x0a\x64\x37\xa3\xe6\xdd\x58\xfe\x6e\xb4\x91"
    "\xbb\x11\x7f\xe0\xe4\x6a\x61\x42\xd9\xa0\xf0\x96\xfc\x84\x74\x40\x87\x6c\x9d\x0a\xe6\x56\x58\xb2"
    "\x51\x57\x7e\x73\xea\xa7\x7e\xea\xa7\x7e\xea\xa7\x7e\xea\xa7\x7e\xea\xa7\xfe\x1f\xd4\x3f",
    142);

bool Unpack(std::string_view packed, std::string* out) {
  return InflateUntrusted({reinterpret_cast<const unsigned char*>(packed.data()), packed.size()},
                          {reinterpret_cast<unsigned char*>(out->data()), out->size()});
}

TEST(Inflate, UnpacksEveryKindOfBlock) {
  for (const std::string_view packed : {kStored, kFixed}) {
    std::string out(kText.size(), ' ');
    EXPECT_TRUE(Unpack(packed, &out));
    EXPECT_EQ(out, kText);
  }
  std::string squares(3000, ' ');
  EXPECT_TRUE(Unpack(kSquares, &squares));
  for (int i = 0; i < 3000; ++i) EXPECT_EQ(squares[static_cast<std::size_t>(i)], i * i % 251 / 25) << i;
}

TEST(Inflate, PartsAndOtherSizes_AreRefused) {
  for (const std::string_view packed : {kStored, kFixed}) {
    for (std::size_t length = 0; length < packed.size(); ++length) {
      std::string out(kText.size(), ' ');
      EXPECT_FALSE(Unpack(packed.substr(0, length), &out)) << length;
    }
    for (const std::size_t size : {std::size_t{0}, kText.size() - 1, kText.size() + 1}) {
      std::string out(size, ' ');
      EXPECT_FALSE(Unpack(packed, &out)) << size;
    }
  }
}

TEST(Inflate, ABlockOfAnUnknownKind_AndADistanceBeforeTheBegin_AreRefused) {
  std::string out(3, ' ');
  EXPECT_FALSE(Unpack("\x07", &out));
  // Fixed codes, then length 3 at distance 1 when nothing is there yet: bits 1, 10, 0000001, 00000.
  EXPECT_FALSE(Unpack(std::string_view("\x03\x02\x00\x00", 4), &out));
}

/// A number of `count` bytes at `at`, little-endian.
std::uint64_t Number(std::span<const unsigned char> bytes, std::size_t at, unsigned count) {
  std::uint64_t value = 0;
  for (unsigned i = 0; i < count; ++i) value |= std::uint64_t{bytes[at + i]} << (8 * i);
  return value;
}

TEST(KernelImage, IsAWholeFatBinary_WithPtxAndMachineCode) {
  const auto image = KernelImage();
  ASSERT_GT(image.size(), 64u);
  EXPECT_EQ(Number(image, 0, 4), 0xba55ed50u);
  EXPECT_EQ(Number(image, 6, 2) + Number(image, 8, 8), image.size()) << "header and contents";
  const std::string_view text(reinterpret_cast<const char*>(image.data()), image.size());
  EXPECT_NE(text.find(".target sm_70"), text.npos);
  std::size_t machines = 0;
  for (std::size_t at = text.find("\x7f"
                                  "ELF");
       at != text.npos; at = text.find("\x7f"
                                       "ELF",
                                       at + 1))
    ++machines;
  EXPECT_EQ(machines, 6u);
  for (const char* name :
       {"luff_statistics", "luff_forms", "luff_reduce", "luff_units", "luff_reduce_units", "luff_read"})
    EXPECT_NE(text.find(name), text.npos) << name;
  EXPECT_EQ(KernelImage().data(), image.data()) << "unpacked once";
}

}  // namespace
}  // namespace luff::device::image_test
