// Compares what driver.h declares with the driver's public headers, at compile time. For machines that have
// them (tests/house/test_driver_interface.py); no part of any library or test program.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>
#include <type_traits>

#include "device/driver.h"

namespace luff::device::interface_test {

/// Handles are pointers there and here; numbers must have the same size.
template <typename T>
inline constexpr int kKind = std::is_pointer_v<T> ? 1000 : static_cast<int>(sizeof(T));

template <typename Ours, typename Theirs>
struct Same : std::false_type {};
template <typename R, typename S, typename... A, typename... B>
  requires(sizeof...(A) == sizeof...(B))
struct Same<R (*)(A...), S (*)(B...)>
    : std::bool_constant<sizeof(R) == sizeof(S) && ((kKind<A> == kKind<B>) && ...)> {};

#define LUFF_SAME(name, version) \
  static_assert(Same<decltype(Driver::name), PFN_cu##name##_v##version>::value, #name)
LUFF_SAME(DriverGetVersion, 2020);
LUFF_SAME(GetErrorName, 6000);
LUFF_SAME(CtxGetCurrent, 4000);
LUFF_SAME(CtxGetDevice, 2000);
LUFF_SAME(CtxGetId, 12000);
LUFF_SAME(CtxPushCurrent, 4000);
LUFF_SAME(CtxPopCurrent, 4000);
LUFF_SAME(DeviceGet, 2000);
LUFF_SAME(DeviceGetAttribute, 2000);
LUFF_SAME(DevicePrimaryCtxGetState, 7000);
LUFF_SAME(DevicePrimaryCtxRetain, 7000);
LUFF_SAME(DevicePrimaryCtxRelease, 11000);
LUFF_SAME(ModuleLoadData, 2000);
LUFF_SAME(ModuleUnload, 2000);
LUFF_SAME(ModuleGetFunction, 2000);
LUFF_SAME(LaunchKernel, 4000);
LUFF_SAME(MemPoolCreate, 11020);
LUFF_SAME(MemPoolDestroy, 11020);
LUFF_SAME(MemPoolTrimTo, 11020);
LUFF_SAME(MemGetInfo, 3020);
LUFF_SAME(MemAllocFromPoolAsync, 11020);
LUFF_SAME(MemFreeAsync, 11020);
LUFF_SAME(MemHostAlloc, 2020);
LUFF_SAME(MemFreeHost, 2000);
LUFF_SAME(MemcpyHtoDAsync, 3020);
LUFF_SAME(MemcpyDtoHAsync, 3020);
LUFF_SAME(MemsetD8Async, 3020);
LUFF_SAME(EventCreate, 2000);
LUFF_SAME(EventDestroy, 4000);
LUFF_SAME(EventRecord, 2000);
LUFF_SAME(EventQuery, 2000);
LUFF_SAME(EventElapsedTime, 2000);
LUFF_SAME(StreamCreate, 2000);
LUFF_SAME(StreamDestroy, 4000);
LUFF_SAME(StreamIsCapturing, 10000);
LUFF_SAME(ThreadExchangeStreamCaptureMode, 10010);
#undef LUFF_SAME

static_assert(sizeof(CUmemPoolProps) == sizeof(PoolProperties));
static_assert(offsetof(CUmemPoolProps, location) == offsetof(PoolProperties, place));
static_assert(offsetof(CUmemPoolProps, win32SecurityAttributes) == offsetof(PoolProperties, windows));
static_assert(static_cast<int>(CU_MEM_ALLOCATION_TYPE_PINNED) == PoolProperties{}.allocation);
static_assert(static_cast<int>(CU_MEM_LOCATION_TYPE_DEVICE) == PoolProperties{}.place);

#define LUFF_SAME(theirs, ours) static_assert(static_cast<int>(theirs) == static_cast<int>(ours), #ours)
LUFF_SAME(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, kMajorAttribute);
LUFF_SAME(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, kMinorAttribute);
LUFF_SAME(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, kMemoryPoolsAttribute);
LUFF_SAME(CU_EVENT_DEFAULT, kEventWithTiming);
LUFF_SAME(CU_EVENT_DISABLE_TIMING, kEventWithoutTiming);
LUFF_SAME(CU_STREAM_NON_BLOCKING, kStreamNonBlocking);
LUFF_SAME(CU_MEMHOSTALLOC_PORTABLE, kHostPortable);
LUFF_SAME(CU_STREAM_CAPTURE_MODE_RELAXED, kCaptureRelaxed);
LUFF_SAME(CU_GET_PROC_ADDRESS_DEFAULT, 0);
LUFF_SAME(CUDA_SUCCESS, kSuccess);
LUFF_SAME(CUDA_ERROR_OUT_OF_MEMORY, kOutOfMemory);
LUFF_SAME(CUDA_ERROR_DEINITIALIZED, kDeinitialized);
LUFF_SAME(CUDA_ERROR_NOT_READY, kNotReady);
LUFF_SAME(CUDA_ERROR_CONTEXT_IS_DESTROYED, kContextDestroyed);
#undef LUFF_SAME

}  // namespace luff::device::interface_test
