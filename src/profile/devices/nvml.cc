#include "profile/devices/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>

// The interface is public (nvml.h of the CUDA toolkit); numbers and layouts are those of its documentation.
namespace luff::profile {
namespace {

using Handle = void*;
using Return = int;  // 0: success
constexpr unsigned kInitNoGpus = 1;
constexpr unsigned kMaxDevices = 64;
constexpr unsigned kClockSm = 1, kClockMemory = 2;
constexpr unsigned kUncorrected = 1, kVolatile = 0;
constexpr std::int64_t kMega = 1'000'000;

struct Memory {
  unsigned long long total, free, used;
};
struct Utilisation {
  unsigned gpu, memory;  // per cent
};
struct GpmSupport {
  unsigned version, supported;
};
struct GpmMetric {
  unsigned id;
  Return result;
  double value;
  struct {
    char *short_name, *long_name, *unit;
  } info;
};
static_assert(sizeof(GpmMetric) == 40);
constexpr std::size_t kGpmMetrics = 512;  // more than any version of the library has
struct GpmRequest {
  unsigned version, count;
  void *first, *second;
  GpmMetric metrics[kGpmMetrics];
};
constexpr unsigned kSmActive = 2, kSmOccupancy = 3, kTensorActive = 5, kDramActive = 10, kPcieSent = 20,
                   kPcieReceived = 21;  // the latter two in MiB a second

struct ProcessInfo {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

std::optional<std::int64_t> Within(double value, double factor) {
  const double scaled = value * factor;
  if (!std::isfinite(scaled) || scaled < 0 || scaled > 1e18) return std::nullopt;
  return static_cast<std::int64_t>(scaled);
}
std::optional<std::int64_t> Within(unsigned long long value, unsigned long long factor) {
  if (value > (1ULL << 60U) / factor) return std::nullopt;
  return static_cast<std::int64_t>(value * factor);
}

}  // namespace

struct Nvml::Calls {
  Return (*init)(unsigned) = nullptr;
  Return (*shutdown)() = nullptr;
  Return (*count)(unsigned*) = nullptr;
  Return (*handle)(unsigned, Handle*) = nullptr;
  Return (*name)(Handle, char*, unsigned) = nullptr;
  Return (*uuid)(Handle, char*, unsigned) = nullptr;
  Return (*memory)(Handle, Memory*) = nullptr;
  Return (*utilisation)(Handle, Utilisation*) = nullptr;
  Return (*power)(Handle, unsigned*) = nullptr;
  Return (*energy)(Handle, unsigned long long*) = nullptr;
  Return (*clock)(Handle, unsigned, unsigned*) = nullptr;
  Return (*max_clock)(Handle, unsigned, unsigned*) = nullptr;
  Return (*reasons)(Handle, unsigned long long*) = nullptr;
  Return (*temperature)(Handle, unsigned, unsigned*) = nullptr;
  Return (*mig)(Handle, unsigned*, unsigned*) = nullptr;
  Return (*ecc)(Handle, unsigned, unsigned, unsigned long long*) = nullptr;
  Return (*replays)(Handle, unsigned*) = nullptr;
  Return (*width)(Handle, unsigned*) = nullptr;
  Return (*processes)(Handle, unsigned*, ProcessInfo*) = nullptr;
  Return (*gpm_support)(Handle, GpmSupport*) = nullptr;
  Return (*gpm_alloc)(void**) = nullptr;
  Return (*gpm_free)(void*) = nullptr;
  Return (*gpm_sample)(Handle, void*) = nullptr;
  Return (*gpm_metrics)(GpmRequest*) = nullptr;
};

struct Nvml::Device {
  Handle handle = nullptr;
  std::optional<std::int64_t> max_sm_clock_khz;
  bool mig = false;
  void *before = nullptr, *now = nullptr;  // GPM
  bool gpm = false, sampled = false;
};

Nvml::Nvml() = default;

Nvml::~Nvml() {
  if (calls_ != nullptr) {
    for (const auto& device : handles_) {
      for (void* sample : {device->before, device->now}) {
        if (sample != nullptr && calls_->gpm_free != nullptr) (void)calls_->gpm_free(sample);
      }
    }
    if (calls_->shutdown != nullptr) (void)calls_->shutdown();
  }
  // The library stays: drivers have threads and handlers of their own.
}

bool Nvml::Open(const std::string& library) {
  library_ = dlopen(library.empty() ? "libnvidia-ml.so.1" : library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) {
    why_ = library.empty() ? "no NVIDIA driver is installed (libnvidia-ml.so.1)"
                           : "it cannot be loaded: " + library;
    return false;
  }
  calls_ = std::make_unique<Calls>();
  const auto find = [&](auto* to, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (void* symbol = dlsym(library_, name); symbol != nullptr) {
        std::memcpy(to, &symbol, sizeof(symbol));
        return;
      }
    }
  };
  Calls& c = *calls_;
  find(&c.init, {"nvmlInitWithFlags"});
  find(&c.shutdown, {"nvmlShutdown"});
  find(&c.count, {"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"});
  find(&c.handle, {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"});
  find(&c.name, {"nvmlDeviceGetName"});
  find(&c.uuid, {"nvmlDeviceGetUUID"});
  find(&c.memory, {"nvmlDeviceGetMemoryInfo"});
  find(&c.utilisation, {"nvmlDeviceGetUtilizationRates"});
  find(&c.power, {"nvmlDeviceGetPowerUsage"});
  find(&c.energy, {"nvmlDeviceGetTotalEnergyConsumption"});
  find(&c.clock, {"nvmlDeviceGetClockInfo"});
  find(&c.max_clock, {"nvmlDeviceGetMaxClockInfo"});
  find(&c.reasons, {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"});
  find(&c.temperature, {"nvmlDeviceGetTemperature"});
  find(&c.mig, {"nvmlDeviceGetMigMode"});
  find(&c.ecc, {"nvmlDeviceGetTotalEccErrors"});
  find(&c.replays, {"nvmlDeviceGetPcieReplayCounter"});
  find(&c.width, {"nvmlDeviceGetCurrPcieLinkWidth"});
  find(&c.processes, {"nvmlDeviceGetComputeRunningProcesses_v3"});
  find(&c.gpm_support, {"nvmlGpmQueryDeviceSupport"});
  find(&c.gpm_alloc, {"nvmlGpmSampleAlloc"});
  find(&c.gpm_free, {"nvmlGpmSampleFree"});
  find(&c.gpm_sample, {"nvmlGpmSampleGet"});
  find(&c.gpm_metrics, {"nvmlGpmMetricsGet"});
  if (c.init == nullptr || c.count == nullptr || c.handle == nullptr) {
    why_ = "the driver's library lacks functions that every version has";
    return false;
  }
  if (const Return code = c.init(kInitNoGpus); code != 0) {
    why_ = "the driver refused (NVML error " + std::to_string(code) + ")";
    c.shutdown = nullptr;
    return false;
  }
  unsigned count = 0;
  if (const Return code = c.count(&count); code != 0 || count == 0) {
    why_ = code != 0 ? "the driver counts no devices (NVML error " + std::to_string(code) + ")"
                     : "the driver sees no GPU";
    return false;
  }
  for (unsigned i = 0; i < std::min(count, kMaxDevices); ++i) {
    auto device = std::make_unique<Device>();
    GpuInfo info;
    if (c.handle(i, &device->handle) != 0) device->handle = nullptr;
    if (device->handle != nullptr) {
      char text[128] = {};
      if (c.name != nullptr && c.name(device->handle, text, sizeof(text) - 1) == 0) info.name = text;
      std::memset(text, 0, sizeof(text));
      if (c.uuid != nullptr && c.uuid(device->handle, text, sizeof(text) - 1) == 0) info.uuid = text;
      Memory memory{};
      if (c.memory != nullptr && c.memory(device->handle, &memory) == 0)
        info.memory_total = Within(memory.total, 1ULL);
      unsigned now = 0, later = 0;
      if (c.mig != nullptr && c.mig(device->handle, &now, &later) == 0) info.mig = device->mig = now == 1;
      unsigned mhz = 0;
      if (c.max_clock != nullptr && c.max_clock(device->handle, kClockSm, &mhz) == 0)
        device->max_sm_clock_khz = Within(mhz, 1000ULL);
      GpmSupport support{1, 0};
      device->gpm = !device->mig && c.gpm_support != nullptr && c.gpm_alloc != nullptr &&
                    c.gpm_sample != nullptr && c.gpm_metrics != nullptr &&
                    c.gpm_support(device->handle, &support) == 0 && support.supported == 1 &&
                    c.gpm_alloc(&device->before) == 0 && c.gpm_alloc(&device->now) == 0;
    }
    handles_.push_back(std::move(device));
    infos_.push_back(std::move(info));
  }
  return true;
}

GpuReading Nvml::Read(std::size_t at, bool slow, bool once) {
  GpuReading reading;
  if (at >= handles_.size() || handles_[at]->handle == nullptr) return reading;
  Device& device = *handles_[at];
  const Calls& c = *calls_;
  Utilisation use{};
  // Of a GPU that is divided, nobody knows it.
  if (!device.mig && c.utilisation != nullptr && c.utilisation(device.handle, &use) == 0) {
    reading.utilisation = Within(use.gpu, 10'000ULL);
    reading.memory_utilisation = Within(use.memory, 10'000ULL);
  }
  Memory memory{};
  if (c.memory != nullptr && c.memory(device.handle, &memory) == 0) {
    reading.memory_used = Within(memory.used, 1ULL);
    reading.memory_total = Within(memory.total, 1ULL);
  }
  unsigned value = 0;
  unsigned long long wide = 0;
  if (c.power != nullptr && c.power(device.handle, &value) == 0) reading.power_mw = value;
  if (c.energy != nullptr && c.energy(device.handle, &wide) == 0) reading.energy_uj = Within(wide, 1000ULL);
  if (c.clock != nullptr && c.clock(device.handle, kClockSm, &value) == 0)
    reading.sm_clock_khz = Within(value, 1000ULL);
  if (c.clock != nullptr && c.clock(device.handle, kClockMemory, &value) == 0)
    reading.memory_clock_khz = Within(value, 1000ULL);
  reading.max_sm_clock_khz = device.max_sm_clock_khz;
  if (c.reasons != nullptr && c.reasons(device.handle, &wide) == 0)
    reading.clock_reasons = Within(wide, 1ULL);
  if (c.temperature != nullptr && c.temperature(device.handle, 0, &value) == 0)
    reading.temperature = Within(value, 1000ULL);
  if (device.gpm) AskGpm(&device, &reading);
  if (slow) {
    if (c.ecc != nullptr && c.ecc(device.handle, kUncorrected, kVolatile, &wide) == 0)
      reading.ecc_errors = Within(wide, 1ULL);
    if (c.replays != nullptr && c.replays(device.handle, &value) == 0) reading.pcie_replays = value;
    if (c.width != nullptr && c.width(device.handle, &value) == 0) reading.pcie_width = value;
  }
  if (once && c.processes != nullptr) {
    std::array<ProcessInfo, 64> list{};
    unsigned count = list.size();
    if (c.processes(device.handle, &count, list.data()) == 0) reading.processes = count;
  }
  return reading;
}

void Nvml::AskGpm(Device* device, GpuReading* reading) {
  std::swap(device->before, device->now);
  if (calls_->gpm_sample(device->handle, device->now) != 0) {
    device->sampled = false;
    return;
  }
  if (!std::exchange(device->sampled, true)) return;  // it takes two
  const auto asked = std::make_unique<GpmRequest>();  // 20 KiB
  GpmRequest& request = *asked;
  request.version = 1;
  request.first = device->before;
  request.second = device->now;
  for (const unsigned id : {kSmActive, kSmOccupancy, kTensorActive, kDramActive, kPcieSent, kPcieReceived})
    request.metrics[request.count++].id = id;
  if (calls_->gpm_metrics(&request) != 0) return;
  constexpr double kPerCent = static_cast<double>(kMega) / 100;
  constexpr double kMiB = 1 << 20;
  for (const GpmMetric& metric :
       std::span(request.metrics).first(std::min<std::size_t>(request.count, kGpmMetrics))) {
    if (metric.result != 0) continue;
    switch (metric.id) {
      case kSmActive: reading->sm_active = Within(metric.value, kPerCent); break;
      case kSmOccupancy: reading->sm_occupancy = Within(metric.value, kPerCent); break;
      case kTensorActive: reading->tensor_active = Within(metric.value, kPerCent); break;
      case kDramActive: reading->dram_active = Within(metric.value, kPerCent); break;
      case kPcieSent: reading->pcie_sent = Within(metric.value, kMiB); break;
      case kPcieReceived: reading->pcie_received = Within(metric.value, kMiB); break;
      default: break;
    }
  }
}

}  // namespace luff::profile
