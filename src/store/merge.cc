#include "store/merge.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>

#include "luff/format/footer.h"
#include "luff/format/frames.h"
#include "luff/tensor/summary.h"
#include "store/paths.h"

namespace luff::store {
namespace {

using format::FrameKind;

constexpr std::size_t kMergedSteps = 10;
constexpr std::uint32_t kMaxGeneration = 4;  // a row then covers up to 10,000 steps
constexpr std::uint64_t kMaxSegmentBytes = 256ULL << 20;

Summary ToSummary(const format::SummaryRow& row) noexcept {
  Summary summary;
  summary.count = row.count;
  summary.sum = row.sum;
  summary.sum_sq = row.sum_sq;
  summary.abs_sum = row.abs_sum;
  summary.min_bits = row.min_bits;
  summary.max_bits = row.max_bits;
  summary.zero_count = row.zero_count;
  summary.nan_count = row.nan_count;
  summary.inf_count = row.inf_count;
  return summary;
}

/// Returns false if the rows cannot be merged.
bool MergeInto(format::SummaryRow* row, const format::SummaryRow& other) noexcept {
  if (row->dtype != other.dtype || row->steps + other.steps > 0xFFFF) return false;
  Summary summary = ToSummary(*row);
  summary.Merge(ToSummary(other), static_cast<DType>(row->dtype));
  row->flags |= format::kSummaryMerged;
  row->steps = static_cast<std::uint16_t>(row->steps + other.steps);
  row->count = summary.count;
  row->sum = summary.sum;
  row->sum_sq = summary.sum_sq;
  row->abs_sum = summary.abs_sum;
  row->min_bits = summary.min_bits;
  row->max_bits = summary.max_bits;
  row->zero_count = summary.zero_count;
  row->nan_count = summary.nan_count;
  row->inf_count = summary.inf_count;
  return true;
}

/// For each step, the step that carries the rows of its group: the last of up to `group` consecutive steps of
/// the same mode.
std::vector<std::uint32_t> Carriers(const format::StepColumns& steps, std::size_t group) {
  std::vector<std::uint32_t> carriers(steps.size());
  std::array<std::vector<std::uint32_t>, 5> open;
  const auto close = [&](std::vector<std::uint32_t>& members) {
    for (const std::uint32_t member : members) carriers[member] = members.back();
    members.clear();
  };
  for (std::uint32_t i = 0; i < steps.size(); ++i) {
    auto& members = open[steps.mode[i]];
    members.push_back(i);
    if (members.size() == group) close(members);
  }
  for (auto& members : open) {
    if (!members.empty()) close(members);
  }
  return carriers;
}

/// Adds up the phases of steps. False if they have more kinds of phases, or more time, than fits.
bool AddPhases(const format::PhasesView& view, StepPhases* sum) noexcept {
  StepPhases added = *sum;
  format::PhasesHead& head = added.head;
  const auto add_known = [&](std::int64_t* to, std::int64_t more) {
    *to = more < 0 || *to < 0 ? -1 : std::min(*to + more, format::kMaxPhaseNs);
  };
  add_known(&head.cpu_ns, view.head.cpu_ns);
  add_known(&head.run_queue_ns, view.head.run_queue_ns);
  add_known(&head.device_ns, view.head.device_ns);
  head.wall_ns += view.head.wall_ns;
  if (head.wall_ns > format::kMaxPhaseNs) return false;
  head.steps += view.head.steps;
  head.flags = sum->head.steps == 0 ? view.head.flags : head.flags & view.head.flags;
  const std::uint32_t faults = view.head.major_faults;
  if (sum->head.steps == 0)
    head.major_faults = faults;
  else if (head.major_faults == format::kNoId || faults == format::kNoId)
    head.major_faults = format::kNoId;
  else
    head.major_faults += std::min(faults, format::kNoId - 1 - head.major_faults);
  for (format::PhaseRow row : view.rows) {
    // Of waits, the loader is kept: with workers and batches there would be too many kinds.
    if (row.phase == static_cast<std::uint8_t>(format::Phase::kDataWait))
      row.subject = format::WaitSubject{.loader = format::WaitSubject::Of(row.subject).loader}.packed();
    const auto rows = std::span(added.rows).first(head.rows);
    auto at = std::ranges::find_if(rows, [&](const format::PhaseRow& other) {
      return other.phase == row.phase && other.clock == row.clock && other.subject == row.subject;
    });
    if (at != rows.end()) {
      at->duration_ns += row.duration_ns;
      at->count = static_cast<std::uint16_t>(std::min(at->count + row.count, 0xFFFF));
      at->start_ns = -1;
    } else if (head.rows < added.rows.size()) {
      added.rows[head.rows] = row;
      added.rows[head.rows++].start_ns = -1;
    } else {
      return false;
    }
  }
  *sum = added;
  return true;
}

/// Adds up the module times of steps. False if there are more modules, or more time, than fits.
bool AddModules(const format::ModuleTimesView& view, StepModules* sum) {
  StepModules added = *sum;
  const auto add = [](std::int64_t* to, std::int64_t more) {
    if (more >= 0) *to = std::max<std::int64_t>(*to, 0) + more;  // what one step did not see, another one did
    return *to <= format::kMaxPhaseNs;
  };
  for (const format::ModuleTimeRow& row : view.rows) {
    const auto at = std::ranges::find(added.rows, row.module, &format::ModuleTimeRow::module);
    if (at == added.rows.end()) {
      added.rows.push_back(row);
      continue;
    }
    at->calls = static_cast<std::uint32_t>(std::min<std::uint64_t>(
        std::uint64_t{at->calls} + row.calls, std::numeric_limits<std::uint32_t>::max()));
    if (!add(&at->forward_ns, row.forward_ns) || !add(&at->forward_self_ns, row.forward_self_ns) ||
        !add(&at->backward_ns, row.backward_ns) || !add(&at->backward_self_ns, row.backward_self_ns))
      return false;
  }
  if (added.rows.size() > format::kMaxModuleRows) return false;
  added.head.steps += view.head.steps;
  added.head.modules = std::max(added.head.modules, view.head.modules);
  added.head.flags |= view.head.flags;
  *sum = std::move(added);
  return true;
}

struct StepRows {
  StepPhases phases;
  StepModules modules;
  std::vector<format::SummaryRow> summaries;
  std::vector<format::ScalarRow> scalars;
  std::vector<format::IndexRow> index;
};

}  // namespace

Result<std::uint64_t> MergeSegment(Env& env, const std::string& directory, std::uint64_t sequence,
                                   std::uint32_t generation, bool with_definitions) {
  const std::string old_path = directory + "/" + MetaFileName(sequence, generation);
  std::vector<std::uint64_t> words;
  std::uint64_t size = 0;
  {
    LUFF_ASSIGN_OR_RETURN(auto file, env.Open(old_path, Env::OpenMode::kRead));
    LUFF_ASSIGN_OR_RETURN(size, file->Size());
    if (size > kMaxSegmentBytes) return ResourceExhausted("segment is too large to be merged: " + old_path);
    words.resize(static_cast<std::size_t>((size + 7) / 8));
    LUFF_ASSIGN_OR_RETURN(const std::size_t read,
                          file->ReadAt(std::as_writable_bytes(std::span(words)).first(size), 0));
    if (read != size) return Corruption("segment became shorter: " + old_path);
  }
  const auto bytes = std::as_bytes(std::span(words)).first(static_cast<std::size_t>(size));
  LUFF_ASSIGN_OR_RETURN(format::FileHeader header,
                        format::ParseFileHeaderUntrusted(bytes, format::kMetaMagic));
  LUFF_ASSIGN_OR_RETURN(const auto view, format::FooterView::ParseUntrusted(bytes, sequence));
  const format::StepColumns& steps = view.steps();
  // Each earlier merge of the segment made its rows cover ten times as many steps, so the groups grow by the
  // same factor.
  std::size_t group = kMergedSteps;
  for (std::uint32_t i = 0; i < generation; ++i) group *= kMergedSteps;
  const auto carriers = Carriers(steps, group);

  std::vector<StepRows> rows(steps.size());
  std::uint64_t merged_away = 0;
  std::uint32_t dropped_forms = 0;
  for (const format::TensorEntry& entry : view.tensors()) {
    LUFF_ASSIGN_OR_RETURN(const auto summaries, view.SummariesUntrusted(entry, true));
    LUFF_ASSIGN_OR_RETURN(const auto scalars, view.ScalarsUntrusted(entry, true));
    LUFF_ASSIGN_OR_RETURN(const auto index, view.IndexUntrusted(entry, true));
    std::map<std::uint32_t, format::SummaryRow> open;  // by carrier
    for (std::size_t i = 0; i < summaries.size(); ++i) {
      const format::SummaryRow row = summaries.row(i, entry.tensor);
      const std::uint32_t carrier = carriers[summaries.step[i]];
      const auto at = open.find(carrier);
      if (at == open.end()) {
        open.emplace(carrier, row);
      } else if (MergeInto(&at->second, row)) {
        ++merged_away;
      } else {
        rows[summaries.step[i]].summaries.push_back(row);
      }
    }
    for (const auto& [carrier, row] : open) rows[carrier].summaries.push_back(row);
    for (std::size_t i = 0; i < scalars.size(); ++i) {
      rows[scalars.step[i]].scalars.push_back({entry.tensor, scalars.flags[i], scalars.value[i]});
    }
    for (std::size_t i = 0; i < index.rows.size(); ++i) rows[index.step[i]].index.push_back(index.rows[i]);
    if (entry.form_rows != 0) dropped_forms |= entry.forms;
  }

  format::FooterBuilder footer;
  format::FrameBuffer buffer;
  buffer.Reset(sequence, format::kFileHeaderBytes);
  const auto put = [&](FrameKind kind, std::uint64_t ordinal, std::span<const std::byte> body) {
    const std::uint64_t offset = buffer.next_offset();
    buffer.Begin(kind, ordinal);
    buffer.Put(body.data(), body.size());
    buffer.End();
    footer.AddFrame(kind, ordinal, offset, buffer.next_offset() - offset);
  };
  LUFF_ASSIGN_OR_RETURN(const auto frames, view.FramesUntrusted());
  std::vector<format::SampleBlock> samples;
  for (const format::FrameEntry& entry : frames) {
    const auto kind = static_cast<FrameKind>(entry.kind);
    if (kind == FrameKind::kHistogramRows || kind == FrameKind::kUnitRows) {
      dropped_forms |= static_cast<std::uint32_t>(kind == FrameKind::kUnitRows ? format::Form::kUnits
                                                                               : format::Form::kHistogram);
      continue;
    }
    format::FrameView frame;
    if (format::ParseFrameUntrusted(bytes, entry.offset, sequence, &frame) != format::FrameOutcome::kFrame) {
      return Corruption("frame of the segment is damaged: " + old_path);
    }
    if (kind == FrameKind::kSamples) {
      auto block = format::ParseSamplesUntrusted(frame.body);
      if (block.ok()) {
        samples.push_back(std::move(block).value());
        continue;
      }
    }
    if (kind == FrameKind::kPhases) {
      const auto at = std::ranges::lower_bound(steps.ordinal, entry.ordinal);
      const auto phases = format::ParsePhasesUntrusted(frame.body);
      if (at != steps.ordinal.end() && *at == entry.ordinal && phases.ok() &&
          (phases->head.flags & format::kStepTraced) == 0 &&  // it would make the others seem slow
          AddPhases(*phases, &rows[carriers[static_cast<std::size_t>(at - steps.ordinal.begin())]].phases)) {
        continue;
      }
    }
    if (kind == FrameKind::kModuleTimes) {
      const auto at = std::ranges::lower_bound(steps.ordinal, entry.ordinal);
      const auto times = format::ParseModuleTimesUntrusted(frame.body);
      if (at != steps.ordinal.end() && *at == entry.ordinal && times.ok() &&
          AddModules(*times, &rows[carriers[static_cast<std::size_t>(at - steps.ordinal.begin())]].modules)) {
        continue;
      }
    }
    put(kind, entry.ordinal, frame.body);
  }
  for (const format::SampleBlock& block : format::MergeSamples(samples, kMergedSteps)) {
    const std::uint64_t offset = buffer.next_offset();
    buffer.Begin(FrameKind::kSamples, format::kLooseOrdinal);
    format::PutSamples(block, &buffer);
    buffer.End();
    footer.AddFrame(FrameKind::kSamples, format::kLooseOrdinal, offset, buffer.next_offset() - offset);
  }
  for (std::uint32_t i = 0; i < steps.size(); ++i) {
    const StepPhases& sum = rows[i].phases;
    if (sum.head.rows == 0) continue;
    const std::uint64_t offset = buffer.next_offset();
    buffer.Begin(FrameKind::kPhases, steps.ordinal[i]);
    buffer.PutValue(sum.head);
    buffer.PutRows(std::span<const format::PhaseRow>(sum.rows).first(sum.head.rows));
    buffer.End();
    footer.AddFrame(FrameKind::kPhases, steps.ordinal[i], offset, buffer.next_offset() - offset);
  }
  for (std::uint32_t i = 0; i < steps.size(); ++i) {
    StepModules& sum = rows[i].modules;
    if (sum.rows.empty()) continue;
    sum.head.rows = static_cast<std::uint32_t>(sum.rows.size());
    const std::uint64_t offset = buffer.next_offset();
    buffer.Begin(FrameKind::kModuleTimes, steps.ordinal[i]);
    buffer.PutValue(sum.head);
    buffer.PutRows(std::span<const format::ModuleTimeRow>(sum.rows));
    buffer.End();
    footer.AddFrame(FrameKind::kModuleTimes, steps.ordinal[i], offset, buffer.next_offset() - offset);
  }
  if (merged_away != 0 || dropped_forms != 0) {
    format::GapRow gap{};
    gap.tensor = gap.collection = format::kNoId;
    gap.reason = static_cast<std::uint16_t>(format::GapReason::kMerged);
    gap.forms =
        static_cast<std::uint16_t>(dropped_forms | static_cast<std::uint32_t>(format::Form::kSummary));
    gap.count = merged_away;
    gap.first_step = steps.size() == 0 ? 0 : steps.global_step.front();
    gap.last_step = steps.size() == 0 ? 0 : steps.global_step.back();
    put(FrameKind::kGapRows, format::kLooseOrdinal, std::as_bytes(std::span(&gap, 1)));
  }
  if (with_definitions) {
    LUFF_ASSIGN_OR_RETURN(const auto tensors, view.TensorDefsUntrusted());
    LUFF_ASSIGN_OR_RETURN(const auto layouts, view.LayoutDefsUntrusted());
    for (const auto& def : tensors) footer.AddTensorDef(def);
    for (const auto& def : layouts) footer.AddLayoutDef(def);
  }
  for (std::uint32_t i = 0; i < steps.size(); ++i) {
    footer.AddSummaries(rows[i].summaries);
    footer.AddScalars(rows[i].scalars);
    footer.AddIndex(rows[i].index);
    format::StepMark mark = steps.mark(i);
    const auto lost = static_cast<std::uint32_t>(dropped_forms);
    mark.forms &= ~lost;
    footer.AddStep(steps.ordinal[i], mark);
  }
  LUFF_RETURN_IF_ERROR(footer.Build(view.head().next_ordinal, view.head().last_train_steps, &buffer));

  header.generation = generation + 1;
  format::SealFileHeader(&header, format::kMetaMagic);
  std::byte page[format::kFileHeaderBytes] = {};
  std::memcpy(page, &header, sizeof(header));
  const std::string path = directory + "/" + MetaFileName(sequence, generation + 1);
  const std::string temporary = path + ".tmp";
  Status status;
  {
    (void)env.Remove(temporary);
    LUFF_ASSIGN_OR_RETURN(auto file, env.Open(temporary, Env::OpenMode::kCreateNew));
    status = file->WriteAt(page, 0);
    if (status.ok()) status = file->WriteAt(buffer.bytes(), format::kFileHeaderBytes);
    // The old file is removed next; after a power failure one of the two must exist.
    if (status.ok()) status = file->Sync();
  }
  if (status.ok()) status = env.Rename(temporary, path);
  if (!status.ok()) {
    (void)env.Remove(temporary);
    return status;
  }
  (void)env.SyncDirectory(directory);
  (void)env.Remove(old_path);
  return format::kFileHeaderBytes + buffer.bytes().size();
}

void MetaBudget::Adopt(const EarlierEpochs::MetaFile& file) {
  segments_.push_back({file.sequence, file.bytes, file.generation, file.epoch, !file.sealed});
  bytes_ += file.bytes;
}

void MetaBudget::Add(const MetaStream::SealedSegment& segment, std::uint32_t epoch) {
  segments_.push_back({segment.sequence, segment.bytes, 0, epoch, false});
  bytes_ += segment.bytes;
}

bool MetaBudget::MergeOne(std::uint64_t open_bytes) {
  if (max_bytes_ == 0 || bytes_ + open_bytes <= max_bytes_) return false;
  Segment* chosen = nullptr;
  for (Segment& segment : segments_) {
    if (segment.stuck || segment.generation >= kMaxGeneration) continue;
    if (chosen == nullptr || segment.generation < chosen->generation) chosen = &segment;
  }
  if (chosen == nullptr) return false;
  const bool newer = std::any_of(segments_.begin(), segments_.end(), [&](const Segment& other) {
    return other.epoch == chosen->epoch && other.sequence > chosen->sequence && !other.stuck;
  });
  const auto merged = MergeSegment(env_, directory_, chosen->sequence, chosen->generation, !newer);
  if (!merged.ok()) {
    chosen->stuck = true;
    return false;
  }
  if (*merged >= chosen->bytes) chosen->stuck = true;
  bytes_ = bytes_ - chosen->bytes + *merged;
  chosen->bytes = *merged;
  ++chosen->generation;
  return true;
}

}  // namespace luff::store
