#include "luff/profile/device_trace.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/bounded_read.h"
#include "base/format.h"
#include "profile/trace_events.h"

namespace luff::profile {
namespace {

using Span = std::pair<double, double>;  // begin and end, in microseconds
constexpr double kToSeconds = 1e-6;
constexpr double kLaunchGapUs = 100;  // launching one operator of PyTorch takes the host 5 to 50 us
constexpr std::size_t kMostSyncs = 100;

bool Contains(std::string_view text, std::string_view word) {
  return text.find(word) != std::string_view::npos;
}

/// Sorts the spans, and makes one of those that touch.
std::vector<Span> Merged(std::vector<Span> spans) {
  std::ranges::sort(spans);
  std::vector<Span> out;
  for (const Span& one : spans) {
    if (!out.empty() && one.first <= out.back().second)
      out.back().second = std::max(out.back().second, one.second);
    else
      out.push_back(one);
  }
  return out;
}

double LengthOf(const std::vector<Span>& merged) {
  double sum = 0;
  for (const Span& one : merged) sum += one.second - one.first;
  return sum;
}

/// How much of `one` none of the merged spans covers.
double Outside(const Span& one, const std::vector<Span>& merged) {
  double left = one.second - one.first;
  auto at = std::ranges::lower_bound(merged, one.first, {}, &Span::second);
  for (; at != merged.end() && at->first < one.second; ++at)
    left -= std::max(0.0, std::min(one.second, at->second) - std::max(one.first, at->first));
  return std::max(left, 0.0);
}

/// A product or a convolution that rounds nothing, by the names that NVIDIA's libraries give their kernels.
bool IsFloat32Product(std::string_view name) {
  const bool product = Contains(name, "sgemm") || Contains(name, "f32f32_f32f32_f32") ||
                       Contains(name, "scudnn") || Contains(name, "convolve_sgemm");
  const bool cores = Contains(name, "tf32") || Contains(name, "tensorop") || Contains(name, "s1688") ||
                     Contains(name, "s16816") || Contains(name, "hmma");
  return product && !cores;
}

/// A product or a convolution of float32 values that tensor cores round to TF32.
bool IsTf32Product(std::string_view name) {
  return Contains(name, "tf32") || Contains(name, "tensorop_s1688gemm");
}

/// Whether a kernel computes with values of 16 or 8 bits; also whether its name leaves open of how many.
bool MayBeNarrow(std::string_view name) {
  constexpr std::string_view kWords[] = {"f16",   "fp16",   "loat16", "Half", "half", "16816",
                                         "h1688", "h884",   "hgemm",  "hmma", "e4m3", "e5m2",
                                         "fp8",   "Float8", "flash_", "nvjet"};
  return std::ranges::any_of(kWords, [&](std::string_view word) { return Contains(name, word); });
}

bool IsWait(std::string_view call) { return Contains(call, "Synchronize"); }

/// The innermost event of a category around a moment of a thread.
class Around {
 public:
  Around(const RawTrace& trace, TraceCategory category) {
    for (const RawTraceEvent& event : trace.events) {
      if (event.category == category) by_thread_[event.thread].push_back(&event);
    }
    for (auto& [thread, events] : by_thread_) {
      std::ranges::stable_sort(events, [](const RawTraceEvent* a, const RawTraceEvent* b) {
        return a->begin != b->begin ? a->begin < b->begin : a->length > b->length;
      });
    }
  }
  /// Null if there is none. Looks back over at most 256 events: there may be millions of waits.
  [[nodiscard]] const RawTraceEvent* Of(std::uint64_t thread, double begin, double end) const {
    constexpr int kMostLooks = 256;
    const auto at = by_thread_.find(thread);
    if (at == by_thread_.end()) return nullptr;
    const auto& events = at->second;
    auto next =
        std::ranges::upper_bound(events, begin, {}, [](const RawTraceEvent* event) { return event->begin; });
    for (int i = 0; i < kMostLooks && next != events.begin(); ++i) {
      --next;
      if ((*next)->end() >= end) return *next;
    }
    return nullptr;
  }

 private:
  std::unordered_map<std::uint64_t, std::vector<const RawTraceEvent*>> by_thread_;
};

struct Wait {
  const RawTraceEvent* call;
  std::size_t group;
};

/// The waits of the host, by what it does there; sorted by their begin.
std::vector<Wait> WaitsOf(const RawTrace& trace, DeviceTrace* out) {
  const Around operators(trace, TraceCategory::kOperator), functions(trace, TraceCategory::kPython);
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::size_t> groups;
  std::vector<Wait> waits;
  for (const RawTraceEvent& event : trace.events) {
    if (event.category != TraceCategory::kRuntime || !IsWait(trace.names.at(event.name))) continue;
    const RawTraceEvent* inside = operators.Of(event.thread, event.begin, event.end());
    const RawTraceEvent* where = functions.Of(event.thread, event.begin, event.end());
    const auto name = [](const RawTraceEvent* one) { return one == nullptr ? 0 : one->name; };
    const auto [group, fresh] =
        groups.try_emplace({event.name, name(inside), name(where)}, out->syncs.size());
    if (fresh) {
      DeviceTrace::Sync& sync = out->syncs.emplace_back();
      sync.call = trace.names.at(event.name);
      if (inside != nullptr) sync.inside = trace.names.at(inside->name);
      if (where != nullptr) sync.where = trace.names.at(where->name);
    }
    DeviceTrace::Sync& sync = out->syncs[group->second];
    ++sync.calls;
    sync.wait_s += event.length * kToSeconds;
    waits.push_back({&event, group->second});
  }
  std::ranges::sort(waits, {}, [](const Wait& wait) { return wait.call->end(); });
  return waits;
}

/// Gaps between the tasks of the devices, by what the host did in them.
void AddGaps(const std::vector<const RawTraceEvent*>& tasks,
             const std::unordered_map<std::uint64_t, double>& launched, const std::vector<Wait>& waits,
             DeviceTrace* out) {
  double until = tasks.front()->begin;
  for (const RawTraceEvent* task : tasks) {
    const double idle = task->begin - until;
    const auto launch = launched.find(task->correlation);
    if (idle > 0 && launch != launched.end() && launch->second > until) {
      // The host waited for what ended at the gap's begin, and launched the next task afterwards.
      auto wait = std::ranges::lower_bound(waits, until, {}, [](const Wait& one) { return one.call->end(); });
      if (wait != waits.end() && wait->call->end() <= launch->second && wait->call->begin < until) {
        out->syncs[wait->group].idle_s += idle * kToSeconds;
        out->idle_sync_s += idle * kToSeconds;
      } else if (idle < kLaunchGapUs) {
        out->idle_launch_s += idle * kToSeconds;
      }
    }
    until = std::max(until, task->end());
  }
}

/// Their time together, and the name of the one that took most of it.
void AddProducts(const std::map<std::uint32_t, double>& products, const TraceNames& names, double* seconds,
                 std::string* most_of) {
  for (const auto& [name, its] : products) *seconds += its;
  const auto most = std::ranges::max_element(products, {}, [](const auto& one) { return one.second; });
  if (most != products.end()) *most_of = names.at(most->first);
}

DeviceTrace DevicesOf(const RawTrace& trace) {
  DeviceTrace out;
  out.capability = trace.capability;
  out.xplane = trace.xplane;
  std::vector<const RawTraceEvent*> tasks;
  std::vector<Span> busy, kernels, others;  // others: kernels that are no collectives
  std::vector<double> lengths;
  std::unordered_map<std::uint64_t, double> launched;
  std::map<std::uint32_t, double> float32, tf32;
  for (const RawTraceEvent& event : trace.events) {
    const std::string& name = trace.names.at(event.name);
    const Span span{event.begin, event.end()};
    out.stacks |= event.category == TraceCategory::kPython;
    if (event.category == TraceCategory::kRuntime) {
      if (event.correlation != 0) launched.emplace(event.correlation, event.begin);
      if (name == "cudaMalloc" || name == "cudaFree" || name == "hipMalloc" || name == "hipFree") {
        ++out.allocations;
        out.frees += name.ends_with("Free") ? 1 : 0;
        out.allocation_s += event.length * kToSeconds;
      }
    }
    if (!event.of_device()) continue;
    tasks.push_back(&event);
    busy.push_back(span);
    if (event.category != TraceCategory::kKernel) continue;
    kernels.push_back(span);
    lengths.push_back(event.length);
    if (name.starts_with("nccl"))
      out.collective_s += event.length * kToSeconds;
    else
      others.push_back(span);
    if (IsFloat32Product(name))
      float32[event.name] += event.length * kToSeconds;
    else if (IsTf32Product(name))
      tf32[event.name] += event.length * kToSeconds;
    out.narrow = out.narrow || MayBeNarrow(name);
  }
  if (tasks.empty()) return out;
  std::ranges::sort(tasks, {}, &RawTraceEvent::begin);
  const std::vector<Span> all = Merged(std::move(busy));
  out.span_s = (all.back().second - all.front().first) * kToSeconds;
  out.busy_s = LengthOf(all) * kToSeconds;
  out.kernels = lengths.size();
  if (!lengths.empty()) {
    const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
    std::ranges::nth_element(lengths, middle);
    out.kernel_median_s = *middle * kToSeconds;
  }
  AddProducts(float32, trace.names, &out.float32_s, &out.float32_of);
  AddProducts(tf32, trace.names, &out.tf32_s, &out.tf32_of);
  kernels = Merged(std::move(kernels));
  others = Merged(std::move(others));
  for (const RawTraceEvent* task : tasks) {
    const std::string& name = trace.names.at(task->name);
    const Span span{task->begin, task->end()};
    if (task->category == TraceCategory::kKernel && name.starts_with("nccl"))
      out.exposed_s += Outside(span, others) * kToSeconds;
    if (task->category != TraceCategory::kCopy || !Contains(name, "HtoD")) continue;
    const bool pageable = Contains(name, "Pageable");
    if (!pageable && !Contains(name, "Pinned")) continue;
    DeviceTrace::Copies& copies = pageable ? out.pageable : out.pinned;
    ++copies.calls;
    copies.bytes += task->bytes;
    copies.seconds += task->length * kToSeconds;
    copies.alone_s += Outside(span, kernels) * kToSeconds;
  }
  AddGaps(tasks, launched, WaitsOf(trace, &out), &out);
  std::ranges::stable_sort(out.syncs, [](const DeviceTrace::Sync& a, const DeviceTrace::Sync& b) {
    return a.idle_s != b.idle_s ? a.idle_s > b.idle_s : a.wait_s > b.wait_s;
  });
  if (out.syncs.size() > kMostSyncs) out.syncs.resize(kMostSyncs);
  return out;
}

}  // namespace

Result<DeviceTrace> DevicesOfTraceUntrusted(std::string_view bytes) {
  RawTrace trace;
  LUFF_RETURN_IF_ERROR(ReadTraceUntrusted(bytes, &trace));
  return DevicesOf(trace);
}

Result<DeviceTrace> DevicesOfTrace(const std::string& run, std::uint32_t worker, const TraceFile& trace,
                                   std::uint64_t most_bytes) {
  LUFF_ASSIGN_OR_RETURN(const std::string bytes,
                        ReadRegular(fmt::format("{}/w{:04}/{}", run, worker, trace.file), most_bytes, 3));
  return DevicesOfTraceUntrusted(bytes);
}

}  // namespace luff::profile
