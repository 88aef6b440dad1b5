#include "luff/profile/kineto_trace.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/json.h"
#include "luff/query/run_pieces.h"
#include "profile/trace_events.h"

namespace luff::profile {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostShown = 100, kMostFiles = 64;
constexpr std::int64_t kMostNumber = std::int64_t{1} << 62, kMostSteps = 1'000'000;
constexpr double kMicro = 1e-6;

using Event = RawTraceEvent;
using Category = TraceCategory;
using Names = TraceNames;

/// Sums by name.
class OperatorTimes {
 public:
  void Add(std::uint32_t name, double self_us, double total_us) {
    OperatorTime& one = by_name_[name];
    ++one.calls;
    one.self_s += self_us * kMicro;
    one.total_s += total_us * kMicro;
  }
  [[nodiscard]] std::vector<OperatorTime> Sorted(const Names& names) {
    std::vector<OperatorTime> out;
    for (auto& [name, one] : by_name_) {
      one.name = names.at(name);
      out.push_back(std::move(one));
    }
    std::ranges::stable_sort(out, [](const OperatorTime& a, const OperatorTime& b) {
      return a.self_s != b.self_s ? a.self_s > b.self_s : a.name < b.name;
    });
    if (out.size() > kMostShown) out.resize(kMostShown);
    return out;
  }

 private:
  std::map<std::uint32_t, OperatorTime> by_name_;
};

std::vector<Event> Of(const std::vector<Event>& events, Category category) {
  std::vector<Event> out;
  std::ranges::copy_if(events, std::back_inserter(out),
                       [&](const Event& event) { return event.category == category; });
  // What contains others comes before them.
  std::ranges::stable_sort(out, [](const Event& a, const Event& b) {
    if (a.thread != b.thread) return a.thread < b.thread;
    return a.begin != b.begin ? a.begin < b.begin : a.length > b.length;
  });
  return out;
}

/// Calls `use(event, self)` for each, where `self` is its time without the events directly inside it.
void Nested(const std::vector<Event>& events, auto&& use) {
  std::vector<std::pair<const Event*, double>> open;  // with the time of what is inside
  const auto close = [&] {
    const auto [event, inside] = open.back();
    open.pop_back();
    use(*event, std::max(event->length - inside, 0.0));
  };
  for (const Event& event : events) {
    while (!open.empty() &&
           (open.back().first->thread != event.thread || open.back().first->end() <= event.begin))
      close();
    if (!open.empty()) open.back().second += event.length;
    open.emplace_back(&event, 0.0);
  }
  while (!open.empty()) close();
}

/// The length of all intervals together, in microseconds; sorts them.
double Union(std::vector<Event>* events) {
  std::ranges::sort(*events, {}, &Event::begin);
  double busy = 0, until = -1;
  for (const Event& event : *events) {
    busy += std::max(0.0, event.end() - std::max(event.begin, until));
    until = std::max(until, event.end());
  }
  return busy;
}

void AddHost(const std::vector<Event>& all, const Names& names, TraceSummary* out) {
  const std::vector<Event> operators = Of(all, Category::kOperator);
  OperatorTimes times;
  Nested(operators, [&](const Event& event, double self) { times.Add(event.name, self, event.length); });
  out->operators = times.Sorted(names);
  // The thread that trains is the one with most operators.
  std::map<std::uint64_t, std::size_t> counts;
  for (const Event& event : operators) ++counts[event.thread];
  const auto most = std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; });
  if (most == counts.end()) return;
  std::vector<Event> main;
  std::ranges::copy_if(operators, std::back_inserter(main),
                       [&](const Event& event) { return event.thread == most->first; });
  out->operators_s = Union(&main) * kMicro;
  double first = main.front().begin, last = std::ranges::max_element(main, {}, &Event::end)->end();
  for (const Event& event : Of(all, Category::kPython)) {  // of --stacks: they reach beyond the operators
    if (event.thread != most->first) continue;
    first = std::min(first, event.begin);
    last = std::max(last, event.end());
  }
  out->span_s = (last - first) * kMicro;
  OperatorTimes functions;
  Nested(Of(all, Category::kPython),
         [&](const Event& event, double self) { functions.Add(event.name, self, event.length); });
  out->functions = functions.Sorted(names);
}

void AddDevices(const std::vector<Event>& all, const Names& names, TraceSummary* out) {
  std::unordered_map<std::uint64_t, double> launched;  // by correlation
  OperatorTimes syncs, kernels;
  std::map<std::uint32_t, TraceSummary::Copy> copies;
  std::vector<Event> tasks;
  for (const Event& event : all) {
    const std::string& name = names.at(event.name);
    if (event.category == Category::kRuntime) {
      if (event.correlation != 0) launched.emplace(event.correlation, event.begin);
      if (name.find("Synchronize") != std::string::npos) syncs.Add(event.name, event.length, event.length);
    } else if (event.category == Category::kKernel) {
      kernels.Add(event.name, event.length, event.length);
      tasks.push_back(event);
    } else if (event.category == Category::kCopy || event.category == Category::kSet) {
      TraceSummary::Copy& copy = copies[event.name];
      copy.kind = name;
      ++copy.calls;
      copy.bytes += event.bytes;
      copy.seconds += event.length * kMicro;
      tasks.push_back(event);
    }
  }
  out->syncs = syncs.Sorted(names);
  out->kernels = kernels.Sorted(names);
  for (auto& [number, copy] : copies) out->copies.push_back(std::move(copy));
  std::ranges::stable_sort(out->copies, std::greater(), &TraceSummary::Copy::seconds);
  if (tasks.empty()) return;
  out->device_busy_s = Union(&tasks) * kMicro;
  double until = tasks.front().begin;
  for (const Event& task : tasks) {
    if (const double idle = (task.begin - until) * kMicro; idle > 0) {
      const auto launch = launched.find(task.correlation);
      (launch == launched.end() ? out->idle_unknown_s
       : launch->second > until ? out->idle_host_s
                                : out->idle_kernel_s) += idle;
    }
    until = std::max(until, task.end());
  }
  out->device_span_s = (until - tasks.front().begin) * kMicro;
}

}  // namespace

Status ReadTraceUntrusted(std::string_view bytes, RawTrace* trace) {
  // A space begins with a plane, whose tag is a line feed.
  const bool json =
      bytes.empty() || std::string_view("{[ \t\r").find(bytes.front()) != std::string_view::npos;
  return json ? ReadKinetoUntrusted(bytes, trace) : ReadXplaneUntrusted(bytes, trace);
}

Result<TraceSummary> SummariseTraceUntrusted(std::string_view bytes) {
  RawTrace trace;
  LUFF_RETURN_IF_ERROR(ReadTraceUntrusted(bytes, &trace));
  TraceSummary out;
  out.events = trace.seen;
  AddHost(trace.events, trace.names, &out);
  AddDevices(trace.events, trace.names, &out);
  return out;
}

std::vector<TraceFile> ParseTracesUntrusted(std::string_view json) {
  std::vector<TraceFile> out;
  const Json parsed = TryParseJson(json, {1U << 20, 8});
  if (!parsed.is_object() || !parsed.contains("traces") || !parsed["traces"].is_array()) return out;
  for (const Json& one : parsed["traces"]) {
    if (out.size() == kMostFiles) break;
    if (!one.is_object()) continue;
    TraceFile file;
    file.file = TextMember(one, "file");
    file.refused = TextMember(one, "refused");
    file.finding = TextMember(one, "finding");
    file.rule = TextMember(one, "rule");
    const auto number = [&](const char* key, std::int64_t most = kMostNumber) {
      return std::clamp<std::int64_t>(WholeMember(one, key, 0), 0, most);
    };
    file.first_step = number("first_step");
    file.steps = number("steps", kMostSteps);
    file.bytes = static_cast<std::uint64_t>(number("bytes"));
    if (const auto cost = one.find("cost_s"); cost != one.end() && cost->is_number())
      file.cost_s = cost->get<double>();
    // A name of a file in the folder of traces, and nothing else.
    constexpr std::string_view kFolder = "traces/";
    const bool within =
        file.file.starts_with(kFolder) && file.file.find('/', kFolder.size()) == std::string::npos;
    if (within || !file.refused.empty()) out.push_back(std::move(file));
  }
  return out;
}

std::vector<TraceFile> TracesOf(const query::Trial& trial, std::uint32_t worker) {
  return ParseTracesUntrusted(query::DocumentOf(trial, worker, "traces"));
}

std::map<std::string, std::vector<std::string>> TracesByFinding(const query::Trial& trial) {
  std::map<std::string, std::vector<std::string>> all;
  for (const query::WorkerInfo& worker : trial.workers()) {
    for (const TraceFile& file : TracesOf(trial, worker.worker)) {
      if (!file.finding.empty() && !file.file.empty())
        all[file.finding].push_back(fmt::format("{}/w{:04}/{}", trial.path(), worker.worker, file.file));
    }
  }
  return all;
}

namespace {

Result<std::string> ReadTrace(const std::string& run, std::uint32_t worker, const TraceFile& trace) {
  // The last three names lie in the run, which others may have made.
  return ReadRegular(fmt::format("{}/w{:04}/{}", run, worker, trace.file), kMaxTraceBytes, 3);
}

std::string_view WordOf(Category category) noexcept {
  switch (category) {
    case Category::kOperator: return "cpu_op";
    case Category::kPython: return "python_function";
    case Category::kAnnotation: return "user_annotation";
    case Category::kRuntime: return "cuda_runtime";
    case Category::kKernel: return "kernel";
    case Category::kCopy: return "gpu_memcpy";
    case Category::kSet: return "gpu_memset";
    case Category::kNone: break;
  }
  return "";
}

}  // namespace

Result<TraceSummary> SummariseTrace(const std::string& run, std::uint32_t worker, const TraceFile& trace) {
  LUFF_ASSIGN_OR_RETURN(const std::string text, ReadTrace(run, worker, trace));
  return SummariseTraceUntrusted(text);
}

Status VisitTraceUntrusted(std::string_view bytes, const TraceVisitor& use) {
  RawTrace reader;
  LUFF_RETURN_IF_ERROR(ReadTraceUntrusted(bytes, &reader));
  std::vector<Event>& events = reader.events;
  std::ranges::sort(events, [](const Event& a, const Event& b) {
    const bool a_device = a.of_device(), b_device = b.of_device();
    if (a_device != b_device) return b_device;
    if (a.thread != b.thread) return a.thread < b.thread;
    return a.begin != b.begin ? a.begin < b.begin : a.length > b.length;
  });
  constexpr double kYear2001 = 1e18, kYear2255 = 9e18;  // Unix time, in ns
  std::vector<std::int64_t> open;                       // ends of the events around
  TraceEvent out;
  const Event* last = nullptr;
  for (const Event& event : events) {
    const auto base = static_cast<double>(reader.base_ns);
    const double begin = base + event.begin * 1e3, end = base + event.end() * 1e3;
    // The sum would also be in range of a base far before 1970 and a time that no integer holds.
    if (reader.base_ns < 0 || !(begin >= kYear2001 && end < kYear2255))
      return Corruption("a trace that does not say when it was made, in 'baseTimeNanoseconds' or its lines");
    if (last != nullptr && (last->thread != event.thread || last->of_device() != event.of_device())) {
      ++out.track;
      open.clear();
    }
    last = &event;
    // A double holds such a time to a quarter of a microsecond only.
    out.begin_ns = reader.base_ns + std::llround(event.begin * 1e3);
    out.end_ns = reader.base_ns + std::llround(event.end() * 1e3);
    while (!open.empty() && open.back() <= out.begin_ns) open.pop_back();
    if (!open.empty()) out.end_ns = std::min(out.end_ns, open.back());
    open.push_back(out.end_ns);
    out.device = event.of_device();
    out.name = reader.names.at(event.name);
    out.category = WordOf(event.category);
    use(out);
  }
  return Status::Ok();
}

Status VisitTrace(const std::string& run, std::uint32_t worker, const TraceFile& trace,
                  const TraceVisitor& use) {
  LUFF_ASSIGN_OR_RETURN(const std::string text, ReadTrace(run, worker, trace));
  return VisitTraceUntrusted(text, use);
}

}  // namespace luff::profile
