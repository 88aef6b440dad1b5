// Exported names of the driver double, for programs that find functions by dlsym: what examples/cpp calls.
// Memory that they take is theirs until the process ends. Programs declare handles as `void*`, as they
// please.
#include <cstdint>

#include "device/driver.h"
#include "device/testing/double_state.h"

namespace {

using luff::device::Context;
using luff::device::Driver;
using luff::device::Stream;

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
#undef LUFF_EXPORT
}
