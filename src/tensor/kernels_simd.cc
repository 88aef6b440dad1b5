#include "tensor/kernel_table.h"
namespace luff::tensor {
const KernelTable* Sse4Kernels() noexcept { return nullptr; }
const KernelTable* Avx2Kernels() noexcept { return nullptr; }
const KernelTable* Avx3Kernels() noexcept { return nullptr; }
const KernelTable* NeonKernels() noexcept { return nullptr; }
}
