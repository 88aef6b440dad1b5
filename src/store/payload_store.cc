#include "store/payload_store.h"

#include <algorithm>
#include <cstring>

#include "luff/format/chunk.h"
#include "store/disk_room.h"
#include "store/paths.h"
#include "store/uploaded.h"

namespace luff::store {
namespace {

constexpr std::size_t kMaxPolicies = 16;
constexpr std::size_t kMaxCopies = 1 << 16;
// Earlier places kept for a relocated chunk: the first and the last three.
constexpr std::size_t kMaxOrigins = 4;
constexpr std::uint64_t kMaxChunkCopy = 1ULL << 30;
constexpr std::uint64_t kAskDiskAfter = 16ULL << 20;
constexpr std::int64_t kRestNs = 60'000'000'000;
constexpr std::uint32_t kThinBit = 1U << 7;
constexpr std::uint64_t kClassPeriod[] = {1, 1, 10, 100};

std::uint64_t Key(Place place) noexcept { return std::uint64_t{place.data_file} << 40 | place.offset; }

/// FileHeader.retention_class: class in bits 0 to 6, thin in bit 7, last_steps in bits 8 to 31.
std::uint32_t PackClass(const Retention& retention, std::uint32_t klass) noexcept {
  const auto steps = std::clamp<std::int64_t>(retention.last_steps, 0, 0xFFFFFF);
  const std::uint32_t thin = retention.kind == Retention::Kind::kThin ? kThinBit : 0;
  return klass | thin | static_cast<std::uint32_t>(steps) << 8;
}

}  // namespace

PayloadStore::PayloadStore(Env& env, std::string directory, const Start& start)
    : env_(env),
      directory_(std::move(directory)),
      start_(start),
      next_sequence_(start.next_sequence) {
  direct_.enabled = start.direct;
}

void PayloadStore::Adopt(std::uint32_t sequence, std::uint64_t bytes, std::uint32_t retention_class) {
  Retention retention;
  const std::uint32_t klass = retention_class & 0x7FU;
  if (klass != 0 && klass < kClasses) {
    retention.kind = (retention_class & kThinBit) != 0 ? Retention::Kind::kThin : Retention::Kind::kLast;
    retention.last_steps = retention_class >> 8;
  }
  DataFile file;
  file.sequence = sequence;
  file.policy = PolicyOf(retention);
  file.klass = klass < kClasses ? klass : 0;
  file.bytes = bytes;
  // It expires with the first step of this epoch, when the policy has enough new steps.
  file.first_step = file.last_step = 1;
  bytes_ += bytes;
  files_.emplace(sequence, std::move(file));
}

std::uint32_t PayloadStore::PolicyOf(Retention retention) {
  if (retention.kind == Retention::Kind::kAll) retention.last_steps = 0;
  if (retention.kind == Retention::Kind::kLast)
    retention.last_steps = std::max<std::int64_t>(retention.last_steps, 1);
  for (std::size_t i = 0; i < policies_.size(); ++i) {
    if (policies_[i].retention == retention) return static_cast<std::uint32_t>(i);
  }
  if (policies_.size() >= kMaxPolicies && retention.kind != Retention::Kind::kAll)
    return PolicyOf(Retention{});
  policies_.push_back({});
  policies_.back().retention = retention;
  return static_cast<std::uint32_t>(policies_.size() - 1);
}

bool PayloadStore::DiskHasRoom(std::uint64_t bytes) noexcept {
  if (bytes <= room_bytes_) {
    room_bytes_ -= bytes;
    return true;
  }
  room_bytes_ = 0;
  const DiskSpace space = DiskSpaceOf(directory_);
  if (space.total == 0) return true;
  const std::uint64_t needed = PayloadMargin(space.total) + bytes;
  if (space.available < needed) return false;
  // Other programs write to the disk as well, so uses only a part of what is left before asking again.
  room_bytes_ = std::min((space.available - needed) / 4, kAskDiskAfter);
  return true;
}

void PayloadStore::Touch(Policy& policy) {
  if (policy.touched) return;
  policy.touched = true;
  ++policy.steps;
}

std::uint32_t PayloadStore::ClassOf(const Policy& policy) noexcept {
  switch (policy.retention.kind) {
    case Retention::Kind::kAll: return 0;
    case Retention::Kind::kLast: return 1;
    case Retention::Kind::kThin: break;
  }
  const std::uint64_t index = policy.steps - 1;  // the first step counts as a hundredth: it is worth keeping
  return index % 100 == 0 ? 3 : index % 10 == 0 ? 2 : 1;
}

std::uint64_t PayloadStore::SegmentLimit(const Policy& policy) const noexcept {
  // Space is freed in whole files; small ones keep the total close to the budget.
  if (policy.retention.kind == Retention::Kind::kAll || start_.max_bytes == 0) return start_.segment_bytes;
  return std::clamp<std::uint64_t>(start_.max_bytes / 16, 64 << 10, start_.segment_bytes);
}

Result<PayloadStore::DataFile*> PayloadStore::Writable(std::uint32_t policy_index, std::uint32_t klass,
                                                       std::uint64_t bytes, std::uint64_t ordinal,
                                                       std::int64_t global_step) {
  Policy& policy = policies_[policy_index];
  if (const std::uint32_t sequence = policy.open_file[klass]; sequence != 0) {
    DataFile& file = files_.at(sequence);
    const bool too_big = file.bytes + bytes > SegmentLimit(policy) && file.bytes > format::kFileHeaderBytes;
    // Files hold few steps, so that little more than the retained steps stays on disk.
    const std::uint64_t span =
        std::max<std::uint64_t>(1, static_cast<std::uint64_t>(policy.retention.last_steps) / 8);
    const bool too_long = policy.retention.last_steps > 0 && klass != 0 && klass != 3 &&
                          policy.steps - file.first_step >= span * kClassPeriod[klass];
    if (!too_big && !too_long && !file.open->failed()) return &file;
    Close(file);
  }
  const std::uint64_t sequence = next_sequence_++;
  format::FileHeader header{};
  std::memcpy(header.run_id, start_.run_id.data(), sizeof(header.run_id));
  header.worker = start_.worker;
  header.epoch = start_.epoch;
  header.sequence = sequence;
  header.created_unix_ns = env_.NowUnixNs();
  header.first_ordinal = ordinal;
  header.retention_class = PackClass(policy.retention, klass);
  auto open = PayloadFile::Create(env_, directory_ + "/" + DataFileName(sequence), header, &direct_);
  if (!open.ok()) return std::move(open).status();
  DataFile file;
  file.sequence = static_cast<std::uint32_t>(sequence);
  file.policy = policy_index;
  file.klass = klass;
  file.bytes = (*open)->end();
  file.first_step = file.last_step = policy.steps;
  file.first_global = file.last_global = global_step;
  file.step_begin = file.bytes;
  file.open = std::move(open).value();
  bytes_ += file.bytes;
  bytes_written_ += file.bytes;
  DataFile* made = &files_.emplace(file.sequence, std::move(file)).first->second;
  policy.open_file[klass] = made->sequence;  // set last, so that it never names a file that is not in files_
  return made;
}

void PayloadStore::Close(DataFile& file) {
  if (file.open == nullptr) return;
  file.open->Finish();
  file.open.reset();
  file.closed_ns = env_.NowMonotonicNs();
  Policy& policy = policies_[file.policy];
  if (policy.open_file[file.klass] == file.sequence) policy.open_file[file.klass] = 0;
}

/// Closes a file that failed, so that the next attempt begins a new one. Its contents stay, unless the file
/// itself is gone; then they become a gap.
void PayloadStore::GiveUp(DataFile& file) {
  const bool lost = file.open->lost();
  Close(file);
  if (!lost) return;
  if (file.chunks != 0) {
    format::GapRow gap{};
    gap.tensor = gap.collection = format::kNoId;
    gap.reason = static_cast<std::uint16_t>(format::GapReason::kFileLost);
    gap.forms = static_cast<std::uint16_t>(format::Form::kRaw);
    gap.count = file.chunks;
    gap.bytes = file.bytes;
    gap.first_step = file.first_global;
    gap.last_step = file.last_global;
    lost_.push_back(gap);
  }
  bytes_ -= file.bytes;
  files_.erase(file.sequence);
}

void PayloadStore::TakeLost(std::vector<format::GapRow>* gaps) {
  gaps->insert(gaps->end(), lost_.begin(), lost_.end());
  lost_.clear();
}

Status PayloadStore::Append(std::span<const ChunkRef> chunks, Retention retention, std::int64_t global_step,
                            std::uint64_t ordinal, std::vector<Place>* places) {
  places->clear();
  std::uint64_t total = 0;
  for (const ChunkRef& chunk : chunks) total += chunk.bytes;
  if (start_.max_bytes != 0 && bytes_ + total > start_.max_bytes) {
    exhausted_ = true;
    return ResourceExhausted("payload of " + std::to_string(bytes_ + total) + " bytes, max_bytes leaves " +
                             std::to_string(start_.max_bytes) + " for it");
  }
  exhausted_ = false;
  if (!DiskHasRoom(total)) {
    return ResourceExhausted("payload of " + std::to_string(total) +
                             " bytes would take the last of the disk: " + directory_);
  }
  global_step_ = global_step;
  const std::uint32_t policy_index = PolicyOf(retention);
  Touch(policies_[policy_index]);
  const std::uint32_t klass = ClassOf(policies_[policy_index]);
  const std::uint64_t limit = SegmentLimit(policies_[policy_index]);
  for (std::size_t first = 0; first < chunks.size();) {
    // Chunks that are adjacent in memory are written with one call.
    std::size_t last = first + 1;
    std::uint64_t bytes = chunks[first].bytes;
    while (last < chunks.size() && chunks[last].data == chunks[last - 1].data + chunks[last - 1].bytes &&
           bytes + chunks[last].bytes <= limit) {
      bytes += chunks[last++].bytes;
    }
    LUFF_ASSIGN_OR_RETURN(DataFile* const file, Writable(policy_index, klass, bytes, ordinal, global_step));
    const auto offset = file->open->Append({chunks[first].data, static_cast<std::size_t>(bytes)});
    if (!offset.ok()) {
      places->clear();
      GiveUp(*file);
      return offset.status();
    }
    const std::uint64_t end = file->open->end();
    bytes_ += end - file->bytes;
    bytes_written_ += end - file->bytes;
    file->bytes = end;
    file->last_step = policies_[policy_index].steps;
    file->last_global = global_step;
    file->chunks += last - first;
    newest_ = {file->sequence, end};
    for (std::size_t i = first; i < last; ++i) {
      const auto distance = static_cast<std::uint64_t>(chunks[i].data - chunks[first].data);
      places->push_back({file->sequence, *offset + distance});
    }
    first = last;
  }
  return Status::Ok();
}

Result<Place> PayloadStore::Copy(Place from, std::uint32_t policy, std::uint32_t klass,
                                 std::uint64_t ordinal) {
  const auto source = files_.find(from.data_file);
  if (source == files_.end()) return NotFound("payload file is gone");
  std::unique_ptr<File> opened;
  const auto read = [&](std::span<std::byte> to, std::uint64_t offset) -> Status {
    if (source->second.open != nullptr) return source->second.open->Read(to, offset);
    if (opened == nullptr) {
      LUFF_ASSIGN_OR_RETURN(opened,
                            env_.Open(directory_ + "/" + DataFileName(from.data_file), Env::OpenMode::kRead));
    }
    LUFF_ASSIGN_OR_RETURN(const std::size_t count, opened->ReadAt(to, offset));
    return count == to.size() ? Status::Ok() : Corruption("payload ends too early");
  };
  std::byte head[sizeof(format::ChunkHeader)];
  LUFF_RETURN_IF_ERROR(read(head, from.offset));
  LUFF_ASSIGN_OR_RETURN(const format::ChunkHeader header, format::ParseChunkHeaderUntrusted(head));
  if (header.stored_bytes > kMaxChunkCopy) return ResourceExhausted("chunk is too large to be copied");
  copy_buffer_.assign(static_cast<std::size_t>(format::ChunkSpace(header.stored_bytes)), std::byte{0});
  LUFF_RETURN_IF_ERROR(
      read(std::span(copy_buffer_).first(sizeof(header) + static_cast<std::size_t>(header.stored_bytes)),
           from.offset));
  LUFF_ASSIGN_OR_RETURN(const format::ChunkView view, format::ParseChunkUntrusted(copy_buffer_, 0));
  LUFF_RETURN_IF_ERROR(format::VerifyChunkUntrusted(view));
  LUFF_ASSIGN_OR_RETURN(DataFile* const file,
                        Writable(policy, klass, copy_buffer_.size(), ordinal, global_step_));
  const auto offset = file->open->Append(copy_buffer_);
  if (!offset.ok()) {
    GiveUp(*file);
    return offset.status();
  }
  const std::uint64_t end = file->open->end();
  bytes_ += end - file->bytes;
  bytes_written_ += end - file->bytes;
  file->bytes = end;
  file->last_step = std::max(file->last_step, policies_[policy].steps);
  ++file->chunks;
  const Place place{file->sequence, *offset};
  newest_ = {file->sequence, end};
  if (copy_buffer_.size() > (8U << 20)) copy_buffer_ = {};
  return place;
}

Status PayloadStore::PrepareRows(std::vector<format::IndexRow>* rows, std::vector<Retention>* retentions,
                                 std::uint64_t ordinal, format::GapRow* lost) {
  pending_references_.clear();
  const bool given = retentions->size() == rows->size();
  std::size_t kept = 0;
  Status first_error;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    format::IndexRow row = (*rows)[i];
    const Place at = Resolve({row.data_file, row.offset});
    auto file = files_.find(at.data_file);
    bool good = file != files_.end();
    Place place = at;
    if (good) {
      const std::uint32_t own = given ? PolicyOf((*retentions)[i]) : file->second.policy;
      Policy& policy = policies_[own];
      const bool keeps_all = policies_[file->second.policy].retention.kind == Retention::Kind::kAll;
      Touch(policy);
      const std::uint32_t klass = ClassOf(policy);
      if (!keeps_all && own != file->second.policy) {
        auto& copies = copies_[Key(at)];
        const auto known = std::find_if(copies.begin(), copies.end(), [&](const auto& copy) {
          return copy.first == own && IsKept(copy.second);
        });
        if (known != copies.end()) {
          place = Resolve(known->second);
        } else {
          auto copy = Copy(at, own, klass, ordinal);
          good = copy.ok();
          if (good) {
            place = *copy;
            std::erase_if(copies, [&](const auto& entry) { return entry.first == own; });
            copies.push_back({own, place});
          } else if (first_error.ok()) {
            first_error = copy.status();
          }
        }
        if (copies_.size() > kMaxCopies) copies_.clear();
        if (good) file = files_.find(place.data_file);
      }
      if (good && file->second.klass != 0 &&
          (place.offset < file->second.step_begin || file->second.klass != klass)) {
        pending_references_.push_back({place.data_file, place.offset, klass, policy.steps});
      }
    }
    if (!good) {
      ++lost->count;
      lost->bytes += row.raw_bytes;
      continue;
    }
    row.data_file = place.data_file;
    row.offset = place.offset;
    if (given) (*retentions)[kept] = (*retentions)[i];
    (*rows)[kept++] = row;
  }
  rows->resize(kept);
  if (given) retentions->resize(kept);
  return first_error;
}

void PayloadStore::StepPublished() {
  for (const Reference& reference : pending_references_) {
    if (const auto file = files_.find(reference.file); file != files_.end()) {
      auto& last = file->second.references[reference.offset];
      last[reference.klass] = std::max(last[reference.klass], reference.step);
    }
  }
  pending_references_.clear();
  for (Policy& policy : policies_) {
    policy.touched = false;
    for (const std::uint32_t sequence : policy.open_file) {
      if (sequence != 0) files_.at(sequence).step_begin = files_.at(sequence).bytes;
    }
    UpdateFloors(policy);
  }
}

void PayloadStore::UpdateFloors(Policy& policy) noexcept {
  const auto last = static_cast<std::uint64_t>(std::max<std::int64_t>(policy.retention.last_steps, 0));
  if (policy.retention.kind == Retention::Kind::kAll || last == 0) return;
  for (std::size_t klass = 1; klass <= 2; ++klass) {
    const std::uint64_t span = last * kClassPeriod[klass];
    if (policy.steps > span) policy.floor[klass] = std::max(policy.floor[klass], policy.steps - span);
  }
}

bool PayloadStore::StillReferred(const Policy& policy,
                                 const std::array<std::uint64_t, kClasses>& reference) noexcept {
  for (std::size_t klass = 1; klass < kClasses; ++klass) {
    if (reference[klass] > policy.floor[klass]) return true;
  }
  return false;
}

Status PayloadStore::Expire(std::uint64_t ordinal, Expiry* expiry) {
  expiry->clear();
  std::vector<std::uint32_t> due;
  for (const auto& [sequence, file] : files_) {
    if (file.klass != 0 && file.last_step <= policies_[file.policy].floor[file.klass])
      due.push_back(sequence);
  }
  for (const std::uint32_t sequence : due) {
    DataFile& file = files_.at(sequence);
    Close(file);
    const Policy& policy = policies_[file.policy];
    std::vector<std::pair<Place, Place>> moves;
    Status status;
    for (const auto& [offset, reference] : file.references) {
      if (!StillReferred(policy, reference)) continue;
      std::uint32_t klass = 1;
      for (std::uint32_t c = 1; c < kClasses; ++c) {
        if (reference[c] > policy.floor[c]) klass = c;
      }
      auto copy = Copy({sequence, offset}, file.policy, klass, ordinal);
      if (!copy.ok()) {
        if (copy.status().code() == StatusCode::kCorruption) continue;  // damaged: nothing to save
        status = copy.status();
        break;
      }
      DataFile& target = files_.at(copy->data_file);
      target.references[copy->offset] = reference;
      // The copy is of an earlier step, so later rows count as references to it.
      target.step_begin = target.bytes;
      moves.push_back({{sequence, offset}, *copy});
    }
    if (!status.ok()) return status;  // this file stays for now; copies already made are only unused bytes
    for (const auto& [from, to] : moves) {
      expiry->relocated.push_back({from.data_file, to.data_file, from.offset, to.offset});
      Move(from, to);
    }
    expiry->retired.push_back({sequence, static_cast<std::uint32_t>(format::GapReason::kRetired)});
    if (file.chunks != 0) {  // the contents of adopted files are not known
      format::GapRow gap{};
      gap.tensor = format::kNoId;
      gap.collection = format::kNoId;
      gap.reason = static_cast<std::uint16_t>(format::GapReason::kRetired);
      gap.forms = static_cast<std::uint16_t>(format::Form::kRaw);
      gap.count = file.chunks - std::min<std::uint64_t>(file.chunks, moves.size());
      gap.bytes = file.bytes;
      gap.first_step = file.first_global;
      gap.last_step = file.last_global;
      if (gap.count != 0) expiry->gaps.push_back(gap);
    }
    Forget(sequence);
  }
  return Status::Ok();
}

void PayloadStore::Forget(std::uint32_t sequence) {
  bytes_ -= files_.at(sequence).bytes;
  files_.erase(sequence);
  std::erase_if(copies_, [&](const auto& entry) { return entry.first >> 40 == sequence; });
  // Move() has updated the chunks that moved on from this file; the other entries are obsolete.
  std::erase_if(moved_, [&](const auto& entry) { return entry.second.data_file == sequence; });
  std::erase_if(from_, [&](const auto& entry) { return entry.first >> 40 == sequence; });
}

void PayloadStore::RetireUploaded(const std::map<std::uint32_t, std::uint64_t>& uploaded,
                                  std::uint64_t keep_bytes, Expiry* expiry) {
  const std::int64_t now = env_.NowMonotonicNs();
  std::vector<std::uint32_t> due;
  std::uint64_t left = bytes_;
  for (const auto& [sequence, file] : files_) {
    if (left <= keep_bytes) break;
    const auto known = uploaded.find(sequence);
    if (file.open != nullptr || known == uploaded.end() || known->second != file.bytes) continue;
    if (file.closed_ns != 0 && now - file.closed_ns < kRestNs) continue;
    due.push_back(sequence);
    left -= file.bytes;
  }
  constexpr auto kReason = static_cast<std::uint16_t>(format::GapReason::kUploaded);
  for (const std::uint32_t sequence : due) {
    const DataFile& file = files_.at(sequence);
    expiry->retired.push_back({sequence, kReason});
    if (file.chunks != 0) {
      format::GapRow gap{};
      gap.tensor = gap.collection = format::kNoId;
      gap.reason = kReason;
      gap.forms = static_cast<std::uint16_t>(format::Form::kRaw);
      gap.count = file.chunks;
      gap.bytes = file.bytes;
      gap.first_step = file.first_global;
      gap.last_step = file.last_global;
      expiry->gaps.push_back(gap);
    }
    Forget(sequence);
  }
}

bool PayloadStore::ThinFor(std::uint64_t need) {
  if (start_.max_bytes == 0 || bytes_ + need <= start_.max_bytes) return false;
  for (std::uint32_t klass = 1; klass <= 2; ++klass) {
    for (const auto& [sequence, file] : files_) {  // oldest first
      Policy& policy = policies_[file.policy];
      if (file.klass != klass || policy.retention.kind != Retention::Kind::kThin) continue;
      // Keeps the step that is being written.
      if (file.last_step >= policy.steps || file.last_step <= policy.floor[klass]) continue;
      policy.floor[klass] = file.last_step;
      return true;
    }
  }
  return false;
}

void PayloadStore::RemoveRetired(const Expiry& expiry) {
  for (const format::RetireRow& row : expiry.retired) {
    (void)env_.Remove(directory_ + "/" + DataFileName(row.data_file));
  }
}

void PayloadStore::Move(Place from, Place to) {
  std::vector<std::uint64_t> origins;
  if (const auto known = from_.find(Key(from)); known != from_.end()) {
    origins = std::move(known->second);
    from_.erase(known);
  }
  origins.push_back(Key(from));
  if (origins.size() > kMaxOrigins) {
    moved_.erase(origins[1]);
    origins.erase(origins.begin() + 1);
  }
  for (const std::uint64_t origin : origins) moved_[origin] = to;
  from_[Key(to)] = std::move(origins);
}

Place PayloadStore::Resolve(Place place) const noexcept {
  const auto moved = moved_.find(Key(place));
  return moved == moved_.end() ? place : moved->second;
}

bool PayloadStore::IsKept(Place place) const noexcept { return files_.contains(Resolve(place).data_file); }

Status PayloadStore::Sync() {
  Status first;
  for (auto& [sequence, file] : files_) {
    if (file.open == nullptr) continue;
    Status status = file.open->Sync();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

void PayloadStore::Finish() {
  for (auto& [sequence, file] : files_) Close(file);
}

}  // namespace luff::store
