#include "device/kernels/image.h"

#include <cstdint>
#include <memory>
#include <new>

#include "device/kernels/inflate.h"

// kernels.image: the length of the fat binary in four bytes, little-endian, then it, packed. The assembler
// reads the file; the text of its bytes would be slow to compile.
asm(".section .rodata\n"
    ".balign 16\n"
    ".global luff_kernel_image\n"
    ".hidden luff_kernel_image\n"
    "luff_kernel_image:\n"
    ".incbin \"" LUFF_KERNEL_IMAGE
    "\"\n"
    ".global luff_kernel_image_end\n"
    ".hidden luff_kernel_image_end\n"
    "luff_kernel_image_end:\n"
    ".byte 0\n"
    ".previous\n");
extern "C" {
extern const unsigned char luff_kernel_image[] __attribute__((visibility("hidden")));
extern const unsigned char luff_kernel_image_end[] __attribute__((visibility("hidden")));
}

namespace luff::device {
namespace {

struct Unpacked {
  std::unique_ptr<unsigned char[]> bytes;
  std::size_t size = 0;

  Unpacked() noexcept {
    const std::span<const unsigned char> packed(luff_kernel_image, luff_kernel_image_end);
    std::uint32_t length = 0;
    for (unsigned i = 0; i < 4; ++i) length |= std::uint32_t{packed[i]} << (8 * i);
    bytes.reset(new (std::nothrow) unsigned char[length]);
    if (bytes != nullptr && InflateUntrusted(packed.subspan(4), {bytes.get(), length})) size = length;
  }
};

}  // namespace

std::span<const unsigned char> KernelImage() noexcept {
  static const Unpacked unpacked;
  return {unpacked.bytes.get(), unpacked.size};
}

}  // namespace luff::device
