#include "cli/export_trace.h"

#include <set>

#include "base/format.h"
#include "luff/query/run_pieces.h"
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
};

}  // namespace

Result<TraceWritten> ExportTrace(const query::Trial& trial, const TraceChoice& choice, TraceFormat* format,
                                 const std::string& out, Existing existing) {
  LUFF_ASSIGN_OR_RETURN(const auto file, OutputFile::Create(out, existing));
  StepDrawer drawer(choice, format, file.get());
  format->Begin(trial, drawer.text());
  LUFF_RETURN_IF_ERROR(
      query::VisitPhases(trial, [&](const query::StepInfo& info, const query::StepPhases& phases) {
        drawer.Draw(info, phases);
      }));
  LUFF_RETURN_IF_ERROR(drawer.status());
  if (drawer.steps() == 0) {
    return NotFound("the run has no phases of these steps; `luff profile RUN` says why: " + trial.path());
  }
  TraceWritten written;
  written.steps = drawer.steps();
  for (const rules::Finding& finding : rules::FindingsOfRun(trial.path()).findings) {
    const auto step = trial.FindStep(finding.global_step, query::Mode::kGlobal);
    if (!step.ok() || (choice.worker && finding.worker != *choice.worker)) continue;
    format->Finding(finding, step->wall_unix_ns, drawer.text());
    ++written.findings;
    LUFF_RETURN_IF_ERROR(drawer.Write(kWriteAt));
  }
  format->End(drawer.text());
  LUFF_RETURN_IF_ERROR(drawer.Write(0));
  written.bytes = file->bytes();
  LUFF_RETURN_IF_ERROR(file->Commit());
  return written;
}

}  // namespace luff::cli
