// Exported names of the driver double, for programs that find functions by dlsym: what examples/cpp and
// tests/gpu/kernels.py call.
// Memory that they take is theirs until the process ends. Programs declare handles as `void*`, as they
// please.
#include <cstdint>
#include <cstring>

#include "device/driver.h"
#include "device/testing/double.h"
#include "device/testing/double_state.h"

namespace {

using luff::device::Context;
using luff::device::Driver;
using luff::device::Event;
using luff::device::Function;
using luff::device::Module;
using luff::device::Stream;
namespace testing = luff::device::testing;

/// Returns the double's function `name`, of the type that the table declares for it.
template <typename F>
F Find(const char* name, F Driver::* /*entry*/) {
  return reinterpret_cast<F>(luff::device::testing::FindFunction(name));
}

}  // namespace

extern "C" {
#define LUFF_EXPORT __attribute__((visibility("default")))

LUFF_EXPORT int cuInit(unsigned) { return 0; }
LUFF_EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  return Find("cuDevicePrimaryCtxRetain", &Driver::DevicePrimaryCtxRetain)(
      reinterpret_cast<Context*>(context), device);
}
LUFF_EXPORT int cuCtxPushCurrent_v2(void* context) {
  return Find("cuCtxPushCurrent", &Driver::CtxPushCurrent)(static_cast<Context>(context));
}
LUFF_EXPORT int cuStreamCreate(void** stream, unsigned flags) {
  return Find("cuStreamCreate", &Driver::StreamCreate)(reinterpret_cast<Stream*>(stream), flags);
}
LUFF_EXPORT int cuStreamSynchronize(void*) { return 0; }  // streams do their work at once
LUFF_EXPORT int cuMemAlloc_v2(std::uint64_t* at, std::size_t bytes) {
  *at = luff::device::testing::Allocate(bytes);
  return 0;
}
LUFF_EXPORT int cuMemHostAlloc(void** at, std::size_t bytes, unsigned flags) {
  return Find("cuMemHostAlloc", &Driver::MemHostAlloc)(at, bytes, flags);
}
LUFF_EXPORT int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void* stream) {
  return Find("cuMemcpyHtoDAsync", &Driver::MemcpyHtoDAsync)(to, from, bytes, static_cast<Stream>(stream));
}
LUFF_EXPORT int cuDeviceGet(int* device, int ordinal) {
  return Find("cuDeviceGet", &Driver::DeviceGet)(device, ordinal);
}
LUFF_EXPORT int cuCtxSetCurrent(void* context) {
  testing::t_context = static_cast<Context>(context);
  return 0;
}
LUFF_EXPORT int cuModuleLoadData(void** module, const void* image) {
  return Find("cuModuleLoadData", &Driver::ModuleLoadData)(reinterpret_cast<Module*>(module), image);
}
LUFF_EXPORT int cuModuleGetFunction(void** function, void* module, const char* name) {
  return Find("cuModuleGetFunction", &Driver::ModuleGetFunction)(reinterpret_cast<Function*>(function),
                                                                 static_cast<Module>(module), name);
}
LUFF_EXPORT int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads,
                               unsigned threads_y, unsigned threads_z, unsigned shared, void* stream,
                               void** parameters, void** more) {
  return Find("cuLaunchKernel", &Driver::LaunchKernel)(static_cast<Function>(function), x, y, z, threads,
                                                       threads_y, threads_z, shared,
                                                       static_cast<Stream>(stream), parameters, more);
}
LUFF_EXPORT int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return Find("cuMemGetInfo", &Driver::MemGetInfo)(free, total);
}
LUFF_EXPORT int cuMemFree_v2(std::uint64_t at) { return testing::Release(at) ? 0 : testing::kInvalidValue; }
LUFF_EXPORT int cuMemsetD8_v2(std::uint64_t at, unsigned char value, std::size_t bytes) {
  return Find("cuMemsetD8Async", &Driver::MemsetD8Async)(at, value, bytes, nullptr);
}
// Copies from and to memory that is not pinned, which wait until they are done.
LUFF_EXPORT int cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes) {
  if (!testing::IsDevice(to, bytes)) return testing::kInvalidValue;
  return testing::Enqueue(nullptr, [=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
}
LUFF_EXPORT int cuMemcpyDtoH_v2(void* to, std::uint64_t from, std::size_t bytes) {
  if (!testing::IsDevice(from, bytes)) return testing::kInvalidValue;
  return testing::Enqueue(nullptr, [=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); });
}
LUFF_EXPORT int cuEventCreate(void** event, unsigned flags) {
  return Find("cuEventCreate", &Driver::EventCreate)(reinterpret_cast<Event*>(event), flags);
}
LUFF_EXPORT int cuEventRecord(void* event, void* stream) {
  return Find("cuEventRecord", &Driver::EventRecord)(static_cast<Event>(event), static_cast<Stream>(stream));
}
LUFF_EXPORT int cuEventSynchronize(void*) { return 0; }
LUFF_EXPORT int cuEventElapsedTime(float* milliseconds, void* begin, void* end) {
  return Find("cuEventElapsedTime", &Driver::EventElapsedTime)(milliseconds, static_cast<Event>(begin),
                                                               static_cast<Event>(end));
}
#undef LUFF_EXPORT
}
