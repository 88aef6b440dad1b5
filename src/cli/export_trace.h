#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/output_file.h"
#include "luff/profile/kineto_trace.h"
#include "luff/profile/timeline.h"
#include "luff/query/run_stream.h"
#include "luff/query/trial.h"
#include "luff/rules/finding.h"

/// Writes where the time of a run went as a trace, for Perfetto and Chrome, with the operators of the steps
/// that were traced. One segment of the run, one series of samples, or one of these traces is held in memory.
namespace luff::cli {

/// Which part of a run to draw.
struct TraceChoice {
  query::Mode mode = query::Mode::kGlobal;  // kGlobal: all
  std::optional<std::uint32_t> worker;
  std::int64_t from = 0, to = INT64_MAX;  // TRAIN steps; those of other modes lie between two of them
};

/// One format. Each call appends to `to` what is complete. A rank's calls come one after the other, its steps
/// ascending in time.
class TraceFormat {
 public:
  virtual ~TraceFormat() = default;
  virtual void Begin(const std::string& run, std::string* to) = 0;
  virtual void Rank(std::uint32_t worker, std::string* to) = 0;
  virtual void Step(std::uint32_t worker, const query::StepInfo& info, const query::StepPhases& phases,
                    const profile::PlacedStep& placed, std::string* to) = 0;
  /// `at_ns`: Unix time of the step at which it was seen.
  virtual void Finding(const rules::Finding& finding, std::int64_t at_ns, std::string* to) = 0;
  /// A series that the sampler of a host measured, and then its values, ascending in time.
  virtual void Series(std::uint32_t host, const std::string& name, std::string_view unit,
                      std::string* to) = 0;
  virtual void Value(std::int64_t at_ns, double value, std::string* to) = 0;
  /// A thread, or a stream of a device, of which operators were traced, and then its events, ascending,
  /// inside or after each other. `track` differs from those of the worker's other traces.
  virtual void Track(std::uint32_t worker, std::uint32_t track, const std::string& name, std::string* to) = 0;
  virtual void Operator(const profile::TraceEvent& event, std::string* to) = 0;
  virtual void End(std::string* to) = 0;
};

/// Perfetto's own format: a stream of TracePackets (protobuf).
[[nodiscard]] std::unique_ptr<TraceFormat> MakePerfettoTrace();
/// The Trace Event Format (JSON), compressed with gzip.
[[nodiscard]] std::unique_ptr<TraceFormat> MakeChromeTrace();

struct TraceWritten {
  std::uint64_t steps = 0, findings = 0, series = 0, traces = 0, bytes = 0;
  std::vector<std::string> remarks;  // traces that cannot be read, and why
};
/// What is said where a run has nothing to draw.
[[nodiscard]] Status NoPhases(const std::string& run);
/// Errors: NoPhases() if the run has no phases of what was chosen; those of reading and writing.
[[nodiscard]] Result<TraceWritten> ExportTrace(const query::RunStream& run, const TraceChoice& choice,
                                               TraceFormat* format, const std::string& out,
                                               Existing existing);

}  // namespace luff::cli
