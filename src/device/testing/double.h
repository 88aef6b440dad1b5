#pragma once
#include <cstddef>
#include <cstdint>

#include "device/driver.h"

/// A `libcuda.so.1` for tests: a shared object with the driver functions that Luff calls, on the CPU. Device
/// memory cannot be read by the host, except inside the double's own copies and launches: a stray read
/// crashes. Launches run the real kernels on fibres, with their arguments as they were at the launch. A call
/// in a forked child, a copy to or from memory that is not pinned, and a stream of another context are errors
/// that `luff_double_misuse` tells.
namespace luff::device::testing {

enum class Streams : int {
  kInline = 0,   // work is done before the call returns
  kThreads = 1,  // a thread for each stream, with delays from the seed
  kManual = 2,   // work is done by luff_double_run
};

/// What goes wrong, and when. Zero: never. Counts begin at 1.
struct Faults {
  Streams streams = Streams::kInline;
  std::uint64_t seed = 1;
  int longest_delay_us = 200;  // kThreads: before each piece of work
  int version = 12040;         // of the driver
  int devices = 1;
  bool no_pools = false;                   // devices do not support memory pools
  char missing[64] = {};                   // a function that the driver lacks
  int failing_call = 0;                    // the n-th call that may fail does,
  int failing_calls = 1;                   // and so many from it on,
  int failing_any = 0;                     // the n-th call of all does, also of those that never should,
  Code failure = kOutOfMemory;             // with this error
  int breaking_launch = 0;                 // the n-th launch breaks its context when it runs,
  Code breakage = 700;                     // with this error
  int lost_event = 0;                      // the n-th recording of an event never completes
  bool capturing = false;                  // every stream captures a graph
  bool capturing_elsewhere = false;        // another stream does, which the default stream would wait for
  bool hanging_queries = false;            // cuEventQuery does not return
  std::uint64_t free_memory = 1ULL << 30;  // that the driver tells of
  float elapsed_ms = 0;                    // between any two events; 0: as it was
};

/// What has been called.
struct Counts {
  int calls = 0;
  int launches = 0;
  int uploads = 0, downloads = 0;
  int device_allocations = 0, pinned_allocations = 0;   // that still exist
  int trims = 0;                                        // of pools
  int events = 0, modules = 0, pools = 0, streams = 0;  // of Luff, that still exist
  int queries = 0;
};

/// The double's own functions, found by dlsym.
struct Controls {
  void (*reset)(const Faults*) = nullptr;  // begins anew; no stream may be at work
  Counts (*counts)() = nullptr;
  const char* (*misuse)() = nullptr;                 // the first misuse; "" if none
  DevicePointer (*allocate)(std::size_t) = nullptr;  // on the current device, filled by the next two
  void (*release)(DevicePointer) = nullptr;
  void (*write)(DevicePointer, const void*, std::size_t) = nullptr;  // at once
  void (*read)(void*, DevicePointer, std::size_t) = nullptr;
  Stream (*stream)(int device) = nullptr;  // makes one
  /// Enqueues a write: the training's own work.
  void (*write_later)(Stream, DevicePointer, const void*, std::size_t) = nullptr;
  int (*run)(int pieces) =
      nullptr;                // kManual: of all streams, chosen by the seed; returns how many were done
  void (*drain)() = nullptr;  // waits until no stream has work
  void (*use_device)(int) = nullptr;    // makes its primary context the calling thread's; -1: none
  void (*release_queries)() = nullptr;  // those that hang go on
  void (*reset_device)(int) = nullptr;  // as the training may: handles and memory, pinned too, are gone
  void (*destroy_context)(int) = nullptr;
  void (*adopt)(const void*, std::size_t) = nullptr;  // memory that the host and the device share
};

}  // namespace luff::device::testing
