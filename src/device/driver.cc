#include "device/driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <string>

namespace luff::device {
namespace {

using GetProcAddress = Code (*)(const char*, void**, int, std::uint64_t);
using GetProcAddress2 = Code (*)(const char*, void**, int, std::uint64_t, int*);

/// Looks symbols up as the driver wants it: by name and version of its interface. Exported names are not
/// asked for: some carry a version, and what carries a later one has arguments that this table does not know
/// (cuCtxGetDevice_v2 of CUDA 13). Only a driver that is too old to be used lacks that way; of it the version
/// is still to be told.
class Lookup {
 public:
  explicit Lookup(void* library)
      : library_(library),
        newer_(reinterpret_cast<GetProcAddress2>(dlsym(library, "cuGetProcAddress_v2"))),
        older_(reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress"))) {}

  template <typename F>
  void Find(const char* name, F** function) {
    FindLater(name, kOldestDriver, function);
    if (*function == nullptr && missing_.empty()) missing_ = name;
  }
  /// One that the path does without, of a later version of the interface.
  template <typename F>
  void FindLater(const char* name, int version, F** function) {
    void* found = nullptr;
    int status = 0;
    if (newer_ != nullptr) {
      if (newer_(name, &found, version, 0, &status) != kSuccess) found = nullptr;
    } else if (older_ != nullptr) {
      if (older_(name, &found, version, 0) != kSuccess) found = nullptr;
    } else {
      found = dlsym(library_, name);
    }
    *function = reinterpret_cast<F*>(found);
  }
  [[nodiscard]] const std::string& missing() const noexcept { return missing_; }

 private:
  void* library_;
  GetProcAddress2 newer_;
  GetProcAddress older_;
  std::string missing_;  // the first of them
};

}  // namespace

std::string Driver::NameOf(Code error) const {
  const char* name = nullptr;
  if (GetErrorName == nullptr || GetErrorName(error, &name) != kSuccess || name == nullptr) name = "an error";
  return std::string(name) + " (" + std::to_string(error) + ")";
}

Code Driver::Check(const KnownContext& context) const {
  if (CtxGetId == nullptr || context.number == 0) return kSuccess;
  std::uint64_t number = 0;
  if (const Code error = CtxGetId(context.handle, &number); error != kSuccess) return error;
  return number == context.number ? kSuccess : kContextDestroyed;
}

FoundDriver FindDriver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return {};
  auto driver = std::make_shared<Driver>();
  Lookup lookup(library);
  lookup.Find("cuDriverGetVersion", &driver->DriverGetVersion);
  lookup.Find("cuGetErrorName", &driver->GetErrorName);
  lookup.Find("cuCtxGetCurrent", &driver->CtxGetCurrent);
  lookup.Find("cuCtxGetDevice", &driver->CtxGetDevice);
  lookup.FindLater("cuCtxGetId", kContextsHaveNumbers, &driver->CtxGetId);
  lookup.Find("cuCtxPushCurrent", &driver->CtxPushCurrent);
  lookup.Find("cuCtxPopCurrent", &driver->CtxPopCurrent);
  lookup.Find("cuDeviceGet", &driver->DeviceGet);
  lookup.Find("cuDeviceGetAttribute", &driver->DeviceGetAttribute);
  lookup.Find("cuDevicePrimaryCtxGetState", &driver->DevicePrimaryCtxGetState);
  lookup.Find("cuDevicePrimaryCtxRetain", &driver->DevicePrimaryCtxRetain);
  lookup.Find("cuDevicePrimaryCtxRelease", &driver->DevicePrimaryCtxRelease);
  lookup.Find("cuModuleLoadData", &driver->ModuleLoadData);
  lookup.Find("cuModuleUnload", &driver->ModuleUnload);
  lookup.Find("cuModuleGetFunction", &driver->ModuleGetFunction);
  lookup.Find("cuLaunchKernel", &driver->LaunchKernel);
  lookup.Find("cuMemPoolCreate", &driver->MemPoolCreate);
  lookup.Find("cuMemPoolDestroy", &driver->MemPoolDestroy);
  lookup.Find("cuMemPoolTrimTo", &driver->MemPoolTrimTo);
  lookup.Find("cuMemGetInfo", &driver->MemGetInfo);
  lookup.Find("cuMemAllocFromPoolAsync", &driver->MemAllocFromPoolAsync);
  lookup.Find("cuMemFreeAsync", &driver->MemFreeAsync);
  lookup.Find("cuMemHostAlloc", &driver->MemHostAlloc);
  lookup.Find("cuMemFreeHost", &driver->MemFreeHost);
  lookup.Find("cuMemcpyHtoDAsync", &driver->MemcpyHtoDAsync);
  lookup.Find("cuMemcpyDtoHAsync", &driver->MemcpyDtoHAsync);
  lookup.Find("cuMemsetD8Async", &driver->MemsetD8Async);
  lookup.Find("cuEventCreate", &driver->EventCreate);
  lookup.Find("cuEventDestroy", &driver->EventDestroy);
  lookup.Find("cuEventRecord", &driver->EventRecord);
  lookup.Find("cuEventQuery", &driver->EventQuery);
  lookup.Find("cuEventElapsedTime", &driver->EventElapsedTime);
  lookup.Find("cuStreamCreate", &driver->StreamCreate);
  lookup.Find("cuStreamDestroy", &driver->StreamDestroy);
  lookup.Find("cuStreamIsCapturing", &driver->StreamIsCapturing);
  lookup.Find("cuThreadExchangeStreamCaptureMode", &driver->ThreadExchangeStreamCaptureMode);
  dlclose(library);  // the framework's own reference keeps it
  int version = 0;
  if (driver->DriverGetVersion != nullptr && driver->DriverGetVersion(&version) == kSuccess &&
      version < kOldestDriver) {
    return {nullptr, "the driver supports CUDA " + std::to_string(version / 1000) + "." +
                         std::to_string(version % 1000 / 10) +
                         "; 11.3 or later is needed: update the driver"};
  }
  if (!lookup.missing().empty()) {
    return {nullptr, "the driver lacks " + lookup.missing() + ": update the driver"};
  }
  return {std::move(driver), ""};
}

bool IsSticky(Code error) noexcept {
  // Uncorrectable memory and link errors, then what kernels do: illegal address, timeout, assertion, hardware
  // stack, illegal instruction, misaligned address, invalid address space, invalid program counter, failed
  // launch.
  static constexpr std::array kSticky = {214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721};
  return std::find(kSticky.begin(), kSticky.end(), error) != kSticky.end();
}

bool IsOfCapture(Code error) noexcept { return error >= 900 && error <= 908; }

}  // namespace luff::device
