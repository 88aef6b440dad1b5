#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <limits>

#include "luff/base/work_bound.h"
#include "luff/query/run_pieces.h"
#include "luff/store/after_stop.h"
#include "query/frames_of.h"
#include "query/run_trial.h"

namespace luff::query {
namespace {

using format::Form;
using format::FrameKind;

std::string FormNames(std::uint16_t bits) {
  std::string text;
  for (const auto& [form, name] : format::kFormNames) {
    if ((bits & static_cast<unsigned>(form)) != 0) text += (text.empty() ? "" : ",") + std::string(name);
  }
  return text;
}

std::string ReasonName(std::uint16_t reason) {
  static constexpr const char* kNames[] = {"none",           "pool full",      "overhead budget",
                                           "byte budget",    "disk full",      "input/output error",
                                           "compiled graph", "unsupported",    "not seen",
                                           "hook error",     "retired",        "merged",
                                           "worker lost",    "fork",           "scripted",
                                           "closing",        "too many",       "recording failed",
                                           "file lost",      "no gradient",    "fused attention",
                                           "device late",    "captured graph", "device error",
                                           "uploaded"};
  return reason < std::size(kNames) ? kNames[reason] : "reason " + std::to_string(reason);
}

/// The rows of one step in a column of ascending step indices.
std::pair<std::size_t, std::size_t> RangeOf(std::span<const std::uint32_t> steps,
                                            std::uint32_t index) noexcept {
  const auto [from, to] = std::equal_range(steps.begin(), steps.end(), index);
  return {static_cast<std::size_t>(from - steps.begin()), static_cast<std::size_t>(to - steps.begin())};
}

/// The known spans of a sealed segment's tensors; empty for an unsealed segment, which still grows.
std::vector<SlotSpans::Span>& SpansOf(const store::SegmentReader& segment, SlotSpans& spans) {
  if (!segment.sealed()) {
    spans = {};
  } else if (spans.path != segment.path()) {
    spans = {segment.path(), std::vector<SlotSpans::Span>(segment.slot_count())};
  }
  return spans.of_slot;
}

SlotSpans::Span SpanOf(std::initializer_list<std::span<const std::uint32_t>> ascending) noexcept {
  SlotSpans::Span span{std::numeric_limits<std::uint32_t>::max(), 0};
  for (const auto& steps : ascending) {
    if (steps.empty()) continue;
    span.first = std::min(span.first, steps.front());
    span.last = std::max(span.last, steps.back());
  }
  return span;
}

/// Decodes a tensor's entries of one kind in one step. Returns false if there is none.
Result<bool> ReadEntries(const auto& rows, std::uint64_t ordinal, FrameKind kind, const auto& parse,
                         const auto& decode) {
  LUFF_ASSIGN_OR_RETURN(const auto frames, rows.segment->FramesOf(ordinal));
  std::vector<std::byte> scratch;
  bool any = false;
  for (const format::FrameEntry& entry : frames) {
    if (static_cast<FrameKind>(entry.kind) != kind) continue;
    LUFF_ASSIGN_OR_RETURN(const auto body, rows.segment->ReadFrame(entry, &scratch));
    LUFF_ASSIGN_OR_RETURN(const auto entries, parse(body));
    for (const auto& view : entries) {
      if (view.tensor != rows.local_id) continue;
      LUFF_RETURN_IF_ERROR(decode(view));
      any = true;
    }
  }
  return any;
}

}  // namespace

StepPhases PhasesOf(std::uint32_t worker, std::int64_t ended_unix_ns, const format::PhasesView& view) {
  StepPhases phases{.worker = worker, .head = view.head, .ended_unix_ns = ended_unix_ns, .waits = {}};
  for (const format::PhaseRow& row : view.rows) {
    const std::size_t phase = row.phase < format::kPhaseCount ? row.phase : 0;
    if (row.clock == 1 && phases.has_device()) {
      phases.device_ns[phase] = std::max<std::int64_t>(phases.device_ns[phase], 0) + row.duration_ns;
      phases.idle_steps = std::min(phases.idle_steps + row.count, view.head.steps);
    }
    if (row.clock != 0) continue;
    // A phase may have several rows, e.g. one for each of its subjects.
    const bool first = phases.ns[phase] == 0 && phases.begins[phase] == 0;
    phases.starts_ns[phase] = first ? row.start_ns : std::max(phases.starts_ns[phase], row.start_ns);
    phases.ns[phase] += row.duration_ns;
    phases.begins[phase] += row.count;
    if (row.phase == static_cast<std::uint8_t>(format::Phase::kDataWait))
      phases.waits.push_back({format::WaitSubject::Of(row.subject), row.count, row.duration_ns});
  }
  return phases;
}

Status RunTrial::ReadStepRows(std::size_t n, StepRows* out) const {
  LUFF_RETURN_IF_ERROR(BeginRows(n, out));
  std::vector<std::byte> scratch;
  for (const auto& worker : workers_) {
    const std::uint64_t ordinal = worker->OrdinalOf(n);
    if (ordinal == kNoOrdinal) continue;
    const auto place = worker->reader->FindStep(ordinal);
    if (!place) continue;
    const store::SegmentReader& segment = *place->segment;
    const std::uint32_t epoch = segment.header().epoch;
    const std::uint32_t number = worker->reader->worker();
    const auto id_of = [&](std::uint32_t local) -> std::optional<TensorId> {
      const auto at = worker->trial_id.find(ScopedId(epoch, local));
      if (at == worker->trial_id.end()) return std::nullopt;
      return at->second;
    };
    const auto published = segment.PublishedAt(place->index);
    if (published) {
      const auto each = [&](const auto& of, std::size_t row, auto use) {
        if (const auto id = id_of(of.rows[row].tensor)) use(*id, of.rows[row]);
      };
      for (const std::uint32_t row : published->summaries.counting) {
        each(published->summaries, row, [&](TensorId id, const format::SummaryRow& s) {
          out->summaries.push_back({id, number, static_cast<DType>(s.dtype), SummaryOf(s)});
        });
      }
      for (std::size_t row = 0; row < published->scalars.rows.size(); ++row) {
        each(published->scalars, row, [&](TensorId id, const format::ScalarRow& scalar) {
          out->scalars.push_back({id, number, scalar.value});
        });
      }
      for (std::size_t row = 0; row < published->forms.rows.size(); ++row) {
        each(published->forms, row,
             [&](TensorId id, const format::FormRow& form) { out->forms.push_back({id, number, form}); });
      }
    }
    std::vector<SlotSpans::Span>& spans = SpansOf(segment, worker->spans);
    for (std::size_t slot = 0; !published && slot < segment.slot_count(); ++slot) {
      if (!spans.empty() && (place->index < spans[slot].first || place->index > spans[slot].last)) continue;
      const auto id = id_of(segment.slot_tensor(slot));
      if (!id) continue;
      LUFF_ASSIGN_OR_RETURN(const auto summaries, segment.Summaries(slot));
      auto [from, to] = RangeOf(summaries.step, place->index);
      if (from != to) {  // if there are several, the last one counts
        const format::SummaryRow row = summaries.row(to - 1, 0);
        out->summaries.push_back({*id, number, static_cast<DType>(row.dtype), SummaryOf(row)});
      }
      LUFF_ASSIGN_OR_RETURN(const auto scalars, segment.Scalars(slot));
      std::tie(from, to) = RangeOf(scalars.step, place->index);
      for (; from < to; ++from) out->scalars.push_back({*id, number, scalars.value[from]});
      LUFF_ASSIGN_OR_RETURN(const auto forms, segment.Forms(slot));
      std::tie(from, to) = RangeOf(forms.step, place->index);
      for (; from < to; ++from) out->forms.push_back({*id, number, forms.rows[from]});
      if (!spans.empty()) spans[slot] = SpanOf({summaries.step, scalars.step, forms.step});
    }
    constexpr std::uint32_t kWanted = 1U << static_cast<unsigned>(FrameKind::kUnitRows) |
                                      1U << static_cast<unsigned>(FrameKind::kEventRows) |
                                      1U << static_cast<unsigned>(FrameKind::kEventJson) |
                                      1U << static_cast<unsigned>(FrameKind::kPhases);
    if ((segment.frame_kinds() & kWanted) == 0) continue;
    LUFF_ASSIGN_OR_RETURN(const auto frames, segment.FramesOf(ordinal));
    for (const format::FrameEntry& entry : frames) {
      if (entry.kind >= 32 || (kWanted >> entry.kind & 1U) == 0) continue;
      LUFF_ASSIGN_OR_RETURN(const auto body, segment.ReadFrame(entry, &scratch));
      if (static_cast<FrameKind>(entry.kind) == FrameKind::kEventRows) {
        LUFF_ASSIGN_OR_RETURN(const auto rows, format::ParseEventRowsUntrusted(body));
        for (const format::EventRow& row : rows) out->events.push_back({out->info.global_step, number, row});
      } else if (static_cast<FrameKind>(entry.kind) == FrameKind::kEventJson) {
        out->event_json.emplace_back(reinterpret_cast<const char*>(body.data()), body.size());
      } else if (static_cast<FrameKind>(entry.kind) == FrameKind::kPhases) {
        LUFF_ASSIGN_OR_RETURN(const auto view, format::ParsePhasesUntrusted(body));
        out->phases.push_back(PhasesOf(number, segment.steps().wall_unix_ns[place->index], view));
      } else {
        LUFF_ASSIGN_OR_RETURN(const auto rows, format::ParseUnitsUntrusted(body));
        for (const format::UnitsView& row : rows) {
          const auto id = id_of(row.tensor);
          if (!id) continue;
          UnitEntry unit{*id, number, {}};
          LUFF_RETURN_IF_ERROR(format::DecodeUnitsUntrusted(row, &unit.counts));
          out->units.push_back(std::move(unit));
        }
      }
    }
  }
  return Status::Ok();
}

Result<SparseHistogram> RunTrial::Histogram(TensorId id, std::int64_t step, Mode mode,
                                            std::optional<std::uint32_t> worker) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  LUFF_ASSIGN_OR_RETURN(const std::uint32_t n, StepOrError(step, mode));
  SparseHistogram histogram;
  LUFF_ASSIGN_OR_RETURN(const bool found, FirstWith(id, n, worker, [&](const Rows& rows) {
                          return ReadEntries(rows, rows.worker->OrdinalOf(n), FrameKind::kHistogramRows,
                                             format::ParseHistogramsUntrusted,
                                             [&](const format::HistogramView& view) {
                                               return format::DecodeHistogramUntrusted(view, &histogram);
                                             });
                        }));
  if (!found) return NotSaved(id, What::kHistogram, step, mode);
  return histogram;
}

Result<UnitCounts> RunTrial::Units(TensorId id, std::int64_t step, Mode mode,
                                   std::optional<std::uint32_t> worker) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  LUFF_ASSIGN_OR_RETURN(const std::uint32_t n, StepOrError(step, mode));
  UnitCounts counts;
  LUFF_ASSIGN_OR_RETURN(const bool found, FirstWith(id, n, worker, [&](const Rows& rows) {
                          return ReadEntries(rows, rows.worker->OrdinalOf(n), FrameKind::kUnitRows,
                                             format::ParseUnitsUntrusted, [&](const format::UnitsView& view) {
                                               return format::DecodeUnitsUntrusted(view, &counts);
                                             });
                        }));
  if (!found) return NotSaved(id, What::kUnits, step, mode);
  return counts;
}

/// Returns the recorded row of one form. If a tensor was written twice in one step, the last one counts.
Result<std::optional<format::FormRow>> RunTrial::FormOf(const Rows& rows, Form form) const {
  std::optional<format::FormRow> found;
  if (!rows.slot) return found;
  LUFF_ASSIGN_OR_RETURN(const auto block, rows.segment->Forms(*rows.slot));
  const auto [from, to] = RangeOf(block.step, rows.index);
  for (const format::FormRow& row : block.rows.subspan(from, to - from)) {
    if (row.form == static_cast<std::uint16_t>(form)) found = row;
  }
  return found;
}

Result<format::FormRow> RunTrial::ReadForm(TensorId id, Form form, std::int64_t step, Mode mode,
                                           std::optional<std::uint32_t> worker) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  LUFF_ASSIGN_OR_RETURN(const std::uint32_t n, StepOrError(step, mode));
  std::optional<format::FormRow> row;
  LUFF_ASSIGN_OR_RETURN(const bool found, FirstWith(id, n, worker, [&](const Rows& rows) -> Result<bool> {
                          LUFF_ASSIGN_OR_RETURN(row, FormOf(rows, form));
                          return row.has_value();
                        }));
  if (!found) return NotSaved(id, What::kForm, step, mode);
  return *row;
}

std::vector<GapInfo> RunTrial::Gaps() const {
  std::vector<GapInfo> result;
  for (const auto& worker : workers_) {
    const auto collections = collections_.find(worker->reader->worker());
    for (const auto& gap : worker->reader->gaps()) {
      GapInfo info;
      info.worker = worker->reader->worker();
      if (const auto at = worker->trial_id.find(ScopedId(gap.epoch, gap.row.tensor));
          at != worker->trial_id.end()) {
        info.tensor = tensors_[at->second].name;
      }
      if (collections != collections_.end() && gap.row.collection < collections->second.second.size()) {
        info.collection = collections->second.second[gap.row.collection];
      }
      info.reason = ReasonName(gap.row.reason);
      info.forms = FormNames(gap.row.forms);
      info.count = gap.row.count;
      info.bytes = gap.row.bytes;
      info.first_step = gap.row.first_step;
      info.last_step = gap.row.last_step;
      result.push_back(std::move(info));
    }
    if (worker->lost) {
      GapInfo info;
      info.worker = worker->reader->worker();
      info.reason = ReasonName(static_cast<std::uint16_t>(format::GapReason::kWorkerLost));
      const std::uint64_t next = worker->reader->next_ordinal();
      const auto last = next == 0 ? std::nullopt : worker->reader->FindStep(next - 1);
      const std::int64_t step = last ? last->segment->steps().global_step[last->index] : -1;
      info.first_step = step == std::numeric_limits<std::int64_t>::max() ? step : step + 1;
      info.last_step = steps_.size() == 0
                           ? info.first_step
                           : std::max(info.first_step, steps_.global_steps()[steps_.size() - 1]);
      result.push_back(std::move(info));
    }
  }
  for (const WorkerInfo& worker : workers()) {
    if (worker.reason != format::EndReason::kStopped) continue;
    GapInfo info;
    info.worker = worker.worker;
    info.reason = store::kTrainedAfterStop;
    info.count = store::UpdatesAfterStop(run_->path(), worker.worker);
    if (info.count == 0) continue;
    const std::int64_t last = worker.last_global_step;
    info.first_step = info.last_step = last == std::numeric_limits<std::int64_t>::max() ? last : last + 1;
    result.push_back(std::move(info));
  }
  return result;
}

std::vector<EventAt> RunTrial::Events(Mode mode) const {
  std::vector<EventAt> result;
  std::vector<std::byte> scratch;
  for (const auto& worker : workers_) {
    for (const auto& segment : worker->reader->segments()) {
      if ((segment->frame_kinds() >> static_cast<unsigned>(FrameKind::kEventRows) & 1U) == 0) continue;
      const auto frames = segment->Frames();
      if (!frames.ok()) continue;  // the reader reports it in problems()
      for (const format::FrameEntry& entry : *frames) {
        if (static_cast<FrameKind>(entry.kind) != FrameKind::kEventRows) continue;
        const std::uint32_t n = worker->StepOf(entry.ordinal);
        if (n == kNoStep || steps_.superseded(n) || (mode != Mode::kGlobal && steps_.mode(n) != mode))
          continue;
        const auto body = segment->ReadFrame(entry, &scratch);
        if (!body.ok()) continue;
        const auto rows = format::ParseEventRowsUntrusted(*body);
        if (!rows.ok()) continue;
        for (const format::EventRow& row : *rows) {
          result.push_back({steps_.global_steps()[n], worker->reader->worker(), row});
        }
      }
    }
  }
  return result;
}

/// Calls `use` for the frames of a kind that belong to complete steps which are not superseded.
template <typename Use>
Status RunTrial::EachFrame(format::FrameKind kind, const Use& use) const {
  std::vector<std::byte> scratch;
  for (const auto& worker : workers_) {
    for (const auto& segment : worker->reader->segments()) {
      std::uint32_t n = kNoStep;
      LUFF_RETURN_IF_ERROR(EachFrameOf(
          *segment, kind, &scratch,
          [&](std::uint64_t ordinal) {
            n = worker->StepOf(ordinal);
            return n != kNoStep && !steps_.superseded(n);
          },
          [&](std::uint64_t ordinal, std::span<const std::byte> body) -> Status {
            return use(*worker->reader, *segment, ordinal, n, body);
          }));
    }
  }
  return Status::Ok();
}

Status RunTrial::EachPhases(const PhasesVisitor& use) const {
  return EachFrame(
      FrameKind::kPhases,
      [&](const auto& reader, const auto& segment, std::uint64_t ordinal, std::uint32_t n,
          std::span<const std::byte> body) -> Status {
        LUFF_ASSIGN_OR_RETURN(const auto view, format::ParsePhasesUntrusted(body));
        const format::StepColumns& columns = segment.steps();
        const auto place = std::ranges::lower_bound(columns.ordinal, ordinal) - columns.ordinal.begin();
        use(steps_.at(n),
            PhasesOf(reader.worker(), columns.wall_unix_ns[static_cast<std::size_t>(place)], view));
        return Status::Ok();
      });
}

Status RunTrial::EachModules(const ModulesVisitor& use) const {
  return EachFrame(FrameKind::kModuleTimes,
                   [&](const auto& reader, const auto&, std::uint64_t, std::uint32_t n,
                       std::span<const std::byte> body) -> Status {
                     LUFF_ASSIGN_OR_RETURN(const auto view, format::ParseModuleTimesUntrusted(body));
                     use(steps_.at(n), reader.worker(), view);
                     return Status::Ok();
                   });
}

Status VisitModules(const Trial& trial, const ModulesVisitor& use) {
  const auto* run = dynamic_cast<const RunTrial*>(&trial);
  return run == nullptr ? Status::Ok() : run->EachModules(use);
}

Status VisitPhases(const Trial& trial, const PhasesVisitor& use) {
  const auto* run = dynamic_cast<const RunTrial*>(&trial);
  return run == nullptr ? Status::Ok() : run->EachPhases(use);
}

std::vector<Trial::JsonEvent> RunTrial::JsonEvents() const {
  std::vector<JsonEvent> result;
  std::vector<std::byte> scratch;
  for (const auto& worker : workers_) {
    for (const auto& segment : worker->reader->segments()) {
      if ((segment->frame_kinds() >> static_cast<unsigned>(FrameKind::kEventJson) & 1U) == 0) continue;
      const auto frames = segment->Frames();
      if (!frames.ok()) continue;
      for (const format::FrameEntry& entry : *frames) {
        if (static_cast<FrameKind>(entry.kind) != FrameKind::kEventJson) continue;
        const std::uint32_t n =
            entry.ordinal == format::kLooseOrdinal ? kNoStep : worker->StepOf(entry.ordinal);
        if (n == kNoStep && entry.ordinal != format::kLooseOrdinal) continue;
        const auto body = segment->ReadFrame(entry, &scratch);
        if (!body.ok()) continue;
        result.push_back({n == kNoStep ? -1 : steps_.global_steps()[n], worker->reader->worker(),
                          std::string(reinterpret_cast<const char*>(body->data()), body->size())});
      }
    }
  }
  return result;
}

std::vector<std::pair<std::uint32_t, format::AckRow>> RunTrial::Acks() const {
  std::vector<std::pair<std::uint32_t, format::AckRow>> result;
  for (const auto& worker : workers_) {
    for (const format::AckRow& row : worker->reader->acks())
      result.emplace_back(worker->reader->worker(), row);
  }
  return result;
}

}  // namespace luff::query
