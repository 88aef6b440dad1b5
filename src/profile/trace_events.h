#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "luff/base/result.h"

/// The events of a trace, whoever wrote it. Times are microseconds since the trace's base.
namespace luff::profile {

inline constexpr std::size_t kMostTraceEvents = 4'000'000;
inline constexpr double kLatestUs = 1e18;  // times of a trace are within it

enum class TraceCategory : std::uint8_t {
  kNone,
  kOperator,    // of the host
  kPython,      // a function
  kAnnotation,  // a part of a step that its framework has named: a loader's batch, an update
  kRuntime,     // a call into the library of a device
  kKernel,
  kCopy,
  kSet
};

struct RawTraceEvent {
  double begin = 0, length = 0;
  std::uint64_t thread = 0, correlation = 0, bytes = 0;
  std::uint32_t name = 0;
  TraceCategory category = TraceCategory::kNone;
  [[nodiscard]] double end() const noexcept { return begin + length; }
  [[nodiscard]] bool of_device() const noexcept { return category >= TraceCategory::kKernel; }
};

/// Names by number; all beyond 65,536 are one.
class TraceNames {
 public:
  TraceNames() { static_cast<void>(Number("(others)")); }
  [[nodiscard]] std::uint32_t Number(std::string_view name) {
    constexpr std::size_t kLongest = 512, kMost = 65'536;
    name = name.substr(0, kLongest);
    if (const auto known = numbers_.find(name); known != numbers_.end()) return known->second;
    if (names_.size() == kMost) return 0;
    names_.emplace_back(name);
    return numbers_.emplace(names_.back(), static_cast<std::uint32_t>(names_.size() - 1)).first->second;
  }
  [[nodiscard]] const std::string& at(std::uint32_t number) const { return names_[number]; }

 private:
  std::deque<std::string> names_;
  std::unordered_map<std::string_view, std::uint32_t> numbers_;
};

struct RawTrace {
  std::vector<RawTraceEvent> events;
  TraceNames names;
  std::uint64_t seen = 0;  // events of all kinds
  bool xplane = false;
  std::int64_t base_ns = 0;      // Unix time that times count from; 0: not known
  std::int64_t capability = -1;  // major compute capability of the devices, the least of them; -1: not known
};

/// Kineto's JSON. Errors: kCorruption (no trace: what was expected, and where), kOutOfRange (more events than
/// kMostTraceEvents).
[[nodiscard]] Status ReadKinetoUntrusted(std::string_view json, RawTrace* trace);
/// An XSpace of TensorFlow or JAX, a message of Protocol Buffers. Errors: as above.
[[nodiscard]] Status ReadXplaneUntrusted(std::string_view bytes, RawTrace* trace);
/// One of these: JSON begins with a brace.
[[nodiscard]] Status ReadTraceUntrusted(std::string_view bytes, RawTrace* trace);

}  // namespace luff::profile
