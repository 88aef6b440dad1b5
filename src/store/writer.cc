#include "luff/store/writer.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <new>
#include <utility>

#include "luff/base/env.h"
#include "luff/store/loss.h"
#include "store/disk_room.h"
#include "store/earlier_epochs.h"
#include "store/live_page.h"
#include "store/merge.h"
#include "store/meta_stream.h"
#include "store/paths.h"
#include "store/payload_store.h"
#include "store/uploaded.h"

namespace luff::store {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kHeartbeatFrameNs = 5 * kSecond;
constexpr std::int64_t kSyncIntervalNs = 5 * kSecond;
constexpr std::int64_t kFirstRetryNs = kSecond / 10;  // after an error; doubles up to kLastRetryNs
constexpr std::int64_t kLastRetryNs = 10 * kSecond;
constexpr std::int64_t kUploadedEveryNs = 5 * kSecond;
constexpr std::int64_t kUploadedCountsNs = 300 * kSecond;  // an upload says it again each minute
constexpr int kMostLosses = 64;  // files that may be taken away before the writer gives up
constexpr std::uint64_t kMaxPendingBytes = 8ULL << 20;  // rows kept in memory while the disk refuses them

/// True if the error concerns one file, not the disk.
bool IsLoss(const Status& status) noexcept {
  return status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kNotFound ||
         status.code() == StatusCode::kCorruption;
}

format::GapReason ReasonOf(const Status& status) noexcept {
  if (IsLoss(status)) return format::GapReason::kFileLost;
  return status.code() == StatusCode::kResourceExhausted ? format::GapReason::kDiskFull
                                                         : format::GapReason::kIoError;
}

/// OK if there is no memory even for an error; the ledger has recorded what was lost.
Status NoMemory() noexcept {
  try {
    return ResourceExhausted("no memory is left for the writer thread");
  } catch (...) {
    return {};
  }
}

std::string FolderOf(const WriterOptions& options) {
  return options.host ? HostDirectory(options.run_path, options.worker)
                      : WorkerDirectory(options.run_path, options.worker);
}

class FileWorkerWriter final : public WorkerWriter {
 public:
  FileWorkerWriter(Env& env, std::unique_ptr<Env> own_env, const WriterOptions& options,
                   std::unique_ptr<LivePageWriter> live, MetaStream::Start meta,
                   const PayloadStore::Start& payload, std::uint64_t meta_max_bytes)
      : own_env_(std::move(own_env)),
        env_(env),
        options_(options),
        live_(std::move(live)),
        meta_(env, FolderOf(options), meta),
        payload_(env, FolderOf(options), payload),
        budget_(env, FolderOf(options), meta_max_bytes),
        reserve_(env, FolderOf(options)) {}
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
  Status gone() const override { return gone_; }

 private:
  /// False in a forked child: the files are its parent's, and it must leave them alone.
  [[nodiscard]] bool Mine() const noexcept { return getpid() == pid_; }
  Status Publish(StepBatch& batch, bool step);
  /// Writes, keeps or folds the batch: afterwards it is in the run, in memory, or in a gap.
  Status Account(StepBatch& batch, bool step) noexcept;
  Status Write(StepBatch& batch, bool step);
  /// Handles the loss of a file, which says nothing about the disk. Returns true if another file may be tried
  /// at once.
  [[nodiscard]] bool MayReplace(const Status& status);
  /// Handles a refusal of the disk: tries again later, at growing intervals.
  void Fail(format::GapReason reason, Status status) noexcept;
  void Fail(const Status& status) { Fail(ReasonOf(status), status); }
  [[nodiscard]] bool MayTry();
  /// Writes what was kept in memory, in order. Returns true if nothing is left.
  bool Recover();
  void KeepInMemory(StepBatch& batch, bool step) noexcept;
  void Fold(StepBatch* batch, bool step, format::GapReason reason) noexcept;
  /// Used at the end of a run whose disk refuses writes: releases the reserve and records what was lost.
  Status LastWords(const format::EndMark& end);
  Status AfterPublication();
  Status RunExpiry();
  void RetireUploaded();
  void Show();

  const std::unique_ptr<Env> own_env_;
  Env& env_;
  const WriterOptions options_;
  std::unique_ptr<LivePageWriter> live_;
  MetaStream meta_;
  PayloadStore payload_;
  MetaBudget budget_;
  DiskReserve reserve_;
  std::int64_t last_heartbeat_frame_ns_ = 0;
  std::int64_t last_sync_ns_ = 0;
  std::int64_t last_uploaded_ns_ = 0;
  bool closed_ = false;
  const pid_t pid_ = getpid();

  Status gone_;
  int losses_ = 0;

  // Degraded form.
  bool failing_ = false;
  std::int64_t retry_at_ns_ = 0;
  std::int64_t retry_after_ns_ = 0;
  format::GapReason failure_ = format::GapReason::kIoError;
  Status failure_status_;
  Status sync_status_;  // of what is written, but perhaps not on the disk
  struct Pending {
    StepBatch batch;
    bool step = false;
    std::uint64_t bytes = 0;
  };
  std::deque<Pending> pending_;
  std::uint64_t pending_bytes_ = 0;
  LossLedger ledger_;            // batches that did not fit into pending_, all later than those that did
  bool unreadable_ = false;      // definitions were lost: no row may be written any more
  format::GapRow lost_{};        // index rows whose chunk is gone
  PayloadStore::Expiry expiry_;  // not yet on record
  Status payload_failure_;
  std::int64_t payload_retry_at_ns_ = 0;
  std::int64_t payload_retry_after_ns_ = 0;

  std::atomic<bool> exhausted_{false};
  std::atomic<std::uint64_t> bytes_written_{0};
};

bool FileWorkerWriter::MayReplace(const Status& status) {
  if (!IsLoss(status) || !gone_.ok()) return false;
  if (!env_.Exists(FolderOf(options_))) {
    gone_ = NotFound("the run directory was removed while it was written; what was recorded is lost: " +
                     options_.run_path);
  } else if (++losses_ > kMostLosses) {
    gone_ = Status(status.code(), "files of the run were taken away " + std::to_string(losses_) +
                                      " times, no other is begun: " + std::string(status.message()));
  }
  return gone_.ok();
}

Status FileWorkerWriter::AppendChunks(std::span<const ChunkRef> chunks, Retention retention,
                                      std::int64_t global_step, std::vector<Place>* places) {
  try {
    places->clear();
    if (closed_ || !Mine())
      return FailedPrecondition("the writer is closed, or belongs to the parent process");
    if (!gone_.ok()) return gone_;
    if (payload_retry_at_ns_ != 0 && env_.NowMonotonicNs() < payload_retry_at_ns_) {
      return payload_failure_;  // refused a moment ago; the next try is due soon
    }
    std::uint64_t need = 0;
    for (const ChunkRef& chunk : chunks) need += chunk.bytes;
    while (payload_.ThinFor(need)) {
      if (!RunExpiry().ok()) break;
    }
    Status status = payload_.Append(chunks, retention, global_step, meta_.next_ordinal(), places);
    if (MayReplace(status)) {
      status = payload_.Append(chunks, retention, global_step, meta_.next_ordinal(), places);
    }
    exhausted_.store(payload_.exhausted(), std::memory_order_relaxed);
    if (status.ok()) {
      payload_retry_at_ns_ = payload_retry_after_ns_ = 0;
    } else if (!payload_.exhausted()) {
      payload_failure_ = status;
      payload_retry_after_ns_ = std::clamp(payload_retry_after_ns_ * 2, kFirstRetryNs, kLastRetryNs);
      payload_retry_at_ns_ = env_.NowMonotonicNs() + payload_retry_after_ns_;
    }
    return status;
  } catch (...) {
    places->clear();
    return NoMemory();
  }
}

Status FileWorkerWriter::Publish(StepBatch& batch, bool step) {
  if (closed_ || !Mine()) {
    return FailedPrecondition("the writer is closed, or belongs to the parent process");
  }
  LUFF_RETURN_IF_ERROR(Account(batch, step));
  try {
    return AfterPublication();
  } catch (...) {
    return NoMemory();
  }
}

Status FileWorkerWriter::Account(StepBatch& batch, bool step) noexcept {
  if (unreadable_) {
    Fold(&batch, step, format::GapReason::kRecordingFailed);
    return NoMemory();
  }
  bool kept = false;
  try {
    if (!failing_ || (MayTry() && Recover())) {
      Status status = Write(batch, step);
      if (MayReplace(status)) status = Write(batch, step);
      if (status.ok()) return status;
      Fail(gone_.ok() ? status : gone_);
    }
    KeepInMemory(batch, step);
    kept = true;
    return failure_status_;
  } catch (...) {  // out of memory, or an unknown error: nothing of the batch was written
    if (!kept) {
      Fail(format::GapReason::kRecordingFailed, NoMemory());
      KeepInMemory(batch, step);
    }
    return NoMemory();
  }
}

Status FileWorkerWriter::Write(StepBatch& batch, bool step) {
  payload_.TakeLost(&batch.gaps);
  if (step) {
    // Rows whose chunk could not be copied are counted in lost_, which becomes a gap.
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
  // From here on the batch is in the run. Failures below are no reason to write it again, or to count it as
  // lost.
  try {
    if (options_.sync == WriterOptions::Sync::kStep) sync_status_ = meta_.Sync();
    if (step) payload_.StepPublished();
    Show();
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
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
  live_->Publish(published, failing_ ? format::LiveState::kDegraded : format::LiveState::kWriting);
  bytes_written_.store(meta_.bytes_written() + payload_.bytes_written(), std::memory_order_relaxed);
}

Status FileWorkerWriter::AfterPublication() {
  Status synced = std::exchange(sync_status_, Status::Ok());
  if (options_.sync == WriterOptions::Sync::kInterval) {
    const std::int64_t now = env_.NowMonotonicNs();
    if (now - last_sync_ns_ >= kSyncIntervalNs) {
      last_sync_ns_ = now;
      (void)payload_.Sync();
      (void)meta_.Sync();
    }
  }
  // Failures below lose none of the published rows; they show up at the next publication.
  RetireUploaded();
  (void)RunExpiry();
  if (meta_.full()) {
    (void)meta_.Seal();
    for (const auto& sealed : meta_.TakeSealed()) budget_.Add(sealed, meta_.epoch());
    Show();
    // Two for each seal, so that old segments shrink faster than new ones arrive.
    for (int i = 0; i < 2 && budget_.MergeOne(0); ++i) live_->CountChange();
  }
  return synced;
}

/// Chooses payload that an upload has put into a bucket, if its owner wants less of it here.
void FileWorkerWriter::RetireUploaded() {
  const std::int64_t now = env_.NowMonotonicNs();
  if (now - last_uploaded_ns_ < kUploadedEveryNs || failing_ || options_.host || !expiry_.retired.empty())
    return;
  last_uploaded_ns_ = now;
  const auto uploaded = ReadUploaded(options_.run_path, options_.worker);
  // What was said long ago, by an upload that has ended, may be of a bucket that is no more.
  if (!uploaded.ok() || std::abs(env_.NowUnixNs() - uploaded->unix_ns) > kUploadedCountsNs) return;
  payload_.RetireUploaded(uploaded->payload, uploaded->keep_bytes, &expiry_);
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
    Fail(status);  // the files stay until their removal is recorded
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

void FileWorkerWriter::Fail(format::GapReason reason, Status status) noexcept {
  failing_ = true;
  failure_ = reason;
  failure_status_ = std::move(status);
  retry_after_ns_ = std::clamp(retry_after_ns_ * 2, kFirstRetryNs, kLastRetryNs);
  retry_at_ns_ = env_.NowMonotonicNs() + retry_after_ns_;
  live_->SetState(format::LiveState::kDegraded);
}

bool FileWorkerWriter::MayTry() { return gone_.ok() && env_.NowMonotonicNs() >= retry_at_ns_; }

// Once a batch was folded into a gap, so is everything after it, until the disk has accepted what came
// before. That way there is one gap, and names reach the disk before the rows that refer to them.
void FileWorkerWriter::KeepInMemory(StepBatch& batch, bool step) noexcept {
  const std::uint64_t bytes = MemoryOf(batch);
  try {
    if (ledger_.empty() && pending_bytes_ + bytes <= kMaxPendingBytes) {
      pending_.emplace_back();
      pending_.back() = {std::exchange(batch, {}), step, bytes};
      pending_bytes_ += bytes;
      return;
    }
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
  }
  Fold(&batch, step, failure_);
}

void FileWorkerWriter::Fold(StepBatch* batch, bool step, format::GapReason reason) noexcept {
  if (!ledger_.Fold(batch, step, reason)) unreadable_ = true;
}

bool FileWorkerWriter::Recover() {
  for (; !pending_.empty(); pending_.pop_front()) {
    Pending& first = pending_.front();
    if (const Status status = Write(first.batch, first.step); !status.ok()) {
      Fail(status);
      return false;
    }
    pending_bytes_ -= first.bytes;
  }
  if (!ledger_.empty()) {
    // The ledger's contents become a batch of their own, which stays pending if it is refused again.
    pending_.push_back({});
    ledger_.Release(0, true, &pending_.back().batch);
    return Recover();
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
    if (!gone_.ok()) return;
    const std::int64_t now = env_.NowMonotonicNs();
    if (last_heartbeat_frame_ns_ != 0 && now - last_heartbeat_frame_ns_ < kHeartbeatFrameNs) return;
    last_heartbeat_frame_ns_ = now;
    if (failing_ && (!MayTry() || !Recover())) return;
    Status status = meta_.WriteHeartbeat(env_.NowUnixNs());
    if (MayReplace(status)) status = meta_.WriteHeartbeat(env_.NowUnixNs());
    if (!status.ok()) {
      Fail(status);
      return;
    }
    Show();
  } catch (...) {  // NOLINT(bugprone-empty-catch)
    // One heartbeat is skipped.
  }
}

Status FileWorkerWriter::LastWords(const format::EndMark& end) {
  const format::GapReason reason = failing_ ? failure_ : format::GapReason::kDiskFull;
  for (Pending& pending : pending_) Fold(&pending.batch, pending.step, reason);
  pending_.clear();
  pending_bytes_ = 0;
  reserve_.Release();
  StepBatch kept, words;
  ledger_.Release(0, true, &kept);
  words.gaps.swap(kept.gaps);
  words.acks.swap(kept.acks);
  LUFF_RETURN_IF_ERROR(Write(words, false));
  LUFF_RETURN_IF_ERROR(meta_.WriteEnd(end));
  (void)Write(kept, false);  // names and documents, if there is room for them
  return Status::Ok();
}

Status FileWorkerWriter::Close(format::EndReason reason) {
  if (closed_ || !Mine()) return Status::Ok();
  try {
    if (failing_ && gone_.ok()) (void)Recover();  // the last chance, so without waiting for the retry time
    format::EndMark end{};
    end.reason = static_cast<std::uint32_t>(reason);
    end.last_global_step = meta_.last_global_step();
    end.unix_ns = env_.NowUnixNs();
    payload_.Finish();
    const bool orderly = !failing_ && !unreadable_;
    Status status = orderly ? meta_.WriteEnd(end) : Status::Ok();
    if (orderly && MayReplace(status)) status = meta_.WriteEnd(end);
    if (!orderly || !status.ok()) status = LastWords(end);
    if (status.ok() && options_.sync != WriterOptions::Sync::kNone) (void)meta_.Sync();
    reserve_.Release();
    const Status sealed = meta_.Seal();
    if (status.ok()) status = sealed;
    closed_ = true;
    Show();
    live_->End(env_.NowUnixNs());
    return status;
  } catch (...) {
    closed_ = true;
    return NoMemory();
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
  series.clear();
  samples.clear();
  phases.head = {};
  modules.head = {};
  modules.rows.clear();
  mark = {};
}

Result<std::unique_ptr<WorkerWriter>> WorkerWriter::Open(const WriterOptions& options, const RunInfo& run) {
  try {
    const std::string directory = FolderOf(options);
    LUFF_RETURN_IF_ERROR((options.env != nullptr ? *options.env : Env::Real()).MakeDirectories(directory));
    std::unique_ptr<Env> anchored;
    if (options.env == nullptr) {
      LUFF_ASSIGN_OR_RETURN(anchored, Env::Anchored(directory));
    }
    Env& env = options.env != nullptr ? *options.env : *anchored;
    LUFF_ASSIGN_OR_RETURN(auto live, LivePageWriter::Take(env, directory, options.live_page));
    LUFF_ASSIGN_OR_RETURN(const EarlierEpochs earlier, ReadEarlierEpochs(env, directory));
    if (options.fresh && (earlier.next_meta_sequence != 1 || earlier.next_data_sequence != 1))
      return AlreadyExists("found files in a worker's folder, expected an empty one: " + directory);
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
    auto writer = std::make_unique<FileWorkerWriter>(env, std::move(anchored), options, std::move(live), meta,
                                                     payload, meta_max_bytes);
    LUFF_RETURN_IF_ERROR(writer->Start(run, earlier));
    return std::unique_ptr<WorkerWriter>(std::move(writer));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("out of memory while opening a worker's folder");
  }
}

}  // namespace luff::store
