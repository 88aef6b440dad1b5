#include "device/kernels/image.h"

// The assembler reads the file: a text of its bytes would be five times as large and slow to compile.
asm(".section .rodata\n"
    ".balign 16\n"
    "luff_kernel_image:\n"
    ".incbin \"" LUFF_KERNEL_IMAGE
    "\"\n"
    "luff_kernel_image_end:\n"
    ".byte 0\n"
    ".previous\n");
extern "C" {
extern const unsigned char luff_kernel_image[] __attribute__((visibility("hidden")));
extern const unsigned char luff_kernel_image_end[] __attribute__((visibility("hidden")));
}

namespace luff::device {

std::span<const unsigned char> KernelImage() noexcept { return {luff_kernel_image, luff_kernel_image_end}; }

}  // namespace luff::device
