// A library in the place of NVIDIA's: two GPUs whose readings the file named by LUFF_NVML_PLAN decides. Each
// line is "KEY VALUE": "fail NAME" makes a function fail, "slow MS" makes each utilisation take so long,
// "hang 1" never returns, "lose N" makes device N vanish after N calls of all, "gpm 1" has counters, "mig 1"
// divides the first GPU, "utilisation P", "reasons BITS", "clock MHZ", "processes N", "count N".
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>

namespace {

struct Plan {
  std::set<std::string> fails;
  std::map<std::string, long> numbers;
  long Get(const char* key, long otherwise) const {
    const auto at = numbers.find(key);
    return at == numbers.end() ? otherwise : at->second;
  }
};

Plan ReadPlan() {
  Plan plan;
  const char* path = std::getenv("LUFF_NVML_PLAN");
  std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "r");
  if (file == nullptr) return plan;
  char key[64], value[64];
  while (std::fscanf(file, "%63s %63s", key, value) == 2) {
    if (std::strcmp(key, "fail") == 0)
      plan.fails.insert(value);
    else
      plan.numbers[key] = std::atol(value);
  }
  std::fclose(file);
  return plan;
}

const Plan& ThePlan() {
  static const Plan plan = ReadPlan();
  return plan;
}

std::atomic<unsigned long long> g_energy{1'000'000};
std::atomic<long> g_calls{0};
int g_devices[8];

constexpr int kFailed = 999, kLost = 15;

int Outcome(const char* name, void* device = nullptr) {
  if (ThePlan().fails.contains(name)) return kFailed;
  const long lose = ThePlan().Get("lose", -1);
  if (device != nullptr && lose >= 0 && g_calls.fetch_add(1) >= lose && device == &g_devices[1]) return kLost;
  return 0;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int nvmlInitWithFlags(unsigned) { return Outcome("init"); }
EXPORT int nvmlShutdown() { return 0; }
EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(ThePlan().Get("count", 2));
  return Outcome("count");
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &g_devices[index % 8];
  return 0;
}
EXPORT int nvmlDeviceGetName(void*, char* text, unsigned size) {
  std::snprintf(text, size, "Double 100");
  return Outcome("name");
}
EXPORT int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  std::snprintf(text, size, "GPU-%d", static_cast<int>(static_cast<int*>(device) - g_devices));
  return 0;
}
struct Memory {
  unsigned long long total, free, used;
};
EXPORT int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  memory->total = 80ULL << 30U;
  memory->used = 14ULL << 30U;
  memory->free = memory->total - memory->used;
  return Outcome("memory", device);
}
struct Utilisation {
  unsigned gpu, memory;
};
EXPORT int nvmlDeviceGetUtilizationRates(void* device, Utilisation* use) {
  if (ThePlan().Get("hang", 0) != 0) {
    for (;;) pause();
  }
  if (const long ms = ThePlan().Get("slow", 0); ms > 0) usleep(static_cast<unsigned>(ms) * 1000);
  use->gpu = device == &g_devices[0] ? static_cast<unsigned>(ThePlan().Get("utilisation", 63))
                                     : static_cast<unsigned>(ThePlan().Get("utilisation1", 63));
  use->memory = 20;
  return Outcome("utilisation", device);
}
EXPORT int nvmlDeviceGetPowerUsage(void* device, unsigned* mw) {
  *mw = 310'000;
  return Outcome("power", device);
}
EXPORT int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* mj) {
  *mj = g_energy.fetch_add(155'000);
  return Outcome("energy", device);
}
EXPORT int nvmlDeviceGetClockInfo(void* device, unsigned kind, unsigned* mhz) {
  *mhz = kind == 1 ? static_cast<unsigned>(ThePlan().Get("clock", 1980)) : 2600;
  return Outcome("clock", device);
}
EXPORT int nvmlDeviceGetMaxClockInfo(void*, unsigned, unsigned* mhz) {
  *mhz = 1980;
  return 0;
}
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* bits) {
  *bits = static_cast<unsigned long long>(ThePlan().Get("reasons", 0));
  return Outcome("reasons", device);
}
EXPORT int nvmlDeviceGetTemperature(void* device, unsigned, unsigned* degrees) {
  *degrees = 62;
  return Outcome("temperature", device);
}
EXPORT int nvmlDeviceGetMigMode(void* device, unsigned* now, unsigned* later) {
  *now = *later = device == &g_devices[0] && ThePlan().Get("mig", 0) != 0 ? 1 : 0;
  return 0;
}
struct ProcessInfo {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, ProcessInfo*) {
  *count = static_cast<unsigned>(ThePlan().Get("processes", 1));
  return 0;
}
struct GpmSupport {
  unsigned version, supported;
};
EXPORT int nvmlGpmQueryDeviceSupport(void*, GpmSupport* support) {
  support->supported = ThePlan().Get("gpm", 0) != 0 ? 1 : 0;
  return 0;
}
EXPORT int nvmlGpmSampleAlloc(void** sample) {
  *sample = std::malloc(16);
  return 0;
}
EXPORT int nvmlGpmSampleFree(void* sample) {
  std::free(sample);
  return 0;
}
EXPORT int nvmlGpmSampleGet(void*, void*) { return Outcome("gpm"); }
struct GpmMetric {
  unsigned id;
  int result;
  double value;
  char *short_name, *long_name, *unit;
};
struct GpmRequest {
  unsigned version, count;
  void *first, *second;
  GpmMetric metrics[1];
};
EXPORT int nvmlGpmMetricsGet(GpmRequest* request) {
  for (unsigned i = 0; i < request->count; ++i) {
    GpmMetric& metric = *(&request->metrics[0] + i);
    metric.value = metric.id == 2 ? 41 : metric.id == 5 ? 12 : metric.id == 3 ? 1e300 : 5;
    metric.result = metric.id == 10 ? kFailed : 0;
  }
  return 0;
}
