// The driver double: see double.h.
#include "device/testing/double.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/kernels/arguments.h"
#include "device/testing/launch.h"

namespace luff::device {

// What the driver's opaque types are here.
struct ContextTag {
  int device = 0;
  int references = 0;
  std::atomic<Code> broken{0};
};
struct EventTag {
  std::atomic<std::uint64_t> recorded{0}, completed{0};
  bool lost = false;
};
struct ModuleTag {
  Context context;
};
struct FunctionTag {
  const char* name;
  std::size_t argument_bytes;
};
struct MemoryPoolTag {
  Context context;
};
struct StreamTag {
  Context context = nullptr;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool busy = false, ends = false;
  std::thread thread;
  std::mt19937_64 random;
};

namespace testing {
namespace {

constexpr std::size_t kArena = std::size_t{1} << 30;
constexpr int kDevices = 4;
constexpr Code kInvalidValue = 1, kInvalidContext = 201, kInvalidHandle = 400, kNotFound = 500;

/// Device memory: one range of addresses, which the host may read and write only while it is open.
class Arena {
 public:
  Arena()
      : base_(static_cast<char*>(
            mmap(nullptr, kArena, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {}
  DevicePointer Take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const std::size_t at = used_;
    used_ += (bytes + 511) / 512 * 512 + 512;
    if (used_ > kArena) std::abort();
    return reinterpret_cast<DevicePointer>(base_ + at);
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    if (open_++ == 0) Protect(PROT_READ | PROT_WRITE);
  }
  void Close() {
    const std::lock_guard lock(mutex_);
    if (--open_ == 0) Protect(PROT_NONE);
  }

 private:
  void Protect(int how) {
    if (mprotect(base_, kArena, how) != 0) std::abort();
  }
  char* base_;
  std::mutex mutex_;
  std::size_t used_ = 0;
  int open_ = 0;
};

struct OpenArena {
  explicit OpenArena(Arena* arena) : arena_(arena) { arena_->Open(); }
  ~OpenArena() { arena_->Close(); }
  OpenArena(const OpenArena&) = delete;
  OpenArena& operator=(const OpenArena&) = delete;
  Arena* arena_;
};

struct State {
  std::mutex mutex;
  Faults faults;
  Counts counts;
  std::string misuse;
  std::array<ContextTag, kDevices> contexts;
  std::map<DevicePointer, std::size_t> allocations;
  std::map<const char*, std::size_t> pinned;
  std::vector<std::unique_ptr<StreamTag>> streams;
  std::array<Stream, kDevices> default_streams{};
  int fallible = 0, launches_run = 0, recordings = 0;
  std::mt19937_64 random;
  pid_t process = getpid();
  bool adopts_all = false;  // for Python: all memory is the device's
};

Arena& Memory() {
  static auto* arena = new Arena();
  return *arena;
}
State& All() {
  static auto* state = new State();
  return *state;
}
thread_local Context t_context = nullptr;
thread_local std::vector<Context> t_stack;
thread_local int t_capture_mode = 0;

void Misused(const std::string& how) {
  State& all = All();
  const std::lock_guard lock(all.mutex);
  if (all.misuse.empty()) all.misuse = how;
}

/// The begin of each function of the driver.
void Called() {
  State& all = All();
  if (getpid() != all.process) {
    std::fputs("the driver was called in a forked child\n", stderr);
    std::abort();
  }
  const std::lock_guard lock(all.mutex);
  ++all.counts.calls;
}

/// What a call in the current context returns if it would otherwise succeed.
Code Fate() {
  Called();
  if (t_context == nullptr) return kInvalidContext;
  if (const Code broken = t_context->broken.load(); broken != 0) return broken;
  State& all = All();
  const std::lock_guard lock(all.mutex);
  ++all.fallible;
  return all.fallible == all.faults.failing_call ? all.faults.failure : kSuccess;
}

bool IsPinned(const void* at, std::size_t bytes) {
  State& all = All();
  const std::lock_guard lock(all.mutex);
  const char* from = static_cast<const char*>(at);
  auto found = all.pinned.upper_bound(from);
  if (found == all.pinned.begin()) return false;
  --found;
  return from >= found->first && from + bytes <= found->first + found->second;
}

bool IsDevice(DevicePointer at, std::size_t bytes) {
  State& all = All();
  const std::lock_guard lock(all.mutex);
  if (all.adopts_all) return true;
  auto found = all.allocations.upper_bound(at);
  if (found == all.allocations.begin()) return false;
  --found;
  return at + bytes <= found->first + found->second;
}

void RunOne(Stream stream, const std::function<void()>& work) {
  if (stream->context->broken.load() != 0) return;  // what follows a fault never runs
  const OpenArena open(&Memory());
  work();
}

void Serve(Stream stream) {
  State& all = All();
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(stream->mutex);
      stream->changed.wait(lock, [&] { return stream->ends || !stream->work.empty(); });
      if (stream->work.empty()) return;
      work = std::move(stream->work.front());
      stream->work.pop_front();
      stream->busy = true;
    }
    const auto longest = static_cast<std::uint64_t>(all.faults.longest_delay_us);
    if (longest != 0)
      std::this_thread::sleep_for(std::chrono::microseconds(stream->random() % longest));
    RunOne(stream, work);
    work = nullptr;
    {
      const std::lock_guard lock(stream->mutex);
      stream->busy = false;
    }
    stream->changed.notify_all();
  }
}

Stream MakeStream(Context context) {
  State& all = All();
  const std::lock_guard lock(all.mutex);
  auto stream = std::make_unique<StreamTag>();
  stream->context = context;
  stream->random.seed(all.faults.seed * 1000 + all.streams.size());
  if (all.faults.streams == Streams::kThreads) {
    Stream raw = stream.get();
    stream->thread = std::thread([raw] { Serve(raw); });
  }
  all.streams.push_back(std::move(stream));
  return all.streams.back().get();
}

/// The stream that a handle means: 0 is the default stream of the current context.
Stream Meant(Stream stream) {
  if (stream != nullptr) return stream;
  Stream* of = &All().default_streams[static_cast<std::size_t>(t_context->device)];
  if (*of == nullptr) *of = MakeStream(t_context);
  return *of;
}

Code Enqueue(Stream handle, std::function<void()> work) {
  const Stream stream = Meant(handle);
  if (stream->context != t_context) {
    Misused("a stream of another context");
    return kInvalidHandle;
  }
  if (All().faults.capturing) Misused("work in a stream that captures a graph");
  if (All().faults.streams == Streams::kInline) {
    RunOne(stream, work);
    return kSuccess;
  }
  {
    const std::lock_guard lock(stream->mutex);
    stream->work.push_back(std::move(work));
  }
  stream->changed.notify_all();
  return kSuccess;
}

// ---- What tests call ----

void Drain() {
  State& all = All();
  std::vector<Stream> streams;
  {
    const std::lock_guard lock(all.mutex);
    for (const auto& s : all.streams) streams.push_back(s.get());
  }
  for (Stream s : streams) {
    std::unique_lock lock(s->mutex);
    if (s->thread.joinable()) {
      s->changed.wait(lock, [&] { return s->work.empty() && !s->busy; });
    }
  }
}

void Reset(const Faults* faults) {
  State& all = All();
  for (const auto& s : all.streams) {
    {
      const std::lock_guard lock(s->mutex);
      s->work.clear();
      s->ends = true;
    }
    s->changed.notify_all();
    if (s->thread.joinable()) s->thread.join();
  }
  const std::lock_guard lock(all.mutex);
  all.streams.clear();
  all.default_streams = {};
  all.faults = *faults;
  all.counts = {};
  all.misuse.clear();
  all.allocations.clear();
  all.pinned.clear();
  all.fallible = all.launches_run = all.recordings = 0;
  all.random.seed(faults->seed);
  for (int i = 0; i < kDevices; ++i) {
    all.contexts[static_cast<std::size_t>(i)].device = i;
    all.contexts[static_cast<std::size_t>(i)].references = 0;
    all.contexts[static_cast<std::size_t>(i)].broken.store(0);
  }
  t_context = nullptr;
  t_stack.clear();
}

Counts Counted() {
  State& all = All();
  const std::lock_guard lock(all.mutex);
  return all.counts;
}

const char* Misuse() {
  State& all = All();
  const std::lock_guard lock(all.mutex);
  static std::string kept;
  kept = all.misuse;
  return kept.c_str();
}

DevicePointer Allocate(std::size_t bytes) {
  const DevicePointer at = Memory().Take(bytes);
  State& all = All();
  const std::lock_guard lock(all.mutex);
  all.allocations[at] = bytes;
  return at;
}

void Release(DevicePointer at) {
  State& all = All();
  const std::lock_guard lock(all.mutex);
  all.allocations.erase(at);
}

void Write(DevicePointer at, const void* from, std::size_t bytes) {
  const OpenArena open(&Memory());
  std::memcpy(reinterpret_cast<void*>(at), from, bytes);
}

void Read(void* to, DevicePointer at, std::size_t bytes) {
  const OpenArena open(&Memory());
  std::memcpy(to, reinterpret_cast<const void*>(at), bytes);
}

Stream NewStream(int device) {
  return MakeStream(&All().contexts[static_cast<std::size_t>(device)]);
}

void WriteLater(Stream stream, DevicePointer at, const void* from, std::size_t bytes) {
  std::vector<char> copy(bytes);
  std::memcpy(copy.data(), from, bytes);
  static_cast<void>(Enqueue(stream, [at, copy = std::move(copy)] {
    std::memcpy(reinterpret_cast<void*>(at), copy.data(), copy.size());
  }));
}

int Run(int pieces) {
  State& all = All();
  int done = 0;
  for (; done < pieces; ++done) {
    std::vector<Stream> ready;
    for (const auto& s : all.streams) {
      if (!s->work.empty()) ready.push_back(s.get());
    }
    if (ready.empty()) break;
    const Stream stream = ready[all.random() % ready.size()];
    const std::function<void()> work = std::move(stream->work.front());
    stream->work.pop_front();
    RunOne(stream, work);
  }
  return done;
}

void UseDevice(int device) {
  t_context = device < 0 ? nullptr : &All().contexts[static_cast<std::size_t>(device)];
  if (t_context != nullptr) t_context->references = std::max(t_context->references, 1);
}

void ReleaseQueries() {
  State& all = All();
  const std::lock_guard lock(all.mutex);
  all.faults.hanging_queries = false;
}

// ---- The driver ----

Code DriverGetVersion(int* version) {
  Called();
  *version = All().faults.version;
  return kSuccess;
}

Code GetErrorName(Code error, const char** name) {
  Called();
  switch (error) {
    case 2: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return kSuccess;
    case 700: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return kSuccess;
    case 719: *name = "CUDA_ERROR_LAUNCH_FAILED"; return kSuccess;
    default: *name = "CUDA_ERROR_UNKNOWN"; return kSuccess;
  }
}

Code CtxGetCurrent(Context* context) {
  Called();
  *context = t_context;
  return kSuccess;
}

Code CtxGetDevice(int* device) {
  Called();
  if (t_context == nullptr) return kInvalidContext;
  *device = t_context->device;
  return kSuccess;
}

Code CtxPushCurrent(Context context) {
  Called();
  t_stack.push_back(t_context);
  t_context = context;
  return kSuccess;
}

Code CtxPopCurrent(Context* context) {
  Called();
  if (t_stack.empty()) return kInvalidContext;
  *context = t_context;
  t_context = t_stack.back();
  t_stack.pop_back();
  return kSuccess;
}

Code DeviceGet(int* device, int ordinal) {
  Called();
  if (ordinal < 0 || ordinal >= All().faults.devices) return 101;
  *device = ordinal;
  return kSuccess;
}

Code DeviceGetAttribute(int* value, int attribute, int) {
  Called();
  *value = attribute == kMemoryPoolsAttribute ? (All().faults.no_pools ? 0 : 1)
           : attribute == kMajorAttribute     ? 9
                                              : 0;
  return kSuccess;
}

Code DevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  Called();
  *flags = 0;
  *active = All().contexts[static_cast<std::size_t>(device)].references > 0 ? 1 : 0;
  return kSuccess;
}

Code DevicePrimaryCtxRetain(Context* context, int device) {
  Called();
  *context = &All().contexts[static_cast<std::size_t>(device)];
  ++(*context)->references;
  return kSuccess;
}

Code DevicePrimaryCtxRelease(int device) {
  Called();
  --All().contexts[static_cast<std::size_t>(device)].references;
  return kSuccess;
}

Code ModuleLoadData(Module* module, const void* image) {
  if (const Code error = Fate(); error != kSuccess) return error;
  if (image == nullptr) return kInvalidValue;
  *module = new ModuleTag{t_context};
  const std::lock_guard lock(All().mutex);
  ++All().counts.modules;
  return kSuccess;
}

Code ModuleUnload(Module module) {
  Called();
  delete module;
  const std::lock_guard lock(All().mutex);
  --All().counts.modules;
  return kSuccess;
}

Code ModuleGetFunction(Function* function, Module, const char* name) {
  if (const Code error = Fate(); error != kSuccess) return error;
  static std::array<FunctionTag, 5> functions = {{{kStatisticsKernel, sizeof(StatisticsArguments)},
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
  *pool = new MemoryPoolTag{t_context};
  const std::lock_guard lock(All().mutex);
  ++All().counts.pools;
  return kSuccess;
}

Code MemPoolDestroy(MemoryPool pool) {
  Called();
  delete pool;
  const std::lock_guard lock(All().mutex);
  --All().counts.pools;
  return kSuccess;
}

Code MemAllocFromPoolAsync(DevicePointer* at, std::size_t bytes, MemoryPool, Stream) {
  if (const Code error = Fate(); error != kSuccess) return error;
  *at = Allocate(bytes);
  const std::lock_guard lock(All().mutex);
  ++All().counts.device_allocations;
  return kSuccess;
}

Code MemFreeAsync(DevicePointer at, Stream) {
  Called();
  Release(at);
  const std::lock_guard lock(All().mutex);
  --All().counts.device_allocations;
  return kSuccess;
}

Code MemHostAlloc(void** at, std::size_t bytes, unsigned) {
  if (const Code error = Fate(); error != kSuccess) return error;
  *at = std::malloc(bytes);
  const std::lock_guard lock(All().mutex);
  All().pinned[static_cast<const char*>(*at)] = bytes;
  ++All().counts.pinned_allocations;
  return kSuccess;
}

Code MemFreeHost(void* at) {
  Called();
  {
    const std::lock_guard lock(All().mutex);
    All().pinned.erase(static_cast<const char*>(at));
    --All().counts.pinned_allocations;
  }
  std::free(at);
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

Code EventCreate(Event* event, unsigned) {
  if (const Code error = Fate(); error != kSuccess) return error;
  *event = new EventTag();
  const std::lock_guard lock(All().mutex);
  ++All().counts.events;
  return kSuccess;
}

Code EventDestroy(Event event) {
  Called();
  // Work that completes it may still be queued: kept until the process ends.
  static_cast<void>(event);
  const std::lock_guard lock(All().mutex);
  static auto* dead = new std::vector<Event>();
  dead->push_back(event);
  --All().counts.events;
  return kSuccess;
}

Code EventRecord(Event event, Stream stream) {
  if (const Code error = Fate(); error != kSuccess) return error;
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
  return Enqueue(stream, [event, number] { event->completed.store(number, std::memory_order_release); });
}

Code EventQuery(Event event) {
  Called();
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

Code StreamDestroy(Stream) {  // its thread ends when the double begins anew
  Called();
  const std::lock_guard lock(All().mutex);
  --All().counts.streams;
  return kSuccess;
}

Code StreamIsCapturing(Stream, int* status) {
  Called();
  if (t_context == nullptr) return kInvalidContext;
  if (const Code broken = t_context->broken.load(); broken != 0) return broken;
  *status = All().faults.capturing ? 1 : 0;
  return kSuccess;
}

Code ThreadExchangeStreamCaptureMode(int* mode) {
  Called();
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

void* FindFunction(const char* name) {
  static const std::array kFunctions = {
      Named{"cuDriverGetVersion", Address(DriverGetVersion)},
      Named{"cuGetErrorName", Address(GetErrorName)},
      Named{"cuCtxGetCurrent", Address(CtxGetCurrent)},
      Named{"cuCtxGetDevice", Address(CtxGetDevice)},
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
      Named{"cuMemAllocFromPoolAsync", Address(MemAllocFromPoolAsync)},
      Named{"cuMemFreeAsync", Address(MemFreeAsync)},
      Named{"cuMemHostAlloc", Address(MemHostAlloc)},
      Named{"cuMemFreeHost", Address(MemFreeHost)},
      Named{"cuMemcpyHtoDAsync", Address(MemcpyHtoDAsync)},
      Named{"cuMemcpyDtoHAsync", Address(MemcpyDtoHAsync)},
      Named{"cuEventCreate", Address(EventCreate)},
      Named{"cuEventDestroy", Address(EventDestroy)},
      Named{"cuEventRecord", Address(EventRecord)},
      Named{"cuEventQuery", Address(EventQuery)},
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

}  // namespace
}  // namespace testing
}  // namespace luff::device

extern "C" {
__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char* name, void** function, int,
                                                               std::uint64_t, int* status) {
  *function = luff::device::testing::FindFunction(name);
  if (status != nullptr) *status = *function == nullptr ? 1 : 0;
  return *function == nullptr ? 500 : 0;
}

/// For Python: begins anew, with work done before calls return, and takes all memory of the host for the device's.
__attribute__((visibility("default"))) void luff_double_begin(const char* missing, int version, int failing_call) {
  using namespace luff::device::testing;
  Faults faults;
  std::snprintf(faults.missing, sizeof faults.missing, "%s", missing);
  if (version != 0) faults.version = version;
  faults.failing_call = failing_call;
  faults.failure = 400;
  Reset(&faults);
  All().adopts_all = true;
  UseDevice(0);
}

__attribute__((visibility("default"))) const char* luff_double_misuse() {
  return luff::device::testing::Misuse();
}

__attribute__((visibility("default"))) int luff_double_launches() {
  return luff::device::testing::Counted().launches;
}

__attribute__((visibility("default"))) void luff_double_controls(luff::device::testing::Controls* to) {
  using namespace luff::device::testing;
  *to = {Reset,      Counted,    Misuse, Allocate, Release,   Write,
         Read,       NewStream,  WriteLater, Run,  Drain,     UseDevice, ReleaseQueries};
}
}
