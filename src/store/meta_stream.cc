#include "store/meta_stream.h"

#include <algorithm>
#include <cstring>

#include "luff/store/loss.h"
#include "store/paths.h"

namespace luff::store {
namespace {

using format::Form;
using format::FrameKind;

constexpr std::size_t kMaxRowsPerFrame = 1 << 18;     // 20 MiB of summaries, below what a frame may hold
constexpr std::size_t kMaxBytesPerFrame = 32U << 20;  // for rows of variable size; one more entry still fits
// A footer is written in pieces. A write of megabytes makes the page cache take huge pages that nobody has
// used before, which costs up to ten times as much in virtual machines: 5 to 46 ms for 8 MiB at once, 3.4 to
// 4.8 ms in pieces.
constexpr std::size_t kFooterPiece = 64U << 10;

std::uint32_t FormsOf(const StepBatch& batch) noexcept {
  std::uint32_t forms = 0;
  if (!batch.summaries.empty()) forms |= static_cast<std::uint32_t>(Form::kSummary);
  if (!batch.index.empty()) forms |= static_cast<std::uint32_t>(Form::kRaw);
  if (!batch.histograms.empty()) forms |= static_cast<std::uint32_t>(Form::kHistogram);
  if (!batch.units.empty()) forms |= static_cast<std::uint32_t>(Form::kUnits);
  for (const format::FormRow& row : batch.forms) forms |= row.form;
  return forms;
}

}  // namespace

MetaStream::MetaStream(Env& env, std::string directory, const Start& start)
    : env_(env),
      directory_(std::move(directory)),
      start_(start),
      next_sequence_(start.next_sequence),
      next_ordinal_(start.next_ordinal),
      train_steps_(start.train_steps) {}

MetaStream::~MetaStream() = default;

Status MetaStream::EnsureSegment() {
  if (file_ != nullptr) return Status::Ok();
  const std::uint64_t sequence = next_sequence_;
  const std::string path = directory_ + "/" + MetaFileName(sequence);
  auto file = env_.Open(path, Env::OpenMode::kCreateNew);
  if (!file.ok()) {
    if (file.status().code() == StatusCode::kAlreadyExists) ++next_sequence_;
    return std::move(file).status();
  }
  format::FileHeader header{};
  std::memcpy(header.run_id, start_.run_id.data(), sizeof(header.run_id));
  header.worker = start_.worker;
  header.epoch = start_.epoch;
  header.sequence = sequence;
  header.created_unix_ns = env_.NowUnixNs();
  header.first_ordinal = next_ordinal_;
  format::SealFileHeader(&header, format::kMetaMagic);
  std::byte page[format::kFileHeaderBytes] = {};
  std::memcpy(page, &header, sizeof(header));
  if (Status status = (*file)->WriteAt(page, 0); !status.ok()) {
    (void)env_.Remove(path);
    return status;
  }
  path_ = path;
  file_ = std::move(file).value();
  sequence_ = sequence;
  next_sequence_ = sequence + 1;
  end_ = format::kFileHeaderBytes;
  bytes_written_ += end_;
  footer_.Clear();
  footer_lost_ = false;
  steps_here_.clear();
  return redefine_ ? WriteLosses() : Status::Ok();
}

Status MetaStream::WriteLosses() {
  buffer_.Reset(sequence_, end_);
  listed_.clear();
  footer_.PutDefinitions(&buffer_);
  if (lost_.count != 0) EncodeTable(FrameKind::kGapRows, format::kLooseOrdinal, std::vector{lost_}, true);
  LUFF_RETURN_IF_ERROR(Append());
  Account(format::kLooseOrdinal, [] {});
  lost_ = {};
  redefine_ = false;
  return Status::Ok();
}

void MetaStream::GiveUp(const Status& status) {
  const bool whole = status.code() == StatusCode::kUnavailable;  // only the descriptor was lost, not the file
  const auto left = status.code() == StatusCode::kCorruption ? file_->Size() : Result<std::uint64_t>(0);
  file_.reset();
  if (whole) return;
  redefine_ = true;
  for (const StepEnd& step : steps_here_) {
    if (left.ok() && step.end <= *left) continue;
    const bool first = lost_.count == 0;
    lost_ = GapOfSteps(format::GapReason::kFileLost, lost_.count + 1, 0,
                       first ? step.global_step : std::min(lost_.first_step, step.global_step),
                       first ? step.global_step : std::max(lost_.last_step, step.global_step));
  }
}

void MetaStream::Frame(FrameKind kind, std::uint64_t ordinal, bool listed) {
  frame_kind_ = kind;
  frame_listed_ = listed;
  frame_offset_ = buffer_.next_offset();
  buffer_.Begin(kind, ordinal);
}

void MetaStream::EndFrame() {
  buffer_.End();
  ++frames_;
  if (frame_listed_) listed_.push_back({frame_kind_, frame_offset_, buffer_.next_offset() - frame_offset_});
}

template <typename Row>
void MetaStream::EncodeTable(FrameKind kind, std::uint64_t ordinal, const std::vector<Row>& rows,
                             bool listed) {
  for (std::size_t at = 0; at < rows.size(); at += kMaxRowsPerFrame) {
    Frame(kind, ordinal, listed);
    buffer_.PutRows(std::span<const Row>(rows).subspan(at, std::min(kMaxRowsPerFrame, rows.size() - at)));
    EndFrame();
  }
}

void MetaStream::EncodeRows(const StepBatch& batch, std::uint64_t ordinal) {
  const auto entries = [&](FrameKind kind, const auto& items, bool listed, auto put) {
    for (std::size_t i = 0; i < items.size();) {
      Frame(kind, ordinal, listed);
      while (i < items.size() && buffer_.body_bytes() < kMaxBytesPerFrame) put(items[i++]);
      EndFrame();
    }
  };
  entries(FrameKind::kTensorDefs, batch.tensors, false, [&](const TensorDef& def) {
    format::PutTensorDef({def.id, def.role, def.name, def.module_path, def.module_type, def.collections},
                         &buffer_);
  });
  entries(FrameKind::kLayoutDefs, batch.layouts, false, [&](const LayoutDef& def) {
    format::PutLayoutDef({def.id, def.layout, def.global_shape, def.global_offset}, &buffer_);
  });
  for (const auto& [name, json] : batch.documents) {
    if (json.size() > kMaxBytesPerFrame) continue;
    Frame(FrameKind::kDocument, ordinal, true);
    format::PutDocument(name, json, &buffer_);
    EndFrame();
  }
  for (const std::string& json : batch.event_json) {
    if (json.size() > kMaxBytesPerFrame) continue;
    Frame(FrameKind::kEventJson, ordinal, true);
    buffer_.Put(json.data(), json.size());
    EndFrame();
  }
  entries(FrameKind::kSeriesDefs, batch.series, true,
          [&](const format::SeriesDef& def) { format::PutSeriesDef(def.view(), &buffer_); });
  for (const format::SampleBlock& block : batch.samples) {
    if (block.mono_ns.empty()) continue;
    Frame(FrameKind::kSamples, ordinal, true);
    format::PutSamples(block, &buffer_);
    EndFrame();
  }
  EncodeTable(FrameKind::kAck, ordinal, batch.acks, true);
  // Gaps come last among the frames without a step, so that the remains of a torn write, which will be
  // repeated, contain none of them.
  EncodeTable(FrameKind::kGapRows, ordinal, batch.gaps, true);
  if (ordinal == format::kLooseOrdinal) return;  // the rows below need a step
  EncodeTable(FrameKind::kSummaryRows, ordinal, batch.summaries, false);
  EncodeTable(FrameKind::kIndexRows, ordinal, batch.index, false);
  entries(FrameKind::kHistogramRows, batch.histograms, true,
          [&](const auto& item) { format::PutHistogram(item.first, item.second, &buffer_); });
  entries(FrameKind::kUnitRows, batch.units, true,
          [&](const auto& item) { format::PutUnits(item.first, item.second, &buffer_); });
  EncodeTable(FrameKind::kFormRows, ordinal, batch.forms, false);
  EncodeTable(FrameKind::kScalarRows, ordinal, batch.scalars, false);
  EncodeTable(FrameKind::kEventRows, ordinal, batch.events, true);
  if (batch.phases.head.rows != 0) {
    Frame(FrameKind::kPhases, ordinal, true);
    buffer_.PutValue(batch.phases.head);
    buffer_.PutRows(std::span<const format::PhaseRow>(batch.phases.rows).first(batch.phases.head.rows));
    EndFrame();
  }
  if (!batch.modules.rows.empty()) {
    const auto rows =
        std::span(batch.modules.rows).first(std::min(batch.modules.rows.size(), format::kMaxModuleRows));
    format::ModuleTimesHead head = batch.modules.head;
    head.rows = static_cast<std::uint32_t>(rows.size());
    Frame(FrameKind::kModuleTimes, ordinal, true);
    buffer_.PutValue(head);
    buffer_.PutRows(rows);
    EndFrame();
  }
}

void MetaStream::AbandonSegment() noexcept {
  try {
    (void)file_->Truncate(end_);
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory for the error's text
  }
  file_->WriteBack(0, end_, false);
  file_.reset();
}

Status MetaStream::Append() {
  Status status;
  try {
    if (Status intact = file_->Intact(); !intact.ok()) {
      GiveUp(intact);
      return intact;
    }
    status = file_->WriteAt(buffer_.bytes(), end_);
  } catch (...) {
    AbandonSegment();
    throw;
  }
  if (!status.ok()) {
    AbandonSegment();
    return status;
  }
  end_ += buffer_.bytes().size();
  bytes_written_ += buffer_.bytes().size();
  return status;
}

template <typename F>
void MetaStream::Account(std::uint64_t ordinal, F&& add) noexcept {
  try {
    for (const Encoded& frame : listed_) footer_.AddFrame(frame.kind, ordinal, frame.offset, frame.bytes);
    add();
  } catch (...) {
    footer_lost_ = true;
  }
}

void MetaStream::AccountDefs(const StepBatch& batch) {
  for (const TensorDef& def : batch.tensors) {
    footer_.AddTensorDef({def.id, def.role, def.name, def.module_path, def.module_type, def.collections});
  }
  for (const LayoutDef& def : batch.layouts) {
    footer_.AddLayoutDef({def.id, def.layout, def.global_shape, def.global_offset});
  }
}

Status MetaStream::WriteStep(const StepBatch& batch) {
  LUFF_RETURN_IF_ERROR(EnsureSegment());
  const std::uint64_t ordinal = next_ordinal_;
  buffer_.Reset(sequence_, end_);
  listed_.clear();
  frames_ = 0;
  EncodeRows(batch, ordinal);
  format::StepMark mark = batch.mark;
  mark.frames = frames_;
  mark.forms = FormsOf(batch);
  mark.epoch = start_.epoch;
  Frame(FrameKind::kStep, ordinal, false);
  buffer_.PutValue(mark);
  EndFrame();
  LUFF_RETURN_IF_ERROR(Append());
  Account(ordinal, [&] {
    AccountDefs(batch);
    footer_.AddSummaries(batch.summaries);
    footer_.AddIndex(batch.index);
    footer_.AddForms(batch.forms);
    footer_.AddScalars(batch.scalars);
    footer_.AddStep(ordinal, mark);
    steps_here_.push_back({end_, mark.global_step});
  });
  next_ordinal_ = ordinal + 1;
  last_global_step_ = mark.global_step;
  if (mark.mode == static_cast<std::uint8_t>(format::Mode::kTrain)) ++train_steps_;
  return Status::Ok();
}

Status MetaStream::WriteLoose(const StepBatch& batch) {
  LUFF_RETURN_IF_ERROR(EnsureSegment());
  buffer_.Reset(sequence_, end_);
  listed_.clear();
  EncodeRows(batch, format::kLooseOrdinal);
  if (buffer_.empty()) return Status::Ok();
  LUFF_RETURN_IF_ERROR(Append());
  Account(format::kLooseOrdinal, [&] { AccountDefs(batch); });
  return Status::Ok();
}

Status MetaStream::WriteRetention(std::span<const format::RelocateRow> relocated,
                                  std::span<const format::RetireRow> retired) {
  LUFF_RETURN_IF_ERROR(EnsureSegment());
  buffer_.Reset(sequence_, end_);
  listed_.clear();
  for (std::size_t at = 0; at < relocated.size(); at += kMaxRowsPerFrame) {
    Frame(FrameKind::kRelocate, format::kLooseOrdinal, true);
    buffer_.PutRows(relocated.subspan(at, std::min(kMaxRowsPerFrame, relocated.size() - at)));
    EndFrame();
  }
  if (!retired.empty()) {
    Frame(FrameKind::kRetire, format::kLooseOrdinal, true);
    buffer_.PutRows(retired);
    EndFrame();
  }
  LUFF_RETURN_IF_ERROR(Append());
  Account(format::kLooseOrdinal, [] {});
  return Status::Ok();
}

Status MetaStream::WriteHeartbeat(std::int64_t unix_ns) {
  LUFF_RETURN_IF_ERROR(EnsureSegment());
  buffer_.Reset(sequence_, end_);
  listed_.clear();
  Frame(FrameKind::kHeartbeat, format::kLooseOrdinal, false);
  buffer_.PutValue(unix_ns);
  EndFrame();
  LUFF_RETURN_IF_ERROR(Append());
  Account(format::kLooseOrdinal, [] {});
  return Status::Ok();
}

Status MetaStream::WriteEnd(const format::EndMark& end) {
  LUFF_RETURN_IF_ERROR(EnsureSegment());
  buffer_.Reset(sequence_, end_);
  listed_.clear();
  Frame(FrameKind::kEnd, format::kLooseOrdinal, true);
  buffer_.PutValue(end);
  EndFrame();
  LUFF_RETURN_IF_ERROR(Append());
  Account(format::kLooseOrdinal, [] {});
  return Status::Ok();
}

Status MetaStream::Seal() {
  if (file_ == nullptr) return Status::Ok();
  if (footer_lost_) {
    AbandonSegment();
    return ResourceExhausted("there was no memory for a segment's footer");
  }
  if (Status intact = file_->Intact(); !intact.ok()) {
    GiveUp(intact);
    return intact;
  }
  Status status;
  try {
    sealed_.reserve(sealed_.size() + 1);
    status = WriteFooter();
  } catch (...) {
    AbandonSegment();
    throw;
  }
  if (!status.ok()) {
    AbandonSegment();
    return status;
  }
  end_ += buffer_.bytes().size();
  bytes_written_ += buffer_.bytes().size();
  sealed_.push_back({sequence_, end_});
  file_->WriteBack(0, end_, false);
  file_.reset();
  return status;
}

Status MetaStream::WriteFooter() {
  buffer_.Reset(sequence_, end_);
  LUFF_RETURN_IF_ERROR(footer_.Build(next_ordinal_, train_steps_, &buffer_));
  const std::span<const std::byte> footer = buffer_.bytes();
  for (std::size_t at = 0; at < footer.size(); at += kFooterPiece) {
    const std::size_t bytes = std::min(kFooterPiece, footer.size() - at);
    LUFF_RETURN_IF_ERROR(file_->WriteAt(footer.subspan(at, bytes), end_ + at));
  }
  return Status::Ok();
}

Status MetaStream::Sync() { return file_ == nullptr ? Status::Ok() : file_->Sync(); }

std::vector<MetaStream::SealedSegment> MetaStream::TakeSealed() {
  std::vector<SealedSegment> taken;
  taken.swap(sealed_);
  return taken;
}

}  // namespace luff::store
