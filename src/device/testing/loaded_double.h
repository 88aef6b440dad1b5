#pragma once
#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <vector>

#include "device/testing/double.h"

namespace luff::device::testing {

/// Loads the double into this process, as a framework loads the driver, and begins it anew. The calling
/// thread gets the context of device 0.
inline const Controls& BeginDouble(const Faults& faults) {
  static const Controls controls = [] {
    void* library = dlopen(LUFF_DRIVER_DOUBLE, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) std::abort();
    Controls found;
    reinterpret_cast<void (*)(Controls*)>(dlsym(library, "luff_double_controls"))(&found);
    return found;
  }();
  controls.reset(&faults);
  controls.use_device(0);
  return controls;
}

/// Values in the memory of the current device.
template <typename T>
DevicePointer OnDevice(const Controls& controls, const std::vector<T>& values) {
  const DevicePointer at = controls.allocate(values.size() * sizeof(T));
  controls.write(at, values.data(), values.size() * sizeof(T));
  return at;
}

}  // namespace luff::device::testing
