// The driver double: its memory, its streams, and what tests call. See double.h.
#include "device/testing/double.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include "device/testing/double_state.h"

namespace luff::device::testing {
namespace {

struct OpenArena {
  explicit OpenArena(Arena* arena) : arena_(arena) { arena_->Open(); }
  ~OpenArena() { arena_->Close(); }
  OpenArena(const OpenArena&) = delete;
  OpenArena& operator=(const OpenArena&) = delete;
  Arena* arena_;
};

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
    if (longest != 0) std::this_thread::sleep_for(std::chrono::microseconds(stream->random() % longest));
    RunOne(stream, work);
    work = nullptr;
    {
      const std::lock_guard lock(stream->mutex);
      stream->busy = false;
    }
    stream->changed.notify_all();
  }
}

}  // namespace

void Keep(void* made) {
  static std::mutex mutex;
  static auto* kept = new std::vector<void*>();
  const std::lock_guard lock(mutex);
  kept->push_back(made);
}

Arena& Memory() {
  static auto* arena = new Arena();
  return *arena;
}
State& All() {
  static auto* state = new State();
  return *state;
}

void Misused(const std::string& how) {
  State& all = All();
  const std::lock_guard lock(all.mutex);
  if (all.misuse.empty()) all.misuse = how;
}

Code Called() {
  State& all = All();
  if (getpid() != all.process) {
    std::fputs("the driver was called in a forked child\n", stderr);
    std::abort();
  }
  const std::lock_guard lock(all.mutex);
  return ++all.counts.calls == all.faults.failing_any ? all.faults.failure : kSuccess;
}

Code Fate() {
  if (const Code error = Called(); error != kSuccess) return error;
  if (t_context == nullptr) return kInvalidContext;
  if (const Code broken = t_context->broken.load(); broken != 0) return broken;
  State& all = All();
  const std::lock_guard lock(all.mutex);
  ++all.fallible;
  const int first = all.faults.failing_call;
  const bool fails = first != 0 && all.fallible >= first && all.fallible < first + all.faults.failing_calls;
  return fails ? all.faults.failure : kSuccess;
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

Stream MakeStream(Context context) {
  State& all = All();
  const std::lock_guard lock(all.mutex);
  auto stream = std::make_unique<StreamTag>();
  stream->context = context;
  stream->epoch = all.epoch.load();
  stream->life = context->life.load();
  stream->random.seed(all.faults.seed * 1000 + all.streams.size());
  if (all.faults.streams == Streams::kThreads) {
    Stream raw = stream.get();
    stream->thread = std::thread([raw] { Serve(raw); });
  }
  all.streams.push_back(std::move(stream));
  return all.streams.back().get();
}

namespace {

/// The stream that a handle means: 0 is the default stream of the current context.
Stream Meant(Stream stream) {
  if (stream != nullptr) return stream;
  Stream* of = &All().default_streams[static_cast<std::size_t>(t_context->device)];
  if (*of == nullptr) *of = MakeStream(t_context);
  return *of;
}

}  // namespace

Code Enqueue(Stream handle, std::function<void()> work) {
  const Stream stream = Meant(handle);
  if (stream->context != t_context) {
    Misused("a stream of another context");
    return kInvalidHandle;
  }
  if (stream->life != t_context->life.load()) return kInvalidHandle;
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

DevicePointer Allocate(std::size_t bytes) {
  const DevicePointer at = Memory().Take(bytes);
  State& all = All();
  const std::lock_guard lock(all.mutex);
  all.allocations[at] = bytes;
  return at;
}

bool Release(DevicePointer at) {
  State& all = All();
  const std::lock_guard lock(all.mutex);
  const auto found = all.allocations.find(at);
  if (found == all.allocations.end()) return false;
  Memory().Give(at, found->second);
  all.allocations.erase(found);
  return true;
}

namespace {

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
  for (auto& s : all.streams) Keep(s.release());
  all.streams.clear();
  ++all.epoch;
  all.default_streams = {};
  all.faults = *faults;
  all.counts = {};
  all.misuse.clear();
  Memory().Forget();
  all.allocations.clear();
  all.pinned.clear();  // threads of an earlier test may still use it: it stays until the process ends
  all.fallible = all.launches_run = all.recordings = 0;
  all.random.seed(faults->seed);
  for (int i = 0; i < kDevices; ++i) {
    all.contexts[static_cast<std::size_t>(i)].device = i;
    all.contexts[static_cast<std::size_t>(i)].references.store(0);
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

void Write(DevicePointer at, const void* from, std::size_t bytes) {
  const OpenArena open(&Memory());
  std::memcpy(reinterpret_cast<void*>(at), from, bytes);
}

void Read(void* to, DevicePointer at, std::size_t bytes) {
  const OpenArena open(&Memory());
  std::memcpy(to, reinterpret_cast<const void*>(at), bytes);
}

void Free(DevicePointer at) { static_cast<void>(Release(at)); }

Stream NewStream(int device) { return MakeStream(&All().contexts[static_cast<std::size_t>(device)]); }

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
    std::function<void()> work;
    Stream stream = nullptr;
    {
      const std::lock_guard lock(all.mutex);
      std::vector<Stream> ready;
      for (const auto& s : all.streams) {
        const std::lock_guard of_stream(s->mutex);
        if (!s->work.empty()) ready.push_back(s.get());
      }
      if (ready.empty()) break;
      stream = ready[all.random() % ready.size()];
      const std::lock_guard of_stream(stream->mutex);
      work = std::move(stream->work.front());
      stream->work.pop_front();
    }
    RunOne(stream, work);
  }
  return done;
}

void UseDevice(int device) {
  t_context = device < 0 ? nullptr : &All().contexts[static_cast<std::size_t>(device)];
  int none = 0;
  if (t_context != nullptr) t_context->references.compare_exchange_strong(none, 1);
}

/// The training resets its device: all handles and all memory are gone, and the next context has the address
/// of this one.
void ResetDevice(int device) {
  State& all = All();
  const std::lock_guard lock(all.mutex);
  ++all.contexts[static_cast<std::size_t>(device)].life;
  all.default_streams[static_cast<std::size_t>(device)] = nullptr;
  all.allocations.clear();
  for (const auto& [at, bytes] : all.pinned) {
    if (mprotect(const_cast<char*>(at), PagesOf(bytes), PROT_NONE) != 0) std::abort();
  }
  all.pinned.clear();
}

void Adopt(const void* at, std::size_t bytes) {
  State& all = All();
  const std::lock_guard lock(all.mutex);
  all.allocations[reinterpret_cast<DevicePointer>(at)] = bytes;
}

void DestroyContext(int device) {
  All().contexts[static_cast<std::size_t>(device)].broken.store(kContextDestroyed);
}

void ReleaseQueries() {
  State& all = All();
  const std::lock_guard lock(all.mutex);
  all.faults.hanging_queries = false;
}

}  // namespace
}  // namespace luff::device::testing

extern "C" {
__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char* name, void** function, int version,
                                                               std::uint64_t, int* status) {
  const bool known = version >= 12000 || std::strcmp(name, "cuCtxGetId") != 0;  // not in earlier interfaces
  *function = known ? luff::device::testing::FindFunction(name) : nullptr;
  if (status != nullptr) *status = *function == nullptr ? 1 : 0;
  return *function == nullptr ? 500 : 0;
}

/// For Python: begins anew, with work done before calls return, and takes all memory of the host for the
/// device's.
__attribute__((visibility("default"))) void luff_double_begin(const char* missing, int version,
                                                              int failing_call, int free_mib) {
  using namespace luff::device::testing;
  Faults faults;
  std::snprintf(faults.missing, sizeof faults.missing, "%s", missing);
  if (version != 0) faults.version = version;
  faults.failing_call = failing_call;
  faults.failure = 400;
  if (free_mib != 0) faults.free_memory = static_cast<std::uint64_t>(free_mib) << 20U;
  Reset(&faults);
  All().adopts_all = true;
  UseDevice(0);
}

/// For Python: the n-th call of any function from now on fails; 0: none does.
__attribute__((visibility("default"))) void luff_double_fail_at(int call, int failure) {
  using namespace luff::device::testing;
  State& all = All();
  const std::lock_guard lock(all.mutex);
  all.faults.failing_any = call == 0 ? 0 : all.counts.calls + call;
  all.faults.failure = failure;
}

__attribute__((visibility("default"))) int luff_double_calls() {
  return luff::device::testing::Counted().calls;
}

__attribute__((visibility("default"))) void luff_double_reset_device() {
  luff::device::testing::ResetDevice(0);
}

__attribute__((visibility("default"))) const char* luff_double_misuse() {
  return luff::device::testing::Misuse();
}

__attribute__((visibility("default"))) int luff_double_launches() {
  return luff::device::testing::Counted().launches;
}

__attribute__((visibility("default"))) void luff_double_controls(luff::device::testing::Controls* to) {
  using namespace luff::device::testing;
  *to = {Reset,      Counted, Misuse, Allocate,  Free,           Write,       Read,           NewStream,
         WriteLater, Run,     Drain,  UseDevice, ReleaseQueries, ResetDevice, DestroyContext, Adopt};
}
}
