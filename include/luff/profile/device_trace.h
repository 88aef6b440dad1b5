#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "luff/profile/kineto_trace.h"

/// Where the devices of a training lose time, as a trace of a few steps shows it: what rules judge.
namespace luff::profile {

/// Seconds, over the time of the trace, of all devices of the process together.
struct DeviceTrace {
  double span_s = 0;  // from the first task of a device to the end of the last one; 0: none was traced
  double busy_s = 0;
  bool xplane = false;  // of JAX or TensorFlow: other names of calls and copies, no operators around them
  bool stacks = false;  // functions of Python were traced, which slows the host down
  std::int64_t capability = -1;  // major compute capability, the least of the devices; -1: not known

  /// A call in which the host waits for a device, by what the training does there.
  struct Sync {
    std::string call;    // "cudaStreamSynchronize"
    std::string inside;  // the innermost operator around it: "aten::item"; "" if none was traced
    std::string where;   // "train.py(41): step", of traces with stacks; else ""
    std::uint64_t calls = 0;
    double wait_s = 0;  // of the host
    double idle_s = 0;  // of the devices afterwards, until the host has given them something to do
  };
  std::vector<Sync> syncs;  // the most idle time first, then the longest wait; at most 100
  double idle_sync_s = 0;   // of all
  /// Idle because the host launches one task after the other, each too late, without having waited: gaps
  /// shorter than 100 us.
  double idle_launch_s = 0;
  std::uint64_t kernels = 0;
  double kernel_median_s = 0;

  struct Copies {
    std::uint64_t calls = 0, bytes = 0;
    double seconds = 0;
    double alone_s = 0;  // while no kernel ran
  };
  Copies pageable, pinned;  // from the host to a device; of pageable memory, and of pinned memory

  double float32_s = 0;                    // products and convolutions in float32 without tensor cores
  std::string float32_of;                  // the kernel that took most of it
  double tf32_s = 0;                       // such products that tensor cores round to TF32
  std::string tf32_of;                     // the kernel that took most of it
  bool narrow = false;                     // some kernel computes in 16 or 8 bits, or may do so by its name
  double collective_s = 0, exposed_s = 0;  // NCCL; exposed: while no other kernel ran
  std::uint64_t allocations = 0;           // cudaMalloc and cudaFree
  std::uint64_t frees = 0;                 // cudaFree
  double allocation_s = 0;                 // in them, of the host
};

/// Errors: as SummariseTraceUntrusted.
[[nodiscard]] Result<DeviceTrace> DevicesOfTraceUntrusted(std::string_view bytes);
/// Reads a trace of a run. Further errors: those of reading, and kOutOfRange for a file of more than
/// `most_bytes`.
[[nodiscard]] Result<DeviceTrace> DevicesOfTrace(const std::string& run, std::uint32_t worker,
                                                 const TraceFile& trace, std::uint64_t most_bytes);

}  // namespace luff::profile
