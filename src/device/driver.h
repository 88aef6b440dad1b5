#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

/// The few functions of the CUDA driver that Luff calls, declared here, so that no header and no library of
/// CUDA is needed (docs/adr/0051). Names, numbers and layouts are those of the driver's public interface,
/// version 11.3, which later drivers keep.
///
/// The table is the seam for other makers' devices: whoever fills it in serves the rest of the room.
namespace luff::device {

using Code = int;  // CUresult; 0 is success
using DevicePointer = std::uint64_t;
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using MemoryPool = struct MemoryPoolTag*;

inline constexpr Code kSuccess = 0;
inline constexpr Code kOutOfMemory = 2;
inline constexpr Code kDeinitialized = 4;
inline constexpr Code kNotReady = 600;
inline constexpr Code kContextDestroyed = 709;

inline constexpr int kMajorAttribute = 75, kMinorAttribute = 76, kMemoryPoolsAttribute = 115;
inline constexpr unsigned kEventWithTiming = 0, kEventWithoutTiming = 2;
inline constexpr unsigned kStreamNonBlocking = 1;  // independent of the default stream
inline constexpr unsigned kHostPortable = 1;       // pinned memory that every context may use
inline constexpr int kCaptureRelaxed = 2;  // of this thread's calls, while another thread captures a graph
/// First driver whose memory pools and capture modes are used (CUDA 11.3).
inline constexpr int kOldestDriver = 11030;
inline constexpr int kContextsHaveNumbers = 12000;  // CtxGetId

/// CUmemPoolProps.
struct PoolProperties {
  int allocation = 1;  // CU_MEM_ALLOCATION_TYPE_PINNED
  int handles = 0;
  int place = 1;  // CU_MEM_LOCATION_TYPE_DEVICE
  int device = 0;
  void* windows = nullptr;
  unsigned char rest[64] = {};
};
static_assert(sizeof(PoolProperties) == 88);

/// A context of which Luff has handles. After a reset of its device the next one may have the same address,
/// and what the handles meant, pinned memory included, is gone.
struct KnownContext {
  Context handle = nullptr;
  std::uint64_t number = 0;  // that no other context of the process has; 0: this driver does not tell
};

/// The driver's functions. Null: this driver lacks it.
struct Driver {
  Code (*DriverGetVersion)(int*) = nullptr;
  Code (*GetErrorName)(Code, const char**) = nullptr;
  Code (*CtxGetCurrent)(Context*) = nullptr;
  Code (*CtxGetDevice)(int*) = nullptr;
  Code (*CtxGetId)(Context, std::uint64_t*) = nullptr;  // since CUDA 12.0: may be null
  Code (*CtxPushCurrent)(Context) = nullptr;
  Code (*CtxPopCurrent)(Context*) = nullptr;
  Code (*DeviceGet)(int*, int) = nullptr;
  Code (*DeviceGetAttribute)(int*, int, int) = nullptr;
  Code (*DevicePrimaryCtxGetState)(int, unsigned*, int*) = nullptr;
  Code (*DevicePrimaryCtxRetain)(Context*, int) = nullptr;
  Code (*DevicePrimaryCtxRelease)(int) = nullptr;
  Code (*ModuleLoadData)(Module*, const void*) = nullptr;
  Code (*ModuleUnload)(Module) = nullptr;
  Code (*ModuleGetFunction)(Function*, Module, const char*) = nullptr;
  Code (*LaunchKernel)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,
                       void**, void**) = nullptr;
  Code (*MemPoolCreate)(MemoryPool*, const PoolProperties*) = nullptr;
  Code (*MemPoolDestroy)(MemoryPool) = nullptr;
  Code (*MemPoolTrimTo)(MemoryPool, std::size_t) = nullptr;
  Code (*MemGetInfo)(std::size_t*, std::size_t*) = nullptr;
  Code (*MemAllocFromPoolAsync)(DevicePointer*, std::size_t, MemoryPool, Stream) = nullptr;
  Code (*MemFreeAsync)(DevicePointer, Stream) = nullptr;
  Code (*MemHostAlloc)(void**, std::size_t, unsigned) = nullptr;
  Code (*MemFreeHost)(void*) = nullptr;
  Code (*MemcpyHtoDAsync)(DevicePointer, const void*, std::size_t, Stream) = nullptr;
  Code (*MemcpyDtoHAsync)(void*, DevicePointer, std::size_t, Stream) = nullptr;
  Code (*MemsetD8Async)(DevicePointer, unsigned char, std::size_t, Stream) = nullptr;
  Code (*EventCreate)(Event*, unsigned) = nullptr;
  Code (*EventDestroy)(Event) = nullptr;
  Code (*EventRecord)(Event, Stream) = nullptr;
  Code (*EventQuery)(Event) = nullptr;
  Code (*EventElapsedTime)(float*, Event, Event) = nullptr;
  Code (*StreamCreate)(Stream*, unsigned) = nullptr;
  Code (*StreamDestroy)(Stream) = nullptr;
  Code (*StreamIsCapturing)(Stream, int*) = nullptr;
  Code (*ThreadExchangeStreamCaptureMode)(int*) = nullptr;

  /// Name of an error, e.g. "CUDA_ERROR_ILLEGAL_ADDRESS (700)".
  [[nodiscard]] std::string NameOf(Code error) const;
  /// kContextDestroyed if the context is not the one that was known; kSuccess where the driver does not tell.
  [[nodiscard]] Code Check(const KnownContext& context) const;
};

/// What FindDriver found.
struct FoundDriver {
  std::shared_ptr<const Driver> driver;  // null: none, or one that cannot be used
  std::string why;                       // why not; empty where the process has loaded no driver at all
};

/// Finds the driver that the framework has loaded into this process. Loads nothing: a process without a GPU
/// gets none, and a driver that nobody has loaded yet may be there at a later call. Touches no device.
[[nodiscard]] FoundDriver FindDriver();

/// True if an error breaks its context for good, so that every later call in it fails: a kernel read or wrote
/// outside its memory, or the device itself failed. The process can only end.
[[nodiscard]] bool IsSticky(Code error) noexcept;

/// True if a call was refused because a graph is being captured: on this stream, or, for the default stream,
/// on another one of its context.
[[nodiscard]] bool IsOfCapture(Code error) noexcept;

}  // namespace luff::device
