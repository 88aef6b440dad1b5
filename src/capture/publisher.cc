#include "capture/publisher.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "luff/format/chunk.h"
#include "luff/tensor/hash.h"

namespace luff::capture {
namespace {

using format::GapReason;
using format::IndexRow;

constexpr std::uint16_t kAliasFlag = 1, kUnchangedFlag = 2, kLossyFlag = 4;

std::int64_t SteadyNs() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A look at 64 places, so that dense values are not searched for zeros.
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

Publisher::Publisher(std::unique_ptr<store::WorkerWriter> writer, const Plan* plan, BlockPool* pool,
                     Counters* counters)
    : writer_(std::move(writer)),
      plan_(plan),
      pool_(pool),
      counters_(counters),
      spent_(plan->config().collections.size()) {}

std::string Publisher::first_error() {
  MutexLock lock(error_mutex_);
  return first_error_;
}

void Publisher::Keep(const Status& status) {
  counters_->store_errors.fetch_add(1, std::memory_order_relaxed);
  MutexLock lock(error_mutex_);
  if (first_error_.empty()) first_error_ = status.ToString();
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
  gaps_.Add(row, last_step_);
}

Publisher::Last& Publisher::LastOf(TensorId id) {
  if (id >= last_.size()) last_.resize(std::max<std::size_t>(id + 1, last_.size() * 2));
  return last_[id];
}

void Publisher::Charge(std::uint32_t collection, std::uint64_t bytes) {
  if (collection >= spent_.size()) return;
  spent_[collection] += bytes;
  const CollectionConfig& c = plan_->config().collections[collection];
  if (c.max_bytes != 0 && c.keep.kind == store::Retention::Kind::kAll && spent_[collection] >= c.max_bytes) {
    over_budget.fetch_or(std::uint64_t{1} << collection, std::memory_order_relaxed);
  }
}

void Publisher::Process(Work* work) {
  switch (work->kind) {
    case Work::Kind::kSlice: ProcessSlice(work); break;
    case Work::Kind::kStep: PublishStep(work); break;
    case Work::Kind::kAbandon:
      index_.clear();
      keeps_.clear();
      break;
    case Work::Kind::kLoose: PublishLoose(&work->batch, false); break;
  }
  if (work->block != nullptr) pool_->Release(work->block);
  work->block = nullptr;
}

void Publisher::ProcessSlice(Work* work) {
  last_step_ = work->global_step;
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
  pending_.push_back({index_.size(), record.tensor, record.part, record_index});
  refs_.push_back(ref);
  AddRow(row, record.keep);
}

void Publisher::AddRow(const IndexRow& row, store::Retention keep) {
  index_.push_back(row);
  keeps_.push_back(keep);
}

template <typename F>
void Publisher::EraseRows(F&& condition) {
  std::size_t to = 0;
  for (std::size_t from = 0; from < index_.size(); ++from) {
    if (condition(index_[from])) continue;
    index_[to] = index_[from];
    keeps_[to++] = keeps_[from];
  }
  index_.resize(to);
  keeps_.resize(to);
}

void Publisher::Append(const Work& work) {
  std::size_t failed = 0;
  for (std::size_t i = 0; i < refs_.size();) {  // runs of one retention class
    const store::Retention keep = work.chunks[pending_[i].record].keep;
    std::size_t end = i + 1;
    while (end < refs_.size() && work.chunks[pending_[end].record].keep == keep) ++end;
    const Status status =
        writer_->AppendChunks(std::span(refs_).subspan(i, end - i), keep, work.global_step, &places_);
    const bool ok = status.ok() && places_.size() == end - i;
    if (!ok) Keep(status);
    for (std::size_t k = i; k < end; ++k) {
      const Pending& p = pending_[k];
      const ChunkRecord& record = work.chunks[p.record];
      IndexRow& row = index_[p.row];
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

// Values of several parts of which not all arrived are no values.
void Publisher::DropIncomplete() {
  const bool large = std::any_of(index_.begin(), index_.end(), [](const IndexRow& r) { return r.parts > 1; });
  if (!large) return;
  std::vector<std::pair<TensorId, std::uint32_t>> seen;
  for (const IndexRow& row : index_) {
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
  DropIncomplete();
  batch.index.swap(index_);
  index_.clear();
  const bool all_kept = std::all_of(keeps_.begin(), keeps_.end(),
                                    [](const store::Retention& k) { return k == store::Retention{}; });
  if (!all_kept) batch.index_retention.swap(keeps_);
  keeps_.clear();
  for (const format::GapRow& gap : batch.gaps) gaps_.Add(gap, last_step_);
  batch.gaps.clear();
  gaps_.Collect(SteadyNs(), false, &batch.gaps);
  if (const Status status = writer_->PublishStep(batch); !status.ok()) {
    Keep(status);
    format::GapRow row{};
    row.tensor = row.collection = format::kNoId;
    row.reason = static_cast<std::uint16_t>(
        status.code() == StatusCode::kResourceExhausted ? GapReason::kDiskFull : GapReason::kIoError);
    row.count = 1;
    row.first_step = row.last_step = last_step_;
    gaps_.Add(row, last_step_);
  }
  if (writer_->payload_budget_exhausted()) {
    over_budget.store(~std::uint64_t{0}, std::memory_order_relaxed);
  }
}

void Publisher::PublishLoose(store::StepBatch* batch, bool final) {
  for (const format::GapRow& gap : batch->gaps) gaps_.Add(gap, last_step_);
  batch->gaps.clear();
  gaps_.Collect(SteadyNs(), final, &batch->gaps);
  const bool empty = batch->tensors.empty() && batch->layouts.empty() && batch->documents.empty() &&
                     batch->gaps.empty() && batch->acks.empty() && batch->event_json.empty() &&
                     batch->events.empty() && batch->scalars.empty();
  if (empty) return;
  if (const Status status = writer_->PublishLoose(*batch); !status.ok()) Keep(status);
}

void Publisher::Close(format::EndReason reason) {
  store::StepBatch batch;
  PublishLoose(&batch, true);
  if (const Status status = writer_->Close(reason); !status.ok()) Keep(status);
}

}  // namespace luff::capture
