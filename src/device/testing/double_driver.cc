// The functions of the driver double. See double.h.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/kernels/arguments.h"
#include "device/testing/double_state.h"
#include "device/testing/launch.h"

namespace luff::device::testing {
namespace {

Code DriverGetVersion(int* version) {
  if (const Code error = Called(); error != kSuccess) return error;
  *version = All().faults.version;
  return kSuccess;
}

Code GetErrorName(Code error, const char** name) {
  if (const Code failed = Called(); failed != kSuccess) return failed;
  switch (error) {
    case 2: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return kSuccess;
    case 700: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return kSuccess;
    case 709: *name = "CUDA_ERROR_CONTEXT_IS_DESTROYED"; return kSuccess;
    case 719: *name = "CUDA_ERROR_LAUNCH_FAILED"; return kSuccess;
    default: *name = "CUDA_ERROR_UNKNOWN"; return kSuccess;
  }
}

Code CtxGetCurrent(Context* context) {
  if (const Code error = Called(); error != kSuccess) return error;
  *context = t_context;
  return kSuccess;
}

Code CtxGetDevice(int* device) {
  if (const Code error = Called(); error != kSuccess) return error;
  if (t_context == nullptr) return kInvalidContext;
  *device = t_context->device;
  return kSuccess;
}

Code CtxGetId(Context context, std::uint64_t* number) {
  if (const Code error = Called(); error != kSuccess) return error;
  if (context->broken.load() == kContextDestroyed) return kContextDestroyed;
  *number = static_cast<std::uint64_t>(context->life.load()) * kDevices +
            static_cast<std::uint64_t>(context->device) + 1;
  return kSuccess;
}

Code CtxPushCurrent(Context context) {
  if (const Code error = Called(); error != kSuccess) return error;
  t_stack.push_back(t_context);
  t_context = context;
  return kSuccess;
}

Code CtxPopCurrent(Context* context) {
  if (const Code error = Called(); error != kSuccess) return error;
  if (t_stack.empty()) return kInvalidContext;
  *context = t_context;
  t_context = t_stack.back();
  t_stack.pop_back();
  return kSuccess;
}

Code DeviceGet(int* device, int ordinal) {
  if (const Code error = Called(); error != kSuccess) return error;
  if (ordinal < 0 || ordinal >= All().faults.devices) return 101;
  *device = ordinal;
  return kSuccess;
}

Code DeviceGetAttribute(int* value, int attribute, int) {
  if (const Code error = Called(); error != kSuccess) return error;
  *value = attribute == kMemoryPoolsAttribute ? (All().faults.no_pools ? 0 : 1)
           : attribute == kMajorAttribute     ? 9
                                              : 0;
  return kSuccess;
}

Code DevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  if (const Code error = Called(); error != kSuccess) return error;
  *flags = 0;
  *active = All().contexts[static_cast<std::size_t>(device)].references > 0 ? 1 : 0;
  return kSuccess;
}

Code DevicePrimaryCtxRetain(Context* context, int device) {
  if (const Code error = Called(); error != kSuccess) return error;
  *context = &All().contexts[static_cast<std::size_t>(device)];
  ++(*context)->references;
  return kSuccess;
}

Code DevicePrimaryCtxRelease(int device) {
  if (const Code error = Called(); error != kSuccess) return error;
  --All().contexts[static_cast<std::size_t>(device)].references;
  return kSuccess;
}

Code ModuleLoadData(Module* module, const void* image) {
  if (const Code error = Fate(); error != kSuccess) return error;
  if (image == nullptr) return kInvalidValue;
  *module = new ModuleTag{t_context, All().epoch.load()};
  Keep(*module);
  const std::lock_guard lock(All().mutex);
  ++All().counts.modules;
  return kSuccess;
}

Code ModuleUnload(Module module) {
  if (const Code error = Called(); error != kSuccess) return error;
  const std::lock_guard lock(All().mutex);
  if (module->epoch == All().epoch.load()) --All().counts.modules;
  return kSuccess;
}

Code ModuleGetFunction(Function* function, Module, const char* name) {
  if (const Code error = Fate(); error != kSuccess) return error;
  static std::array<FunctionTag, 6> functions = {{{kReadKernel, sizeof(ReadArguments)},
                                                  {kStatisticsKernel, sizeof(StatisticsArguments)},
                                                  {kFormsKernel, sizeof(StatisticsArguments)},
                                                  {kReduceKernel, sizeof(ReduceArguments)},
                                                  {kUnitsKernel, sizeof(UnitsArguments)},
                                                  {kReduceUnitsKernel, sizeof(ReduceUnitsArguments)}}};
  for (FunctionTag& f : functions) {
    if (std::strcmp(f.name, name) != 0) continue;
    *function = &f;
    return kSuccess;
  }
  return kNotFound;
}

Code LaunchKernel(Function function, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned,
                  unsigned, Stream stream, void** parameters, void**) {
  if (const Code error = Fate(); error != kSuccess) return error;
  if (grid == 0 || block == 0) return kInvalidValue;
  {
    const std::lock_guard lock(All().mutex);
    ++All().counts.launches;
  }
  std::vector<char> arguments(function->argument_bytes);
  std::memcpy(arguments.data(), parameters[0], arguments.size());
  const Context context = t_context;
  return Enqueue(stream, [=]() mutable {
    State& all = All();
    {
      const std::lock_guard lock(all.mutex);
      if (++all.launches_run == all.faults.breaking_launch) {
        context->broken.store(all.faults.breakage);
        return;
      }
    }
    void* argument = arguments.data();
    if (!LaunchByName(function->name, grid, block, &argument)) Misused("a launch of another shape");
  });
}

Code MemPoolCreate(MemoryPool* pool, const PoolProperties* properties) {
  if (const Code error = Fate(); error != kSuccess) return error;
  if (properties->allocation != 1 || properties->place != 1 || properties->device != t_context->device)
    return kInvalidValue;
  *pool = new MemoryPoolTag{t_context, All().epoch.load(), t_context->life.load()};
  Keep(*pool);
  const std::lock_guard lock(All().mutex);
  ++All().counts.pools;
  return kSuccess;
}

Code MemPoolDestroy(MemoryPool pool) {
  if (const Code error = Called(); error != kSuccess) return error;
  const std::lock_guard lock(All().mutex);
  if (pool->epoch == All().epoch.load()) --All().counts.pools;
  return kSuccess;
}

Code MemPoolTrimTo(MemoryPool, std::size_t) {
  if (const Code error = Called(); error != kSuccess) return error;
  const std::lock_guard lock(All().mutex);
  ++All().counts.trims;
  return kSuccess;
}

Code MemGetInfo(std::size_t* free, std::size_t* total) {
  if (const Code error = Called(); error != kSuccess) return error;
  if (t_context == nullptr) return kInvalidContext;
  *free = All().faults.free_memory;
  *total = *free * 2;
  return kSuccess;
}

Code MemAllocFromPoolAsync(DevicePointer* at, std::size_t bytes, MemoryPool pool, Stream) {
  if (const Code error = Fate(); error != kSuccess) return error;
  if (pool->life != t_context->life.load()) return kInvalidHandle;
  *at = Allocate(bytes);
  const std::lock_guard lock(All().mutex);
  ++All().counts.device_allocations;
  return kSuccess;
}

Code MemFreeAsync(DevicePointer at, Stream) {
  if (const Code error = Called(); error != kSuccess) return error;
  if (!Release(at)) return kSuccess;
  const std::lock_guard lock(All().mutex);
  --All().counts.device_allocations;
  return kSuccess;
}

Code MemHostAlloc(void** at, std::size_t bytes, unsigned) {
  if (const Code error = Fate(); error != kSuccess) return error;
  // Pages of its own, which a reset of the device takes away.
  *at = mmap(nullptr, PagesOf(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*at == MAP_FAILED) return kOutOfMemory;
  const std::lock_guard lock(All().mutex);
  All().pinned[static_cast<const char*>(*at)] = bytes;
  ++All().counts.pinned_allocations;
  return kSuccess;
}

Code MemFreeHost(void* at) {
  if (const Code error = Called(); error != kSuccess) return error;
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(All().mutex);
    const auto found = All().pinned.find(static_cast<const char*>(at));
    if (found == All().pinned.end()) return kSuccess;  // of an earlier test, or of before a reset: kept
    bytes = found->second;
    All().pinned.erase(found);
    --All().counts.pinned_allocations;
  }
  munmap(at, PagesOf(bytes));
  return kSuccess;
}

Code MemcpyHtoDAsync(DevicePointer to, const void* from, std::size_t bytes, Stream stream) {
  if (const Code error = Fate(); error != kSuccess) return error;
  if (!IsPinned(from, bytes)) Misused("an upload from memory that is not pinned");
  if (!IsDevice(to, bytes)) Misused("an upload to memory that is not the device's");
  {
    const std::lock_guard lock(All().mutex);
    ++All().counts.uploads;
  }
  return Enqueue(stream, [=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
}

Code MemcpyDtoHAsync(void* to, DevicePointer from, std::size_t bytes, Stream stream) {
  if (const Code error = Fate(); error != kSuccess) return error;
  if (!IsPinned(to, bytes)) Misused("a download to memory that is not pinned");
  if (!IsDevice(from, bytes)) Misused("a download from memory that is not the device's");
  {
    const std::lock_guard lock(All().mutex);
    ++All().counts.downloads;
  }
  return Enqueue(stream, [=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); });
}

Code MemsetD8Async(DevicePointer to, unsigned char value, std::size_t bytes, Stream stream) {
  if (const Code error = Fate(); error != kSuccess) return error;
  if (!IsDevice(to, bytes)) Misused("memory that is not the device's is set");
  return Enqueue(stream, [=] { std::memset(reinterpret_cast<void*>(to), value, bytes); });
}

Code EventCreate(Event* event, unsigned flags) {
  if (const Code error = Fate(); error != kSuccess) return error;
  *event = new EventTag();
  (*event)->epoch = All().epoch.load();
  (*event)->context = t_context;
  (*event)->life = t_context->life.load();
  (*event)->timed = (flags & kEventWithoutTiming) == 0;
  Keep(*event);
  const std::lock_guard lock(All().mutex);
  ++All().counts.events;
  return kSuccess;
}

Code EventDestroy(Event event) {  // work that completes it may still be queued
  if (const Code error = Called(); error != kSuccess) return error;
  const std::lock_guard lock(All().mutex);
  if (event->epoch == All().epoch.load()) --All().counts.events;
  return kSuccess;
}

Code EventRecord(Event event, Stream stream) {
  if (const Code error = Fate(); error != kSuccess) return error;
  if (event->is_gone()) return kInvalidHandle;
  const std::uint64_t number = event->recorded.fetch_add(1) + 1;
  bool lost = false;
  {
    const std::lock_guard lock(All().mutex);
    lost = ++All().recordings == All().faults.lost_event;
  }
  if (lost) {
    event->lost = true;
    return kSuccess;
  }
  return Enqueue(stream, [event, number] {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    event->at_ns.store(std::chrono::nanoseconds(now).count(), std::memory_order_relaxed);
    event->completed.store(number, std::memory_order_release);
  });
}

Code EventElapsedTime(float* milliseconds, Event begin, Event end) {
  if (const Code error = Called(); error != kSuccess) return error;
  if (!begin->timed || !end->timed) return kInvalidHandle;
  for (const Event event : {begin, end}) {
    if (event->completed.load(std::memory_order_acquire) != event->recorded.load()) return kNotReady;
  }
  if (const float told = All().faults.elapsed_ms; told != 0) {
    *milliseconds = told;
    return kSuccess;
  }
  *milliseconds = static_cast<float>(end->at_ns.load() - begin->at_ns.load()) / 1e6F;
  return kSuccess;
}

Code EventQuery(Event event) {
  if (const Code error = Called(); error != kSuccess) return error;
  State& all = All();
  bool hanging = false;
  {
    const std::lock_guard lock(all.mutex);
    ++all.counts.queries;
    hanging = all.faults.hanging_queries;
  }
  while (hanging) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::lock_guard lock(all.mutex);
    hanging = all.faults.hanging_queries;
  }
  if (t_context == nullptr) return kInvalidContext;
  if (const Code broken = t_context->broken.load(); broken != 0) return broken;
  if (event->is_gone()) return kInvalidHandle;
  if (t_capture_mode != kCaptureRelaxed) Misused("a query that another thread's capture forbids");
  return event->completed.load(std::memory_order_acquire) == event->recorded.load() ? kSuccess : kNotReady;
}

Code StreamCreate(Stream* stream, unsigned flags) {
  if (const Code error = Fate(); error != kSuccess) return error;
  if (flags != kStreamNonBlocking) return kInvalidValue;
  *stream = MakeStream(t_context);
  const std::lock_guard lock(All().mutex);
  ++All().counts.streams;
  return kSuccess;
}

Code StreamDestroy(Stream stream) {  // its thread ends when the double begins anew
  if (const Code error = Called(); error != kSuccess) return error;
  const std::lock_guard lock(All().mutex);
  if (stream->epoch == All().epoch.load()) --All().counts.streams;
  return kSuccess;
}

Code StreamIsCapturing(Stream stream, int* status) {
  if (const Code error = Called(); error != kSuccess) return error;
  if (t_context == nullptr) return kInvalidContext;
  if (const Code broken = t_context->broken.load(); broken != 0) return broken;
  if (All().faults.capturing_elsewhere && stream == nullptr) return 906;
  *status = All().faults.capturing ? 1 : 0;
  return kSuccess;
}

Code ThreadExchangeStreamCaptureMode(int* mode) {
  if (const Code error = Called(); error != kSuccess) return error;
  std::swap(*mode, t_capture_mode);
  return kSuccess;
}

struct Named {
  const char* name;
  void* function;
};
template <typename F>
void* Address(F* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

void* FindFunction(const char* name) {
  static const std::array kFunctions = {
      Named{"cuDriverGetVersion", Address(DriverGetVersion)},
      Named{"cuGetErrorName", Address(GetErrorName)},
      Named{"cuCtxGetCurrent", Address(CtxGetCurrent)},
      Named{"cuCtxGetDevice", Address(CtxGetDevice)},
      Named{"cuCtxGetId", Address(CtxGetId)},
      Named{"cuCtxPushCurrent", Address(CtxPushCurrent)},
      Named{"cuCtxPopCurrent", Address(CtxPopCurrent)},
      Named{"cuDeviceGet", Address(DeviceGet)},
      Named{"cuDeviceGetAttribute", Address(DeviceGetAttribute)},
      Named{"cuDevicePrimaryCtxGetState", Address(DevicePrimaryCtxGetState)},
      Named{"cuDevicePrimaryCtxRetain", Address(DevicePrimaryCtxRetain)},
      Named{"cuDevicePrimaryCtxRelease", Address(DevicePrimaryCtxRelease)},
      Named{"cuModuleLoadData", Address(ModuleLoadData)},
      Named{"cuModuleUnload", Address(ModuleUnload)},
      Named{"cuModuleGetFunction", Address(ModuleGetFunction)},
      Named{"cuLaunchKernel", Address(LaunchKernel)},
      Named{"cuMemPoolCreate", Address(MemPoolCreate)},
      Named{"cuMemPoolDestroy", Address(MemPoolDestroy)},
      Named{"cuMemPoolTrimTo", Address(MemPoolTrimTo)},
      Named{"cuMemGetInfo", Address(MemGetInfo)},
      Named{"cuMemAllocFromPoolAsync", Address(MemAllocFromPoolAsync)},
      Named{"cuMemFreeAsync", Address(MemFreeAsync)},
      Named{"cuMemHostAlloc", Address(MemHostAlloc)},
      Named{"cuMemFreeHost", Address(MemFreeHost)},
      Named{"cuMemcpyHtoDAsync", Address(MemcpyHtoDAsync)},
      Named{"cuMemcpyDtoHAsync", Address(MemcpyDtoHAsync)},
      Named{"cuMemsetD8Async", Address(MemsetD8Async)},
      Named{"cuEventCreate", Address(EventCreate)},
      Named{"cuEventDestroy", Address(EventDestroy)},
      Named{"cuEventRecord", Address(EventRecord)},
      Named{"cuEventQuery", Address(EventQuery)},
      Named{"cuEventElapsedTime", Address(EventElapsedTime)},
      Named{"cuStreamCreate", Address(StreamCreate)},
      Named{"cuStreamDestroy", Address(StreamDestroy)},
      Named{"cuStreamIsCapturing", Address(StreamIsCapturing)},
      Named{"cuThreadExchangeStreamCaptureMode", Address(ThreadExchangeStreamCaptureMode)},
  };
  for (const Named& named : kFunctions) {
    if (std::strcmp(named.name, name) == 0 && std::strcmp(name, All().faults.missing) != 0)
      return named.function;
  }
  return nullptr;
}

}  // namespace luff::device::testing
