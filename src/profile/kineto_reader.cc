#include <charconv>
#include <deque>

#include "base/format.h"
#include "base/json_scan.h"
#include "profile/trace_events.h"

namespace luff::profile {
namespace {

TraceCategory CategoryOf(std::string_view word) noexcept {
  if (word == "cpu_op") return TraceCategory::kOperator;
  if (word == "python_function") return TraceCategory::kPython;
  if (word == "user_annotation") return TraceCategory::kAnnotation;
  if (word == "cuda_runtime" || word == "cuda_driver") return TraceCategory::kRuntime;
  if (word == "kernel") return TraceCategory::kKernel;
  if (word == "gpu_memcpy") return TraceCategory::kCopy;
  if (word == "gpu_memset") return TraceCategory::kSet;
  return TraceCategory::kNone;
}

/// Reads what is wanted of a trace: complete events of the known categories.
class TraceReader {
 public:
  TraceReader(std::string_view text, RawTrace* trace)
      : text_(text),
        scan_(text, &unescaped_),
        trace_(trace) {}

  [[nodiscard]] Status Read() {
    bool found = false;
    if (scan_.BeginObject()) {
      for (std::string_view key; scan_.NextKey(&key);) {
        if (key == "baseTimeNanoseconds") {
          trace_->base_ns = Whole();
          continue;
        }
        if (key == "deviceProperties") {
          ReadDevices();
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

 private:
  [[nodiscard]] Status ReadEvents() {
    if (!scan_.BeginArray()) return scan_.status();
    while (scan_.NextElement()) {
      if (++trace_->seen > kMostTraceEvents)
        return OutOfRange(fmt::format("the trace has more than {} events", kMostTraceEvents));
      ReadEvent();
      if (scan_.failed()) return scan_.status();
    }
    return scan_.failed() ? scan_.status() : Status::Ok();
  }

  void ReadEvent() {
    RawTraceEvent event;
    bool complete = false;
    unescaped_.clear();
    if (!scan_.BeginObject()) return;
    for (std::string_view key; scan_.NextKey(&key);) {
      if (key == "ph")
        complete = Text() == "X";
      else if (key == "cat")
        event.category = CategoryOf(Text());
      else if (key == "name")
        event.name = trace_->names.Number(Text());
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
        event.begin >= 0 && event.begin < kLatestUs && event.length >= 0 && event.length < kLatestUs;
    if (complete && sound && event.category != TraceCategory::kNone && !scan_.failed())
      trace_->events.push_back(event);
  }

  void ReadDevices() {
    if (scan_.Peek() != '[') {
      scan_.Skip();
      return;
    }
    scan_.BeginArray();
    while (scan_.NextElement()) {
      if (scan_.Peek() != '{') {
        scan_.Skip();
        continue;
      }
      scan_.BeginObject();
      for (std::string_view key; scan_.NextKey(&key);) {
        if (key != "computeMajor") {
          scan_.Skip();
          continue;
        }
        const std::int64_t major = Whole();
        if (major > 0 && (trace_->capability < 0 || major < trace_->capability)) trace_->capability = major;
      }
      if (scan_.failed()) return;
    }
  }

  void ReadArguments(RawTraceEvent* event) {
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
  RawTrace* trace_;
};

}  // namespace

Status ReadKinetoUntrusted(std::string_view json, RawTrace* trace) { return TraceReader(json, trace).Read(); }

}  // namespace luff::profile
