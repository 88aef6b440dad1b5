#pragma once
// Runs Luff's kernels without a GPU: the same sources, compiled for the CPU.

#include <string_view>

#include "device/testing/fibre_block.h"

namespace luff::device::testing {

/// Does what cuLaunchKernel does with one of our kernels, on the calling thread, and returns when it is done.
///
/// `name`: as in kernels/arguments.h. `grid`, `block`: sizes in x. `parameters`: as kernelParams, the address
/// of one pointer to the kernel's arguments. `order`: how threads and blocks take turns. Device addresses are
/// addresses of this process; they must be readable meanwhile. Returns false, and does nothing, if there is
/// no such kernel or the shape of the launch is not what it needs.
/// **Thread-safe.**
[[nodiscard]] bool LaunchByName(std::string_view name, unsigned grid, unsigned block, void** parameters,
                                ThreadOrder order = ThreadOrder::kForwards);

}  // namespace luff::device::testing
