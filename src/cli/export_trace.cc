#include "cli/export_trace.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "base/format.h"
#include "luff/query/samples.h"
#include "luff/rules/kept_findings.h"

namespace luff::cli {
namespace {

constexpr std::size_t kWriteAt = 1 << 20;

/// Draws the steps that were chosen, rank by rank.
class StepDrawer {
 public:
  StepDrawer(const TraceChoice& choice, TraceFormat* format, OutputFile* file)
      : choice_(choice),
        format_(format),
        file_(file) {}

  void Draw(const query::StepInfo& info, const query::StepPhases& phases) {
    if (!status_.ok() || (choice_.worker && phases.worker != *choice_.worker)) return;
    if (ranks_.insert(phases.worker).second) {
      timeline_ = {};
      train_ = -1;
      format_->Rank(phases.worker, &text_);
    }
    // Placed even if it is not drawn: a step that is drawn may not lie before it.
    timeline_.Place(phases, &placed_);
    if (info.mode == query::Mode::kTrain) train_ = info.mode_step;
    if (choice_.mode != query::Mode::kGlobal && info.mode != choice_.mode) return;
    const bool between = info.mode != query::Mode::kTrain && train_ >= choice_.to;
    if (train_ < choice_.from - 1 || train_ > choice_.to || between) return;
    if (info.mode == query::Mode::kTrain && train_ < choice_.from) return;
    format_->Step(phases.worker, info, phases, placed_, &text_);
    ++steps_;
    span_.from_unix_ns = std::min(span_.from_unix_ns, placed_.begin_ns);
    span_.to_unix_ns = std::max(span_.to_unix_ns, placed_.end_ns);
    status_ = Write(kWriteAt);
  }

  Status Write(std::size_t at_least) {
    if (text_.size() < at_least) return Status::Ok();
    const Status status = file_->Append(text_);
    text_.clear();
    return status;
  }

  [[nodiscard]] const Status& status() const noexcept { return status_; }
  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
  [[nodiscard]] std::string* text() noexcept { return &text_; }
  [[nodiscard]] const std::set<std::uint32_t>& ranks() const noexcept { return ranks_; }
  /// Of the steps that were drawn.
  [[nodiscard]] const query::TimeSpan& span() const noexcept { return span_; }

 private:
  const TraceChoice& choice_;
  TraceFormat* format_;
  OutputFile* file_;
  std::string text_;
  Status status_;
  std::set<std::uint32_t> ranks_;
  std::int64_t train_ = -1;  // the last TRAIN step of this rank
  profile::Timeline timeline_;
  profile::PlacedStep placed_;
  std::uint64_t steps_ = 0;
  query::TimeSpan span_{INT64_MAX, INT64_MIN};
};

/// Draws gauges as they are, and of counters how much they grow in a second.
Result<std::uint64_t> DrawSamples(const std::string& run, TraceFormat* format, StepDrawer* drawer) {
  const auto samples = query::Samples::Open(run);
  if (samples.status().code() == StatusCode::kFailedPrecondition) return std::uint64_t{0};
  LUFF_RETURN_IF_ERROR(samples.status());
  std::uint64_t count = 0;
  for (const query::HostSamples& host : (*samples)->hosts()) {
    for (const format::SeriesDef& series : host.series()) {
      LUFF_ASSIGN_OR_RETURN(const query::SampleColumns columns, host.Read(series.name, drawer->span()));
      const bool counts = columns.kind == format::SeriesKind::kCounter;
      if (columns.value.size() < (counts ? 2 : 1)) continue;
      std::string unit(format::UnitName(columns.unit));
      // Seconds a second are a share, e.g. of a core.
      if (counts) unit = columns.unit == format::SeriesUnit::kNanoseconds ? "" : unit + "/s";
      format->Series(host.number(), series.name, unit, drawer->text());
      ++count;
      for (std::size_t i = counts ? 1 : 0; i < columns.value.size(); ++i) {
        double value = columns.value[i];
        if (counts) {
          const double took = static_cast<double>(columns.unix_ns[i] - columns.unix_ns[i - 1]) * 1e-9;
          if (took <= 0 || value < columns.value[i - 1]) continue;  // the clock was set, or it began again
          value = (value - columns.value[i - 1]) / took;
        }
        // A counter's growth is drawn from the sample before it on.
        const std::int64_t at = columns.unix_ns[counts ? i - 1 : i];
        if (std::isfinite(value)) format->Value(std::max<std::int64_t>(at, 0), value, drawer->text());
      }
      LUFF_RETURN_IF_ERROR(drawer->Write(kWriteAt));
    }
  }
  return count;
}

/// Draws the operators of the steps that were traced and chosen. A trace that cannot be read is a remark.
Status DrawTraces(const query::RunStream& run, const TraceChoice& choice, TraceFormat* format,
                  StepDrawer* drawer, TraceWritten* written) {
  if (choice.mode != query::Mode::kGlobal && choice.mode != query::Mode::kTrain) return Status::Ok();
  for (const std::uint32_t worker : drawer->ranks()) {
    std::uint32_t tracks = 0;
    for (const profile::TraceFile& trace : profile::ParseTracesUntrusted(run.Document(worker, "traces"))) {
      const std::int64_t last = trace.first_step + std::max<std::int64_t>(trace.steps, 1) - 1;
      if (trace.file.empty() || trace.first_step > choice.to || last < choice.from) continue;
      const std::uint32_t first = tracks;
      Status status;
      const Status read =
          profile::VisitTrace(run.path(), worker, trace, [&](const profile::TraceEvent& event) {
            if (!status.ok()) return;
            if (first + event.track == tracks) {
              format->Track(
                  worker, tracks++,
                  fmt::format("{}, step {}", event.device ? "device" : "operators", trace.first_step),
                  drawer->text());
            }
            format->Operator(event, drawer->text());
            status = drawer->Write(kWriteAt);
          });
      LUFF_RETURN_IF_ERROR(status);
      if (read.ok())
        ++written->traces;
      else
        written->remarks.push_back("the trace of step " + std::to_string(trace.first_step) + " of rank " +
                                   std::to_string(worker) + " is left out: " + read.ToString());
    }
  }
  return Status::Ok();
}

}  // namespace

Status NoPhases(const std::string& run) {
  return NotFound("the run has no phases of these steps; `luff profile RUN` says why: " + run);
}

Result<TraceWritten> ExportTrace(const query::RunStream& run, const TraceChoice& choice, TraceFormat* format,
                                 const std::string& out, Existing existing) {
  LUFF_ASSIGN_OR_RETURN(const auto file, OutputFile::Create(out, existing));
  std::vector<rules::Finding> findings = rules::FindingsOfRun(run.path()).findings;
  if (choice.worker)
    std::erase_if(findings, [&](const rules::Finding& one) { return one.worker != *choice.worker; });
  std::map<std::int64_t, std::optional<std::int64_t>> seen_at;  // of findings: by global step, Unix time
  for (const rules::Finding& finding : findings) seen_at.try_emplace(finding.global_step);
  StepDrawer drawer(choice, format, file.get());
  format->Begin(run.path(), drawer.text());
  LUFF_RETURN_IF_ERROR(run.Visit(
      [&](const query::StepInfo& info, const query::StepPhases& phases) { drawer.Draw(info, phases); },
      [&](const query::StepInfo& info, std::uint32_t) {
        if (seen_at.empty()) return;
        const auto at = seen_at.find(info.global_step);
        if (at != seen_at.end() && !at->second) at->second = info.wall_unix_ns;
      }));
  LUFF_RETURN_IF_ERROR(drawer.status());
  if (drawer.steps() == 0) return NoPhases(run.path());
  TraceWritten written;
  written.steps = drawer.steps();
  for (const rules::Finding& finding : findings) {
    const auto& at = seen_at[finding.global_step];
    if (!at) continue;
    format->Finding(finding, *at, drawer.text());
    ++written.findings;
    LUFF_RETURN_IF_ERROR(drawer.Write(kWriteAt));
  }
  LUFF_RETURN_IF_ERROR(DrawTraces(run, choice, format, &drawer, &written));
  LUFF_ASSIGN_OR_RETURN(written.series, DrawSamples(run.path(), format, &drawer));
  format->End(drawer.text());
  LUFF_RETURN_IF_ERROR(drawer.Write(0));
  written.bytes = file->bytes();
  LUFF_RETURN_IF_ERROR(file->Commit());
  return written;
}

}  // namespace luff::cli
