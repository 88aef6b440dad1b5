#include "luff/profile/kineto_trace.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/json.h"
#include "base/json_scan.h"
#include "luff/query/run_pieces.h"

namespace luff::profile {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostEvents = 4'000'000, kMostNames = 65'536, kMostShown = 100, kMostFiles = 64;
constexpr std::int64_t kMostNumber = std::int64_t{1} << 62, kMostSteps = 1'000'000;
constexpr double kMicro = 1e-6;
constexpr double kLatest = 1e18;  // microseconds; times of a trace are within it

enum class Category : std::uint8_t { kNone, kOperator, kPython, kRuntime, kKernel, kCopy, kSet };

Category CategoryOf(std::string_view word) noexcept {
  if (word == "cpu_op") return Category::kOperator;
  if (word == "python_function") return Category::kPython;
  if (word == "cuda_runtime" || word == "cuda_driver") return Category::kRuntime;
  if (word == "kernel") return Category::kKernel;
  if (word == "gpu_memcpy") return Category::kCopy;
  if (word == "gpu_memset") return Category::kSet;
  return Category::kNone;
}

struct Event {
  double begin = 0, length = 0;  // microseconds
  std::uint64_t thread = 0, correlation = 0, bytes = 0;
  std::uint32_t name = 0;
  Category category = Category::kNone;
  [[nodiscard]] double end() const noexcept { return begin + length; }
};

/// Names by number; all beyond kMostNames are one.
class Names {
 public:
  Names() { static_cast<void>(Number("(others)")); }
  [[nodiscard]] std::uint32_t Number(std::string_view name) {
    constexpr std::size_t kLongest = 512;
    name = name.substr(0, kLongest);
    if (const auto known = numbers_.find(name); known != numbers_.end()) return known->second;
    if (names_.size() == kMostNames) return 0;
    names_.emplace_back(name);
    return numbers_.emplace(names_.back(), static_cast<std::uint32_t>(names_.size() - 1)).first->second;
  }
  [[nodiscard]] const std::string& at(std::uint32_t number) const { return names_[number]; }

 private:
  std::deque<std::string> names_;
  std::unordered_map<std::string_view, std::uint32_t> numbers_;
};

/// Reads what is wanted of a trace: complete events of the known categories.
class TraceReader {
 public:
  explicit TraceReader(std::string_view text) : text_(text), scan_(text, &unescaped_) {}

  [[nodiscard]] Status Read() {
    bool found = false;
    if (scan_.BeginObject()) {
      for (std::string_view key; scan_.NextKey(&key);) {
        if (key == "baseTimeNanoseconds") {
          base_ns = Whole();
          continue;
        }
        if (key != "traceEvents") {
          scan_.Skip();
          continue;
        }
        found = true;
        LUFF_RETURN_IF_ERROR(ReadEvents());
      }
      scan_.End();
    }
    if (scan_.failed()) return scan_.status();
    return found ? Status::Ok() : Corruption("no trace: found an object without 'traceEvents'");
  }

  std::vector<Event> events;
  Names names;
  std::uint64_t seen = 0;
  std::int64_t base_ns = 0;  // Unix time that times count from

 private:
  [[nodiscard]] Status ReadEvents() {
    if (!scan_.BeginArray()) return scan_.status();
    while (scan_.NextElement()) {
      if (++seen > kMostEvents)
        return OutOfRange(fmt::format("the trace has more than {} events", kMostEvents));
      ReadEvent();
      if (scan_.failed()) return scan_.status();
    }
    return scan_.failed() ? scan_.status() : Status::Ok();
  }

  void ReadEvent() {
    Event event;
    bool complete = false;
    unescaped_.clear();
    if (!scan_.BeginObject()) return;
    for (std::string_view key; scan_.NextKey(&key);) {
      if (key == "ph")
        complete = Text() == "X";
      else if (key == "cat")
        event.category = CategoryOf(Text());
      else if (key == "name")
        event.name = names.Number(Text());
      else if (key == "ts")
        event.begin = Number();
      else if (key == "dur")
        event.length = Number();
      else if (key == "tid")
        event.thread += Hashed();
      else if (key == "pid")
        event.thread += 31 * Hashed();
      else if (key == "args")
        ReadArguments(&event);
      else
        scan_.Skip();
    }
    const bool sound =
        event.begin >= 0 && event.begin < kLatest && event.length >= 0 && event.length < kLatest;
    if (complete && sound && event.category != Category::kNone && !scan_.failed()) events.push_back(event);
  }

  void ReadArguments(Event* event) {
    if (scan_.Peek() != '{') {
      scan_.Skip();
      return;
    }
    scan_.BeginObject();
    const auto natural = [&] {
      const double value = Number();
      return value >= 0 && value < 9e15 ? static_cast<std::uint64_t>(value) : 0;
    };
    for (std::string_view key; scan_.NextKey(&key);) {
      if (key == "correlation")
        event->correlation = natural();
      else if (key == "bytes")
        event->bytes = natural();
      else
        scan_.Skip();
    }
  }

  /// The next value as it is written.
  std::string_view Raw() {
    static_cast<void>(scan_.Peek());  // passes over blanks
    const std::size_t begin = scan_.at();
    if (!scan_.Skip()) return {};
    return text_.substr(begin, scan_.at() - begin);
  }
  /// A number; -1 for another value.
  double Number() {
    const std::string_view raw = Raw();
    double value = -1;
    const auto [end, error] = std::from_chars(raw.data(), raw.data() + raw.size(), value);
    return error == std::errc() && end == raw.data() + raw.size() ? value : -1;
  }
  /// A whole number; 0 for another value.
  std::int64_t Whole() {
    const std::string_view raw = Raw();
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(raw.data(), raw.data() + raw.size(), value);
    return error == std::errc() && end == raw.data() + raw.size() ? value : 0;
  }
  /// A text; "" for another value.
  std::string_view Text() {
    std::string_view text;
    if (scan_.Peek() == '"') {
      scan_.String(&text);
    } else {
      scan_.Skip();
    }
    return text;
  }
  std::uint64_t Hashed() { return std::hash<std::string_view>()(Raw()); }

  std::string_view text_;
  std::deque<std::string> unescaped_;
  JsonScan scan_;
};

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

Result<TraceSummary> SummariseTraceUntrusted(std::string_view json) {
  TraceReader reader(json);
  LUFF_RETURN_IF_ERROR(reader.Read());
  TraceSummary out;
  out.events = reader.seen;
  AddHost(reader.events, reader.names, &out);
  AddDevices(reader.events, reader.names, &out);
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

namespace {

Result<std::string> ReadTrace(const std::string& run, std::uint32_t worker, const TraceFile& trace) {
  // The last three names lie in the run, which others may have made.
  return ReadRegular(fmt::format("{}/w{:04}/{}", run, worker, trace.file), kMaxTraceBytes, 3);
}

std::string_view WordOf(Category category) noexcept {
  switch (category) {
    case Category::kOperator: return "cpu_op";
    case Category::kPython: return "python_function";
    case Category::kRuntime: return "cuda_runtime";
    case Category::kKernel: return "kernel";
    case Category::kCopy: return "gpu_memcpy";
    case Category::kSet: return "gpu_memset";
    case Category::kNone: break;
  }
  return "";
}

bool IsOfDevice(const Event& event) noexcept {
  return event.category == Category::kKernel || event.category == Category::kCopy ||
         event.category == Category::kSet;
}

}  // namespace

Result<TraceSummary> SummariseTrace(const std::string& run, std::uint32_t worker, const TraceFile& trace) {
  LUFF_ASSIGN_OR_RETURN(const std::string text, ReadTrace(run, worker, trace));
  return SummariseTraceUntrusted(text);
}

Status VisitTraceUntrusted(std::string_view json, const TraceVisitor& use) {
  TraceReader reader(json);
  LUFF_RETURN_IF_ERROR(reader.Read());
  std::vector<Event>& events = reader.events;
  std::ranges::sort(events, [](const Event& a, const Event& b) {
    const bool a_device = IsOfDevice(a), b_device = IsOfDevice(b);
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
      return Corruption("a trace that does not say when it was made, in 'baseTimeNanoseconds'");
    if (last != nullptr && (last->thread != event.thread || IsOfDevice(*last) != IsOfDevice(event))) {
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
    out.device = IsOfDevice(event);
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
