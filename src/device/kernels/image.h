#pragma once
#include <span>

namespace luff::device {

/// The fat binary with Luff's kernels, for cuModuleLoadData: machine code for compute
/// capabilities 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0, and PTX for all others from 7.0 on. Empty in a build for a
/// system without CUDA.
/// `./dev kernels` builds it from the sources beside this file. **Thread-safe.** Costs nothing.
[[nodiscard]] std::span<const unsigned char> KernelImage() noexcept;

}  // namespace luff::device
