// All kernels: what NVRTC compiles to one module, and what tests compile for the CPU.

#include "device/kernels/read.cu"
#include "device/kernels/reduce.cu"
#include "device/kernels/statistics.cu"
#include "device/kernels/units.cu"
