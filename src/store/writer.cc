#include "luff/store/writer.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <new>

#include "luff/base/env.h"
#include "store/disk_room.h"
#include "store/earlier_epochs.h"
#include "store/live_page.h"
#include "store/merge.h"
#include "store/meta_stream.h"
#include "store/paths.h"
#include "store/payload_store.h"

namespace luff::store {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kHeartbeatFrameNs = 5 * kSecond;
constexpr std::int64_t kSyncIntervalNs = 5 * kSecond;
constexpr std::int64_t kFirstRetryNs = kSecond / 10;  // after an error; doubles up to the last
constexpr std::int64_t kLastRetryNs = 10 * kSecond;
constexpr std::uint64_t kMaxPendingBytes = 8ULL << 20;  // rows kept in memory while the disk refuses them

std::uint64_t RowBytes(const StepBatch& batch) noexcept {
  std::uint64_t bytes =
      sizeof(format::StepMark) + batch.summaries.size() * sizeof(format::SummaryRow) +
      batch.index.size() * sizeof(format::IndexRow) + batch.forms.size() * sizeof(format::FormRow) +
      batch.scalars.size() * sizeof(format::ScalarRow) + batch.events.size() * sizeof(format::EventRow) +
      batch.gaps.size() * sizeof(format::GapRow);
  for (const auto& [tensor, bins] : batch.histograms) bytes += bins.size() * sizeof(HistogramBin);
  for (const auto& [tensor, units] : batch.units) bytes += units.positive.size() * 24;
  for (const std::string& json : batch.event_json) bytes += json.size();
  return bytes;
}

std::uint64_t RowCount(const StepBatch& batch) noexcept {
  return batch.summaries.size() + batch.index.size() + batch.forms.size() + batch.scalars.size() +
         batch.histograms.size() + batch.units.size() + batch.events.size() + batch.event_json.size();
}

class FileWorkerWriter final : public WorkerWriter {
 public:
  FileWorkerWriter(Env& env, const WriterOptions& options, std::unique_ptr<LivePageWriter> live,
                   MetaStream::Start meta, const PayloadStore::Start& payload, std::uint64_t meta_max_bytes)
      : env_(env),
        options_(options),
        live_(std::move(live)),
        meta_(env, WorkerDirectory(options.run_path, options.worker), meta),
        payload_(env, WorkerDirectory(options.run_path, options.worker), payload),
        budget_(env, WorkerDirectory(options.run_path, options.worker), meta_max_bytes),
        reserve_(env, WorkerDirectory(options.run_path, options.worker)) {}
  ~FileWorkerWriter() override {
    if (Mine()) payload_.Finish();
  }

  Status Start(const RunInfo& run, const EarlierEpochs& earlier) {
    for (const auto& file : earlier.data) payload_.Adopt(file.sequence, file.bytes, file.retention_class);
    for (const auto& file : earlier.meta) budget_.Adopt(file);
    LUFF_RETURN_IF_ERROR(meta_.EnsureSegment());
    reserve_.Take();
    live_->Begin(run, options_.worker, meta_.epoch(), meta_.next_ordinal(), meta_.train_steps());
    Heartbeat();
    Show();
    return Status::Ok();
  }

  Status AppendChunks(std::span<const ChunkRef> chunks, Retention retention, std::int64_t global_step,
                      std::vector<Place>* places) override;
  Status PublishStep(StepBatch& batch) override { return Publish(batch, true); }
  Status PublishLoose(StepBatch& batch) override { return Publish(batch, false); }
  void Heartbeat() override;
  Status Close(format::EndReason reason) override;

  bool payload_budget_exhausted() const noexcept override {
    return exhausted_.load(std::memory_order_relaxed);
  }
  bool ChunkIsKept(Place place) const noexcept override { return payload_.IsKept(place); }
  Place Resolve(Place place) const noexcept override { return payload_.Resolve(place); }
  std::uint32_t epoch() const noexcept override { return meta_.epoch(); }
  std::uint64_t next_ordinal() const noexcept override { return meta_.next_ordinal(); }
  std::uint64_t bytes_written() const noexcept override {
    return bytes_written_.load(std::memory_order_relaxed);
  }

 private:
  /// False in a forked child: the files are its parent's, and it must leave them alone.
  [[nodiscard]] bool Mine() const noexcept { return getpid() == pid_; }
  Status Publish(StepBatch& batch, bool step);
  Status Write(StepBatch& batch, bool step);
  /// The disk has refused: try again later, and then less and less often.
  void Fail(const Status& status);
  [[nodiscard]] bool MayTry();
  /// Writes what was kept in memory, in order. True when nothing is left.
  bool Recover();
  void Keep(const StepBatch& batch, bool step);
  /// What finds no room in memory: names are kept, the rows become the count of a gap.
  void Drop(const StepBatch& batch, bool step, std::uint64_t bytes);
  /// At the end of a run on a full disk: gives the reserve back and says what was lost.
  Status LastWords(const format::EndMark& end);
  Status AfterPublication();
  Status RunExpiry();
  void Show();

  Env& env_;
  const WriterOptions options_;
  std::unique_ptr<LivePageWriter> live_;
  MetaStream meta_;
  PayloadStore payload_;
  MetaBudget budget_;
  DiskReserve reserve_;
  std::int64_t last_heartbeat_frame_ns_ = 0;
  std::int64_t last_sync_ns_ = 0;
  bool closed_ = false;
  const pid_t pid_ = getpid();

  // Degraded form.
  bool failing_ = false;
  std::int64_t retry_at_ns_ = 0;
  std::int64_t retry_after_ns_ = 0;
  format::GapReason failure_ = format::GapReason::kIoError;
  Status failure_status_;
  struct Pending {
    StepBatch batch;
    bool step;
  };
  std::deque<Pending> pending_;
  std::uint64_t pending_bytes_ = 0;
  StepBatch pending_definitions_;  // of batches that were dropped
  format::GapRow dropped_{};       // rows that found no room in memory
  format::GapRow lost_{};          // index rows whose chunk is gone
  PayloadStore::Expiry expiry_;    // not yet on record
  Status payload_failure_;
  std::int64_t payload_retry_at_ns_ = 0;
  std::int64_t payload_retry_after_ns_ = 0;

  std::atomic<bool> exhausted_{false};
  std::atomic<std::uint64_t> bytes_written_{0};
};

format::GapReason ReasonOf(const Status& status) noexcept {
  return status.code() == StatusCode::kResourceExhausted ? format::GapReason::kDiskFull
                                                         : format::GapReason::kIoError;
}

Status FileWorkerWriter::AppendChunks(std::span<const ChunkRef> chunks, Retention retention,
                                      std::int64_t global_step, std::vector<Place>* places) {
  try {
    places->clear();
    if (closed_ || !Mine())
      return FailedPrecondition("the writer is closed, or belongs to the parent process");
    if (payload_retry_at_ns_ != 0 && env_.NowMonotonicNs() < payload_retry_at_ns_) {
      return payload_failure_;  // refused a moment ago; tried again soon
    }
    std::uint64_t need = 0;
    for (const ChunkRef& chunk : chunks) need += chunk.bytes;
    while (payload_.ThinFor(need)) {
      if (!RunExpiry().ok()) break;
    }
    Status status = payload_.Append(chunks, retention, global_step, meta_.next_ordinal(), places);
    exhausted_.store(payload_.exhausted(), std::memory_order_relaxed);
    if (status.ok()) {
      payload_retry_at_ns_ = payload_retry_after_ns_ = 0;
    } else if (!payload_.exhausted()) {
      payload_failure_ = status;
      payload_retry_after_ns_ = std::clamp(payload_retry_after_ns_ * 2, kFirstRetryNs, kLastRetryNs);
      payload_retry_at_ns_ = env_.NowMonotonicNs() + payload_retry_after_ns_;
    }
    return status;
  } catch (const std::bad_alloc&) {
    places->clear();
    return ResourceExhausted("out of memory while appending payload");
  }
}

Status FileWorkerWriter::Publish(StepBatch& batch, bool step) {
  try {
    if (closed_ || !Mine())
      return FailedPrecondition("the writer is closed, or belongs to the parent process");
    if (failing_ && (!MayTry() || !Recover())) {
      Keep(batch, step);
      return failure_status_;
    }
    Status status = Write(batch, step);
    if (!status.ok()) {
      Fail(status);
      Keep(batch, step);
      return status;
    }
    return AfterPublication();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("out of memory while publishing a step");
  }
}

Status FileWorkerWriter::Write(StepBatch& batch, bool step) {
  if (step) {
    // Errors of copying show as rows in lost_, which become a gap.
    (void)payload_.PrepareRows(&batch.index, &batch.index_retention, meta_.next_ordinal(), &lost_);
    if (lost_.count != 0) {
      lost_.tensor = lost_.collection = format::kNoId;
      lost_.reason = static_cast<std::uint16_t>(format::GapReason::kRetired);
      lost_.forms = static_cast<std::uint16_t>(format::Form::kRaw);
      lost_.first_step = lost_.last_step = batch.mark.global_step;
      batch.gaps.push_back(lost_);
      lost_ = {};
    }
  }
  if (options_.sync == WriterOptions::Sync::kStep) LUFF_RETURN_IF_ERROR(payload_.Sync());
  LUFF_RETURN_IF_ERROR(step ? meta_.WriteStep(batch) : meta_.WriteLoose(batch));
  if (options_.sync == WriterOptions::Sync::kStep) LUFF_RETURN_IF_ERROR(meta_.Sync());
  if (step) payload_.StepPublished();
  Show();
  return Status::Ok();
}

void FileWorkerWriter::Show() {
  LivePageWriter::Published published;
  published.meta_sequence = meta_.sequence();
  published.meta_length = meta_.length();
  const Place newest = payload_.newest();
  published.data_sequence = newest.data_file;
  published.data_length = newest.offset;
  published.next_ordinal = meta_.next_ordinal();
  published.last_global_step = meta_.last_global_step();
  published.train_steps = meta_.train_steps();
  live_->Publish(published);
  live_->SetState(failing_ ? format::LiveState::kDegraded : format::LiveState::kWriting);
  bytes_written_.store(meta_.bytes_written() + payload_.bytes_written(), std::memory_order_relaxed);
}

Status FileWorkerWriter::AfterPublication() {
  if (options_.sync == WriterOptions::Sync::kInterval) {
    const std::int64_t now = env_.NowMonotonicNs();
    if (now - last_sync_ns_ >= kSyncIntervalNs) {
      last_sync_ns_ = now;
      (void)payload_.Sync();
      (void)meta_.Sync();
    }
  }
  // Failures below cost no row that was given: they show at the next publication.
  (void)RunExpiry();
  if (meta_.full()) {
    (void)meta_.Seal();
    for (const auto& sealed : meta_.TakeSealed()) budget_.Add(sealed, meta_.epoch());
    Show();
    // Two a seal: the oldest segments shrink faster than new ones come.
    for (int i = 0; i < 2 && budget_.MergeOne(0); ++i) live_->CountChange();
  }
  return Status::Ok();
}

Status FileWorkerWriter::RunExpiry() {
  if (failing_) return failure_status_;
  if (expiry_.retired.empty()) {
    const Status status = payload_.Expire(meta_.next_ordinal(), &expiry_);
    if (expiry_.retired.empty()) return status;
  }
  StepBatch gaps;
  gaps.gaps = expiry_.gaps;
  Status status = meta_.WriteRetention(expiry_.relocated, expiry_.retired);
  if (!status.ok()) {
    Fail(status);  // the files stay until it is on record
    return status;
  }
  if (!gaps.gaps.empty()) status = meta_.WriteLoose(gaps);
  Show();
  live_->CountChange();
  payload_.RemoveRetired(expiry_);
  expiry_.clear();
  if (!status.ok()) Fail(status);
  return status;
}

void FileWorkerWriter::Fail(const Status& status) {
  failing_ = true;
  failure_ = ReasonOf(status);
  failure_status_ = status;
  retry_after_ns_ = std::clamp(retry_after_ns_ * 2, kFirstRetryNs, kLastRetryNs);
  retry_at_ns_ = env_.NowMonotonicNs() + retry_after_ns_;
  live_->SetState(format::LiveState::kDegraded);
}

bool FileWorkerWriter::MayTry() { return env_.NowMonotonicNs() >= retry_at_ns_; }

void FileWorkerWriter::Keep(const StepBatch& batch, bool step) {
  const std::uint64_t bytes = RowBytes(batch);
  if (pending_bytes_ + bytes <= kMaxPendingBytes) {
    pending_.push_back({batch, step});
    pending_bytes_ += bytes;
    return;
  }
  Drop(batch, step, bytes);
}

void FileWorkerWriter::Drop(const StepBatch& batch, bool step, std::uint64_t bytes) {
  // Names must not be lost: rows to come refer to them. Their number is bounded by the capture room.
  auto& kept = pending_definitions_;
  kept.tensors.insert(kept.tensors.end(), batch.tensors.begin(), batch.tensors.end());
  kept.layouts.insert(kept.layouts.end(), batch.layouts.begin(), batch.layouts.end());
  for (const auto& document : batch.documents) {
    std::erase_if(kept.documents, [&](const auto& old) { return old.first == document.first; });
    kept.documents.push_back(document);
  }
  kept.acks.insert(kept.acks.end(), batch.acks.begin(), batch.acks.end());
  if (dropped_.count == 0) {
    dropped_ = {};
    dropped_.tensor = dropped_.collection = format::kNoId;
    dropped_.first_step = dropped_.last_step = batch.mark.global_step;
  }
  dropped_.reason = static_cast<std::uint16_t>(failure_);
  dropped_.count += std::max<std::uint64_t>(RowCount(batch), 1);
  dropped_.bytes += bytes;
  if (step) {
    dropped_.first_step = std::min(dropped_.first_step, batch.mark.global_step);
    dropped_.last_step = std::max(dropped_.last_step, batch.mark.global_step);
  }
  const auto forms = [&](bool present, format::Form form) {
    if (present)
      dropped_.forms = static_cast<std::uint16_t>(dropped_.forms | static_cast<std::uint16_t>(form));
  };
  forms(!batch.summaries.empty(), format::Form::kSummary);
  forms(!batch.index.empty(), format::Form::kRaw);
  forms(!batch.histograms.empty(), format::Form::kHistogram);
  forms(!batch.units.empty(), format::Form::kUnits);
}

bool FileWorkerWriter::Recover() {
  while (!pending_.empty()) {
    Pending& first = pending_.front();
    if (const Status status = Write(first.batch, first.step); !status.ok()) {
      Fail(status);
      return false;
    }
    const std::uint64_t bytes = RowBytes(first.batch);
    pending_bytes_ -= std::min(bytes, pending_bytes_);
    pending_.pop_front();
  }
  pending_bytes_ = 0;
  if (dropped_.count != 0) {
    StepBatch loose = pending_definitions_;
    loose.gaps.push_back(dropped_);
    if (const Status status = Write(loose, false); !status.ok()) {
      Fail(status);
      return false;
    }
    pending_definitions_.clear();
    dropped_ = {};
  }
  failing_ = false;
  failure_status_ = Status::Ok();
  retry_after_ns_ = 0;
  return true;
}

void FileWorkerWriter::Heartbeat() {
  if (closed_ || !Mine()) return;
  try {
    live_->Beat(env_.NowUnixNs());
    const std::int64_t now = env_.NowMonotonicNs();
    if (last_heartbeat_frame_ns_ != 0 && now - last_heartbeat_frame_ns_ < kHeartbeatFrameNs) return;
    last_heartbeat_frame_ns_ = now;
    if (failing_ && (!MayTry() || !Recover())) return;
    const Status status = meta_.WriteHeartbeat(env_.NowUnixNs());
    if (!status.ok()) {
      Fail(status);
      return;
    }
    Show();
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
    // A heartbeat less.
  }
}

Status FileWorkerWriter::LastWords(const format::EndMark& end) {
  failure_ = format::GapReason::kDiskFull;
  for (const Pending& pending : pending_) Drop(pending.batch, pending.step, RowBytes(pending.batch));
  pending_.clear();
  pending_bytes_ = 0;
  reserve_.Release();
  if (!Recover()) return failure_status_;
  return meta_.WriteEnd(end);
}

Status FileWorkerWriter::Close(format::EndReason reason) {
  if (closed_ || !Mine()) return Status::Ok();
  try {
    if (failing_) (void)Recover();  // the last chance, whatever the time
    format::EndMark end{};
    end.reason = static_cast<std::uint32_t>(reason);
    end.last_global_step = meta_.last_global_step();
    end.unix_ns = env_.NowUnixNs();
    payload_.Finish();
    Status status = failing_ ? failure_status_ : meta_.WriteEnd(end);
    if (status.code() == StatusCode::kResourceExhausted) status = LastWords(end);
    if (status.ok() && options_.sync != WriterOptions::Sync::kNone) (void)meta_.Sync();
    reserve_.Release();
    const Status sealed = meta_.Seal();
    if (status.ok()) status = sealed;
    closed_ = true;
    Show();
    live_->Beat(env_.NowUnixNs());
    live_->SetState(format::LiveState::kEnded);
    return status;
  } catch (const std::bad_alloc&) {
    closed_ = true;
    return ResourceExhausted("out of memory while closing");
  }
}

}  // namespace

void StepBatch::clear() {
  tensors.clear();
  layouts.clear();
  documents.clear();
  summaries.clear();
  index.clear();
  index_retention.clear();
  histograms.clear();
  units.clear();
  forms.clear();
  scalars.clear();
  events.clear();
  event_json.clear();
  gaps.clear();
  acks.clear();
  mark = {};
}

Result<std::unique_ptr<WorkerWriter>> WorkerWriter::Open(const WriterOptions& options, const RunInfo& run) {
  try {
    Env& env = options.env != nullptr ? *options.env : Env::Real();
    const std::string directory = WorkerDirectory(options.run_path, options.worker);
    LUFF_RETURN_IF_ERROR(env.MakeDirectories(directory));
    LUFF_ASSIGN_OR_RETURN(auto live, LivePageWriter::Take(env, directory, options.live_page));
    LUFF_ASSIGN_OR_RETURN(const EarlierEpochs earlier, ReadEarlierEpochs(env, directory));
    MetaStream::Start meta;
    meta.run_id = run.run_id;
    meta.worker = options.worker;
    meta.epoch = earlier.next_epoch;
    meta.next_sequence = earlier.next_meta_sequence;
    meta.next_ordinal = earlier.next_ordinal;
    meta.train_steps = earlier.train_steps;
    meta.segment_bytes = std::clamp<std::uint64_t>(options.segment_bytes_meta, 1 << 12, 24ULL << 20);
    PayloadStore::Start payload;
    payload.run_id = run.run_id;
    payload.worker = options.worker;
    payload.epoch = earlier.next_epoch;
    payload.next_sequence = earlier.next_data_sequence;
    payload.segment_bytes = std::clamp<std::uint64_t>(options.segment_bytes_payload, 1 << 14, 1ULL << 34);
    std::uint64_t meta_max_bytes = options.summary_max_bytes;
    if (options.max_bytes != 0) {
      const std::uint64_t summaries = options.summary_max_bytes != 0
                                          ? std::min(options.summary_max_bytes, options.max_bytes)
                                          : options.max_bytes / 4;
      meta_max_bytes = summaries;
      payload.max_bytes = std::max<std::uint64_t>(options.max_bytes - summaries, 1);
    }
    payload.direct = options.direct_io != WriterOptions::Direct::kOff;
    auto writer =
        std::make_unique<FileWorkerWriter>(env, options, std::move(live), meta, payload, meta_max_bytes);
    LUFF_RETURN_IF_ERROR(writer->Start(run, earlier));
    return std::unique_ptr<WorkerWriter>(std::move(writer));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("out of memory while opening a worker's folder");
  }
}

}  // namespace luff::store
