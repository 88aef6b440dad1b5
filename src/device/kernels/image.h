#pragma once
#include <span>

namespace luff::device {

/// The fat binary with Luff's kernels, for cuModuleLoadData: machine code for compute
/// capabilities 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0, and PTX for all others from 7.0 on. Empty if there was no
/// memory to unpack it.
/// `./dev kernels` builds it from the sources beside this file. The first call unpacks it, which takes some
/// 20 ms and as much memory as it is long (about 700 KB) for the life of the process; others cost nothing.
/// **Thread-safe.**
[[nodiscard]] std::span<const unsigned char> KernelImage() noexcept;

}  // namespace luff::device
