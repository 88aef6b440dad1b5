#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "luff/query/trial.h"

/// Traces of a few steps, made on request, and what they say in short. A trace is a file in its worker's
/// folder, of PyTorch's Kineto (Trace Event Format) or of JAX and TensorFlow (XPlane); the document `traces`
/// lists them (docs/spec/evidence.md).
namespace luff::profile {

/// One trace that was made, or why one was not.
struct TraceFile {
  std::string file;  // within the worker's folder; "" if it was refused
  std::string refused;
  std::int64_t first_step = 0, steps = 0;  // TRAIN steps that were traced
  std::uint64_t bytes = 0;
  double cost_s = 0;          // starting, stopping and writing it
  std::string finding, rule;  // of which an action asked for it; "" if somebody did
};
[[nodiscard]] std::vector<TraceFile> ParseTracesUntrusted(std::string_view json);
[[nodiscard]] std::vector<TraceFile> TracesOf(const query::Trial& trial, std::uint32_t worker);
/// Paths of the traces that actions asked for, of all workers, by the id of the finding.
[[nodiscard]] std::map<std::string, std::vector<std::string>> TracesByFinding(const query::Trial& trial);

struct OperatorTime {
  std::string name;
  std::uint64_t calls = 0;
  double self_s = 0, total_s = 0;  // `self_s`: without what it calls
};

/// Times of one trace, in seconds.
struct TraceSummary {
  std::uint64_t events = 0;
  double span_s = 0;                    // from the first event of the host's main thread to its last
  double operators_s = 0;               // of that, in operators; the rest is Python and everything else
  std::vector<OperatorTime> operators;  // of the host, the largest self time first
  std::vector<OperatorTime> functions;  // of Python, where stacks were asked for: file(line): name
  std::vector<OperatorTime> syncs;      // calls in which the host waits for a device
  struct Copy {
    std::string kind;  // "HtoD (Pageable -> Device)" and the like, as Kineto says
    std::uint64_t calls = 0, bytes = 0;
    double seconds = 0;
  };
  std::vector<Copy> copies;
  std::vector<OperatorTime> kernels;
  double device_span_s = 0, device_busy_s = 0;
  /// Idle times of devices between two of their tasks: the later one was not launched yet; it was launched
  /// and waited; its launch is not known.
  double idle_host_s = 0, idle_kernel_s = 0, idle_unknown_s = 0;
};

inline constexpr std::uint64_t kMaxTraceBytes = 256ULL << 20;

/// Errors: kCorruption (no trace: what was expected, and where), kOutOfRange (more than 4 million events).
[[nodiscard]] Result<TraceSummary> SummariseTraceUntrusted(std::string_view json);
/// Reads a trace of a run. Further errors: those of reading.
[[nodiscard]] Result<TraceSummary> SummariseTrace(const std::string& run, std::uint32_t worker,
                                                  const TraceFile& trace);

/// One event of a trace, for programs that draw it. Texts are borrowed for the call.
struct TraceEvent {
  std::uint32_t track = 0;                // counted from 0; the host's threads come first
  bool device = false;                    // a stream of a device, else a thread of the host
  std::int64_t begin_ns = 0, end_ns = 0;  // Unix time
  std::string_view name;
  std::string_view category;  // as Kineto says: "cpu_op", "python_function", "cuda_runtime", "kernel", ...
};
using TraceVisitor = std::function<void(const TraceEvent&)>;
/// Calls `use` for each complete event of these categories, track by track, ascending. Of two events of a
/// track the later one lies inside the earlier one or after it: one that does not is cut off. Errors: as
/// above; kCorruption also if the trace does not say when it was made.
[[nodiscard]] Status VisitTraceUntrusted(std::string_view json, const TraceVisitor& use);
[[nodiscard]] Status VisitTrace(const std::string& run, std::uint32_t worker, const TraceFile& trace,
                                const TraceVisitor& use);

}  // namespace luff::profile
