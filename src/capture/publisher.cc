#include "capture/publisher.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "luff/base/env.h"
#include "luff/format/chunk.h"
#include "luff/tensor/hash.h"

namespace luff::capture {
namespace {

using format::GapReason;
using format::IndexRow;

constexpr std::uint16_t kAliasFlag = 1, kUnchangedFlag = 2, kLossyFlag = 4;

// Returns true if up to 64 sampled elements suggest many zeros or one constant. Saves searching dense values
// for zeros.
bool MayHaveManyZeros(const std::byte* data, std::uint64_t bytes, std::size_t width) {
  const std::uint64_t count = bytes / width;
  if (count < 2) return false;
  const std::uint64_t step = std::max<std::uint64_t>(1, count / 64);
  int zeros = 0, same = 0, looked = 0;
  for (std::uint64_t i = 0; i < count && looked < 64; i += step, ++looked) {
    const std::byte* at = data + i * width;
    zeros += std::all_of(at, at + width, [](std::byte b) { return b == std::byte{0}; }) ? 1 : 0;
    same += std::memcmp(at, data, width) == 0 ? 1 : 0;
  }
  return zeros * 10 > looked || same == looked;
}

}  // namespace

Publisher::Publisher(std::unique_ptr<store::WorkerWriter> writer, const Plans* plans, BlockPool* pool,
                     Counters* counters)
    : writer_(std::move(writer)),
      plans_(plans),
      pool_(pool),
      counters_(counters),
      spent_(kMaxCollections) {}

std::string Publisher::first_error() {
  MutexLock lock(error_mutex_);
  return first_error_;
}

void Publisher::KeepError(const Status& status) noexcept {
  counters_->store_errors.fetch_add(1, std::memory_order_relaxed);
  try {
    MutexLock lock(error_mutex_);
    if (first_error_.empty()) first_error_ = status.ToString();
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): counted
  }
}

void Publisher::Lose(const Status& status) {
  MutexLock lock(error_mutex_);
  first_error_ = status.ToString();
}

void Publisher::AddGap(TensorId tensor, std::uint32_t collection, GapReason reason, std::uint64_t bytes) {
  counters_->gaps.fetch_add(1, std::memory_order_relaxed);
  format::GapRow row{};
  row.tensor = tensor;
  row.collection = collection;
  row.reason = static_cast<std::uint16_t>(reason);
  row.forms = static_cast<std::uint16_t>(format::Form::kRaw);
  row.count = 1;
  row.bytes = bytes;
  row.first_step = -1;
  ledger_.AddGap(row, last_step_);
}

Publisher::Last& Publisher::LastOf(TensorId id) {
  if (id >= last_.size()) last_.resize(std::max<std::size_t>(id + 1, last_.size() * 2));
  return last_[id];
}

void Publisher::Charge(std::uint32_t collection, std::uint64_t bytes) {
  if (collection >= spent_.size()) return;
  spent_[collection] += bytes;
  const CollectionConfig& c = plans_->now().config().collections[collection];
  if (c.max_bytes != 0 && c.keep.kind == store::Retention::Kind::kAll && spent_[collection] >= c.max_bytes) {
    over_budget.fetch_or(std::uint64_t{1} << collection, std::memory_order_relaxed);
  }
}

bool Publisher::Process(Work* work) noexcept {
  bool ok = true;
  try {
    switch (work->kind) {
      case Work::Kind::kSlice: ProcessSlice(work); break;
      case Work::Kind::kStep:
        if (!work->chunks.empty()) ProcessSlice(work);  // values that came late
        PublishStep(work);
        break;
      case Work::Kind::kLoose: ok = PublishLoose(&work->batch, false); break;
    }
  } catch (...) {
    KeepException("the writer thread");
    Lose(work, GapReason::kRecordingFailed);
    ok = false;
  }
  if (work->block != nullptr) pool_->Release(work->block);
  work->block = nullptr;
  return ok;
}

void Publisher::Discard(Work* work, format::GapReason reason) noexcept {
  Lose(work, reason);
  if (work->block != nullptr) pool_->Release(work->block);
  work->block = nullptr;
}

void Publisher::Lose(Work* work, format::GapReason reason) noexcept {
  // The work may be half done. So forget the last values, which later ones are compared with, and drop all
  // values of this slice and of earlier slices of its step.
  last_.clear();
  std::uint64_t values = work->chunks.size(), bytes = 0;
  for (const ChunkRecord& record : work->chunks) bytes += record.raw_bytes;
  std::erase_if(open_steps_, [&](const StepRows& rows) {
    if (rows.step != work->step) return false;
    values += rows.index.size();
    return true;
  });
  rows_ = nullptr;
  if (work->kind != Work::Kind::kSlice) {
    broken_ = !ledger_.Fold(&work->batch, work->kind == Work::Kind::kStep, reason) || broken_;
    return;
  }
  if (values == 0) return;
  format::GapRow row = store::GapOfSteps(reason, values, bytes, work->global_step, work->global_step);
  row.forms = static_cast<std::uint16_t>(format::Form::kRaw);
  ledger_.AddGap(row, work->global_step);
}

void Publisher::KeepException(const char* where) noexcept {
  try {
    std::string what = where;
    try {
      throw;
    } catch (const std::exception& e) {
      what += std::string(": ") + e.what();
    } catch (...) {
      what += ": an unknown exception";
    }
    KeepError(Internal(what));
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory even for the message; the gap remains
  }
}

Publisher::StepRows& Publisher::RowsOf(std::uint64_t step) {
  for (StepRows& rows : open_steps_) {
    if (rows.step == step) return rows;
  }
  open_steps_.emplace_back().step = step;
  return open_steps_.back();
}

void Publisher::TakeRows(std::uint64_t step, store::StepBatch* batch) {
  std::erase_if(open_steps_, [&](const StepRows& rows) { return rows.step < step; });
  rows_ = &RowsOf(step);
  DropIncomplete();
  batch->index.swap(rows_->index);
  const bool all_kept = std::all_of(rows_->keeps.begin(), rows_->keeps.end(),
                                    [](const store::Retention& k) { return k == store::Retention{}; });
  if (!all_kept) batch->index_retention.swap(rows_->keeps);
  rows_->index.clear();
  rows_->keeps.clear();
  // Reuse its memory for the next step, unless that step has begun already.
  const bool begun = std::any_of(open_steps_.begin(), open_steps_.end(),
                                 [&](const StepRows& rows) { return rows.step == step + 1; });
  if (!begun) rows_->step = step + 1;
  rows_ = nullptr;
}

void Publisher::ProcessSlice(Work* work) {
  last_step_ = work->global_step;
  rows_ = &RowsOf(work->step);
  pending_.clear();
  refs_.clear();
  encoded_used_ = 0;
  for (std::size_t i = 0; i < work->chunks.size(); ++i) {
    const ChunkRecord& record = work->chunks[i];
    if (record.alias) continue;
    const std::uint64_t hash =
        HashBytes(record.chunk + sizeof(format::ChunkHeader), static_cast<std::size_t>(record.raw_bytes));
    IndexRow row{};
    if (ReuseUnchanged(record, hash, &row)) {
      counters_->unchanged.fetch_add(1, std::memory_order_relaxed);
      Last& last = LastOf(record.tensor);
      last.serial = record.serial;
      AddRow(row, record.keep);
      continue;
    }
    FinishRecord(record, hash, i);
  }
  Append(*work);
  for (const ChunkRecord& record : work->chunks) {
    if (record.alias) ResolveAlias(record);
  }
}

bool Publisher::ReuseUnchanged(const ChunkRecord& record, std::uint64_t hash, IndexRow* row) {
  const Last& last = LastOf(record.tensor);
  if (record.part >= last.parts.size() || last.parts.size() != record.parts) return false;
  const IndexRow& old = last.parts[record.part];
  if (old.content_hash != hash || old.raw_bytes != record.raw_bytes || old.layout != record.layout ||
      old.dtype != static_cast<std::uint8_t>(record.dtype) || record.raw_bytes < format::kChunkAlign) {
    return false;
  }
  const store::Place place{old.data_file, old.offset};
  if (!writer_->ChunkIsKept(place)) return false;
  const store::Place now = writer_->Resolve(place);
  *row = old;
  row->data_file = now.data_file;
  row->offset = now.offset;
  row->flags = static_cast<std::uint16_t>(kUnchangedFlag | (record.lossy ? kLossyFlag : 0));
  return true;
}

void Publisher::FinishRecord(const ChunkRecord& record, std::uint64_t hash, std::size_t record_index) {
  format::ChunkInfo info;
  info.tensor = record.tensor;
  info.layout = record.layout;
  info.dtype = record.dtype;
  info.part = record.part;
  info.parts = record.parts;
  info.ordinal = writer_->next_ordinal();
  const std::byte* raw = record.chunk + sizeof(format::ChunkHeader);
  store::ChunkRef ref;
  format::Codec codec = format::Codec::kRaw;
  std::uint64_t stored = record.raw_bytes;
  if (record.try_codecs && record.raw_bytes >= 128 &&
      MayHaveManyZeros(raw, record.raw_bytes, DTypeSize(record.dtype))) {
    if (encoded_used_ == encoded_.size()) encoded_.emplace_back();
    std::vector<std::byte>& to = encoded_[encoded_used_];
    codec = format::EncodeChunk(info, {raw, static_cast<std::size_t>(record.raw_bytes)}, true, hash, &to);
    if (codec != format::Codec::kRaw) {
      format::ChunkHeader header;
      std::memcpy(&header, to.data(), sizeof header);
      stored = header.stored_bytes;
      ref = {to.data(), to.size()};
      ++encoded_used_;
    }
  }
  if (codec == format::Codec::kRaw) {
    format::FinishChunk(record.chunk, info, codec, record.raw_bytes, record.raw_bytes, hash);
    ref = {record.chunk, format::ChunkSpace(record.raw_bytes)};
  }
  IndexRow row{};
  row.tensor = record.tensor;
  row.layout = record.layout;
  row.part = record.part;
  row.parts = record.parts;
  row.dtype = static_cast<std::uint8_t>(record.dtype);
  row.codec = static_cast<std::uint8_t>(codec);
  row.flags = record.lossy ? kLossyFlag : 0;
  row.raw_bytes = record.raw_bytes;
  row.stored_bytes = stored;
  row.content_hash = hash;
  pending_.push_back({rows_->index.size(), record.tensor, record.part, record_index});
  refs_.push_back(ref);
  AddRow(row, record.keep);
}

void Publisher::AddRow(const IndexRow& row, store::Retention keep) {
  rows_->index.push_back(row);
  rows_->keeps.push_back(keep);
}

template <typename F>
void Publisher::EraseRows(F&& condition) {
  std::vector<IndexRow>& index = rows_->index;
  std::vector<store::Retention>& keeps = rows_->keeps;
  std::size_t to = 0;
  for (std::size_t from = 0; from < index.size(); ++from) {
    if (condition(index[from])) continue;
    index[to] = index[from];
    keeps[to++] = keeps[from];
  }
  index.resize(to);
  keeps.resize(to);
}

void Publisher::Append(const Work& work) {
  std::size_t failed = 0;
  for (std::size_t i = 0; i < refs_.size();) {  // one append for each run of equal retention
    const store::Retention keep = work.chunks[pending_[i].record].keep;
    std::size_t end = i + 1;
    while (end < refs_.size() && work.chunks[pending_[end].record].keep == keep) ++end;
    const Status status =
        writer_->AppendChunks(std::span(refs_).subspan(i, end - i), keep, work.global_step, &places_);
    const bool ok = status.ok() && places_.size() == end - i;
    if (!ok) KeepError(status);
    for (std::size_t k = i; k < end; ++k) {
      const Pending& p = pending_[k];
      const ChunkRecord& record = work.chunks[p.record];
      IndexRow& row = rows_->index[p.row];
      Last& last = LastOf(p.tensor);
      if (!ok) {
        ++failed;
        row.parts = 0;  // removed below
        last.parts.clear();
        last.serial = 0;
        AddGap(record.tensor, record.collection,
               status.code() == StatusCode::kResourceExhausted ? GapReason::kDiskFull : GapReason::kIoError,
               record.raw_bytes);
        continue;
      }
      row.data_file = places_[k - i].data_file;
      row.offset = places_[k - i].offset;
      counters_->written_chunks.fetch_add(1, std::memory_order_relaxed);
      Charge(record.collection, row.stored_bytes);
      if (last.serial != record.serial || last.parts.size() != record.parts) {
        last.serial = record.serial;
        last.parts.assign(record.parts, IndexRow{});
      }
      last.parts[p.part] = row;
    }
    i = end;
  }
  if (failed > 0) EraseRows([](const IndexRow& row) { return row.parts == 0; });
}

void Publisher::ResolveAlias(const ChunkRecord& record) {
  const Last& of = LastOf(record.alias_tensor);
  if (of.serial != record.serial || of.parts.empty()) {
    AddGap(record.tensor, record.collection, GapReason::kPoolFull, record.raw_bytes);
    return;
  }
  Last& own = LastOf(record.tensor);  // may move `of`
  const Last& source = last_[record.alias_tensor];
  for (const IndexRow& part : source.parts) {
    IndexRow row = part;
    row.tensor = record.tensor;
    row.layout = record.layout;
    row.flags = static_cast<std::uint16_t>(kAliasFlag | (row.flags & kLossyFlag));
    AddRow(row, record.keep);
  }
  if (&own != &source) {
    own.parts = source.parts;
    own.serial = 0;
    for (IndexRow& row : own.parts) {
      row.tensor = record.tensor;
      row.layout = record.layout;
    }
  }
}

// Drops values with missing parts.
void Publisher::DropIncomplete() {
  const std::vector<IndexRow>& index = rows_->index;
  const bool large = std::any_of(index.begin(), index.end(), [](const IndexRow& r) { return r.parts > 1; });
  if (!large) return;
  std::vector<std::pair<TensorId, std::uint32_t>> seen;
  for (const IndexRow& row : index) {
    if (row.parts < 2) continue;
    auto found = std::find_if(seen.begin(), seen.end(), [&](const auto& s) { return s.first == row.tensor; });
    if (found == seen.end()) found = seen.insert(seen.end(), {row.tensor, 0});
    ++found->second;
  }
  EraseRows([&](const IndexRow& row) {
    if (row.parts < 2) return false;
    const auto found =
        std::find_if(seen.begin(), seen.end(), [&](const auto& s) { return s.first == row.tensor; });
    return found->second % row.parts != 0;
  });
}

void Publisher::PublishStep(Work* work) {
  store::StepBatch& batch = work->batch;
  last_step_ = batch.mark.global_step;
  TakeRows(work->step, &batch);
  for (const format::GapRow& gap : batch.gaps) ledger_.AddGap(gap, last_step_);
  batch.gaps.clear();
  ledger_.Release(Env::Real().NowMonotonicNs(), false, &batch);
  if (const Status status = writer_->PublishStep(batch); !status.ok()) KeepError(status);
  if (writer_->payload_budget_exhausted()) {
    over_budget.store(~std::uint64_t{0}, std::memory_order_relaxed);
  }
}

bool Publisher::PublishLoose(store::StepBatch* batch, bool final) noexcept {
  for (const format::GapRow& gap : batch->gaps) ledger_.AddGap(gap, last_step_);
  batch->gaps.clear();
  try {
    ledger_.Release(Env::Real().NowMonotonicNs(), final, batch);
    const bool empty = batch->tensors.empty() && batch->layouts.empty() && batch->documents.empty() &&
                       batch->gaps.empty() && batch->acks.empty() && batch->event_json.empty();
    if (!empty) {
      if (const Status status = writer_->PublishLoose(*batch); !status.ok()) KeepError(status);
      batch->clear();
    }
    return true;
  } catch (...) {
    KeepException("the writer thread");
    broken_ = !ledger_.Fold(batch, false, GapReason::kRecordingFailed) || broken_;
    return false;
  }
}

void Publisher::Close(format::EndReason reason) noexcept {
  store::StepBatch batch;
  static_cast<void>(PublishLoose(&batch, true));
  try {
    if (const Status status = writer_->Close(reason); !status.ok()) KeepError(status);
  } catch (...) {
    KeepException("closing the run");
  }
}

}  // namespace luff::capture
