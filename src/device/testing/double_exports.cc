// Exported names of the driver double, for programs that find functions by dlsym: what examples/cpp calls.
// Memory that they take is theirs until the process ends.
#include <cstdint>

#include "device/testing/double_state.h"

namespace {

template <typename F>
F* Function(const char* name) {
  return reinterpret_cast<F*>(luff::device::testing::FindFunction(name));
}

}  // namespace

extern "C" {
#define LUFF_EXPORT __attribute__((visibility("default")))

LUFF_EXPORT int cuInit(unsigned) { return 0; }
LUFF_EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  return Function<int(void**, int)>("cuDevicePrimaryCtxRetain")(context, device);
}
LUFF_EXPORT int cuCtxPushCurrent_v2(void* context) {
  return Function<int(void*)>("cuCtxPushCurrent")(context);
}
LUFF_EXPORT int cuStreamCreate(void** stream, unsigned flags) {
  return Function<int(void**, unsigned)>("cuStreamCreate")(stream, flags);
}
LUFF_EXPORT int cuStreamSynchronize(void*) { return 0; }  // streams do their work at once
LUFF_EXPORT int cuMemAlloc_v2(std::uint64_t* at, std::size_t bytes) {
  *at = luff::device::testing::Allocate(bytes);
  return 0;
}
LUFF_EXPORT int cuMemHostAlloc(void** at, std::size_t bytes, unsigned flags) {
  return Function<int(void**, std::size_t, unsigned)>("cuMemHostAlloc")(at, bytes, flags);
}
LUFF_EXPORT int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void* stream) {
  return Function<int(std::uint64_t, const void*, std::size_t, void*)>("cuMemcpyHtoDAsync")(to, from, bytes,
                                                                                            stream);
}
#undef LUFF_EXPORT
}
