#include <algorithm>
#include <map>
#include <span>

#include "base/format.h"
#include "luff/base/bytes.h"
#include "profile/trace_events.h"

// Fields and their numbers: tsl/profiler/protobuf/xplane.proto of OpenXLA.
namespace luff::profile {
namespace {

constexpr std::size_t kMostNamesOfPlane = 1'000'000, kMostLinesOfPlane = 100'000;

/// One field of a message.
struct Field {
  std::uint64_t number = 0, value = 0;  // value: of a field that is no text
  std::string_view bytes;               // of a text or a message
};

/// The fields of one message, one after the other.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : cursor_(std::as_bytes(std::span(bytes.data(), bytes.size()))) {}
  /// False at the end, and where the bytes are no message: then `failed`.
  [[nodiscard]] bool Next(Field* field) {
    if (failed_ || cursor_.at_end()) return false;
    std::uint64_t tag = 0;
    failed_ = !cursor_.ReadVarint(&tag) || (tag >> 3U) == 0;
    field->number = tag >> 3U;
    field->bytes = {};
    field->value = 0;
    if (failed_) return false;
    std::uint64_t size = 0;
    std::uint32_t four = 0;
    switch (tag & 7U) {
      case 0: failed_ = !cursor_.ReadVarint(&field->value); break;
      case 1: failed_ = !cursor_.Read(&field->value); break;
      case 2: failed_ = !cursor_.ReadVarint(&size) || !cursor_.ReadText(size, &field->bytes); break;
      case 5:
        failed_ = !cursor_.Read(&four);
        field->value = four;
        break;
      default: failed_ = true;
    }
    return !failed_;
  }
  [[nodiscard]] bool failed() const noexcept { return failed_; }
  [[nodiscard]] std::size_t at() const noexcept { return cursor_.position(); }

 private:
  ByteCursor cursor_;
  bool failed_ = false;
};

/// Reads the planes of an XSpace.
class SpaceReader {
 public:
  explicit SpaceReader(RawTrace* trace) : trace_(trace) {}

  [[nodiscard]] Status Read(std::string_view bytes) {
    Fields space(bytes);
    std::size_t planes = 0;
    for (Field field; space.Next(&field);) {
      if (field.number != 1) continue;
      ++planes;
      LUFF_RETURN_IF_ERROR(ReadPlane(field.bytes));
    }
    if (space.failed()) return NoTrace("a space", space.at());
    if (planes == 0) return Corruption("no trace: found a space without planes, and no JSON");
    return Place();
  }

 private:
  struct Line {
    std::uint64_t id = 0;
    std::int64_t begin_ns = 0;
    std::string_view name;
    std::vector<std::string_view> events;
  };

  [[nodiscard]] static Status NoTrace(const char* what, std::size_t at) {
    return Corruption(
        fmt::format("no trace: {} of XPlane breaks off or holds what is none, at byte {}", what, at));
  }

  [[nodiscard]] Status ReadPlane(std::string_view bytes) {
    names_.clear();
    correlation_ = start_key_ = 0;
    std::string_view plane;
    std::vector<Line> lines;
    std::vector<std::string_view> numbers;
    Fields fields(bytes);
    for (Field field; fields.Next(&field);) {
      if (field.number == 2) plane = field.bytes;
      if (field.number == 4) LUFF_RETURN_IF_ERROR(ReadName(field.bytes));
      if (field.number == 5) LUFF_RETURN_IF_ERROR(ReadStatName(field.bytes));
      if (field.number == 6 && numbers.size() < kMostLinesOfPlane) numbers.push_back(field.bytes);
      if (field.number == 3 && lines.size() < kMostLinesOfPlane) {
        Line& line = lines.emplace_back();
        LUFF_RETURN_IF_ERROR(ReadLine(field.bytes, &line));
      }
    }
    if (fields.failed()) return NoTrace("a plane", fields.at());
    if (plane == "Task Environment") {
      for (const std::string_view number : numbers) LUFF_RETURN_IF_ERROR(ReadStart(number));
    }
    const bool device = plane.starts_with("/device:");
    const bool calls = plane == "/host:CUPTI";
    if (!device && (!plane.starts_with("/host:") || plane == "/host:metadata")) return Status::Ok();
    const auto streams = [](const Line& line) { return line.name.starts_with("Stream"); };
    const bool has_streams = std::ranges::any_of(lines, streams);
    ++planes_;
    for (const Line& line : lines) {
      // What is derived from the streams (steps, modules, names of a framework) would count twice.
      if (device && (has_streams ? !streams(line) : line.name != "XLA Ops")) continue;
      for (const std::string_view event : line.events)
        LUFF_RETURN_IF_ERROR(ReadEvent(event, line, device, calls));
    }
    return Status::Ok();
  }

  /// An entry of the table of events: key, and what it describes.
  [[nodiscard]] Status ReadName(std::string_view bytes) {
    std::uint64_t key = 0;
    std::string_view value;
    Fields entry(bytes);
    for (Field field; entry.Next(&field);) {
      if (field.number == 1) key = field.value;
      if (field.number == 2) value = field.bytes;
    }
    if (entry.failed()) return NoTrace("a name", entry.at());
    std::string_view name;
    Fields described(value);
    for (Field field; described.Next(&field);) {
      if (field.number == 2) name = field.bytes;
    }
    if (described.failed()) return NoTrace("a name", described.at());
    if (names_.size() < kMostNamesOfPlane) names_[key] = name;
    return Status::Ok();
  }

  [[nodiscard]] Status ReadStatName(std::string_view bytes) {
    std::uint64_t key = 0;
    std::string_view value, name;
    Fields entry(bytes);
    for (Field field; entry.Next(&field);) {
      if (field.number == 1) key = field.value;
      if (field.number == 2) value = field.bytes;
    }
    if (entry.failed()) return NoTrace("a name", entry.at());
    Fields described(value);
    for (Field field; described.Next(&field);) {
      if (field.number == 2) name = field.bytes;
    }
    if (name == "correlation_id") correlation_ = key;
    if (name == "profile_start_time") start_key_ = key;
    return described.failed() ? NoTrace("a name", described.at()) : Status::Ok();
  }

  [[nodiscard]] Status ReadLine(std::string_view bytes, Line* line) {
    Fields fields(bytes);
    for (Field field; fields.Next(&field);) {
      if (field.number == 1) line->id = field.value;
      if (field.number == 2) line->name = field.bytes;
      if (field.number == 3) line->begin_ns = static_cast<std::int64_t>(field.value);
      if (field.number != 4) continue;
      if (++trace_->seen > kMostTraceEvents)
        return OutOfRange(fmt::format("the trace has more than {} events", kMostTraceEvents));
      line->events.push_back(field.bytes);
    }
    return fields.failed() ? NoTrace("a line", fields.at()) : Status::Ok();
  }

  [[nodiscard]] Status ReadEvent(std::string_view bytes, const Line& line, bool device, bool calls) {
    std::uint64_t key = 0;
    RawTraceEvent event;
    Fields fields(bytes);
    for (Field field; fields.Next(&field);) {
      const auto picoseconds = static_cast<double>(static_cast<std::int64_t>(field.value));
      if (field.number == 1) key = field.value;
      if (field.number == 2) event.begin = picoseconds * 1e-6;
      if (field.number == 3) event.length = picoseconds * 1e-6;
      if (field.number == 4 && correlation_ != 0) LUFF_RETURN_IF_ERROR(ReadStat(field.bytes, &event));
    }
    if (fields.failed()) return NoTrace("an event", fields.at());
    const auto known = names_.find(key);
    std::string_view name = known == names_.end() ? std::string_view() : known->second;
    if (device) {
      const auto has = [&](std::string_view word) { return name.find(word) != std::string_view::npos; };
      event.category = has("emcpy")   ? TraceCategory::kCopy
                       : has("emset") ? TraceCategory::kSet
                                      : TraceCategory::kKernel;
    } else if (calls) {
      event.category = TraceCategory::kRuntime;
    } else if (name.starts_with('$')) {
      event.category = TraceCategory::kPython;
      name.remove_prefix(1);
    } else {
      event.category = TraceCategory::kOperator;
    }
    const bool sound =
        event.begin >= 0 && event.begin < kLatestUs && event.length >= 0 && event.length < kLatestUs;
    if (!sound || line.begin_ns < 0 || line.begin_ns > static_cast<std::int64_t>(kLatestNs))
      return Status::Ok();
    event.thread = planes_ << 40U ^ line.id;
    event.name = trace_->names.Number(name);
    trace_->events.push_back(event);
    line_ns_.push_back(line.begin_ns);
    return Status::Ok();
  }

  [[nodiscard]] Status ReadStat(std::string_view bytes, RawTraceEvent* event) {
    std::uint64_t key = 0, value = 0;
    Fields fields(bytes);
    for (Field field; fields.Next(&field);) {
      if (field.number == 1) key = field.value;
      if (field.number == 3 || field.number == 4) value = field.value;
    }
    if (fields.failed()) return NoTrace("a number of an event", fields.at());
    if (key == correlation_) event->correlation = value;
    return Status::Ok();
  }

  /// When the trace was begun, in a number of the plane that describes it.
  [[nodiscard]] Status ReadStart(std::string_view bytes) {
    std::uint64_t key = 0, value = 0;
    Fields fields(bytes);
    for (Field field; fields.Next(&field);) {
      if (field.number == 1) key = field.value;
      if (field.number == 3 || field.number == 4) value = field.value;
    }
    if (fields.failed()) return NoTrace("a number of a plane", fields.at());
    if (start_key_ != 0 && key == start_key_ && value < kLatestNs)
      start_ns_ = static_cast<std::int64_t>(value);
    return Status::Ok();
  }

  /// Moves all events to one clock. Times of lines are Unix time, or count from the begin of the trace.
  [[nodiscard]] Status Place() {
    if (line_ns_.empty()) return Status::Ok();
    trace_->base_ns = *std::ranges::min_element(line_ns_);
    constexpr std::int64_t kYear2001 = 1'000'000'000'000'000'000;
    const std::int64_t from_ns = trace_->base_ns < kYear2001 ? start_ns_ : 0;
    for (std::size_t i = 0; i < line_ns_.size(); ++i) {
      RawTraceEvent& event = trace_->events[i];
      event.begin =
          std::min(event.begin + static_cast<double>(line_ns_[i] - trace_->base_ns) * 1e-3, kLatestUs);
    }
    trace_->base_ns = std::min(trace_->base_ns, static_cast<std::int64_t>(kLatestNs)) + from_ns;
    return Status::Ok();
  }

  static constexpr std::uint64_t kLatestNs = 4'000'000'000'000'000'000;  // in the year 2096
  RawTrace* trace_;
  // Of this plane, by key. A tree: keys are of whoever wrote the file, and could all meet in one bucket; and
  // a table that was large once would be cleared at the cost of its size for each plane that follows.
  std::map<std::uint64_t, std::string_view> names_;
  std::uint64_t correlation_ = 0;  // key of that number; 0: none
  std::uint64_t start_key_ = 0;
  std::int64_t start_ns_ = 0;  // Unix time at which the trace was begun; 0: it does not say
  std::uint64_t planes_ = 0;
  std::vector<std::int64_t> line_ns_;  // of each event
};

}  // namespace

Status ReadXplaneUntrusted(std::string_view bytes, RawTrace* trace) {
  trace->xplane = true;
  return SpaceReader(trace).Read(bytes);
}

}  // namespace luff::profile
