#include <algorithm>
#include <cstring>

#include "luff/store/reader.h"
#include "store/read_cache.h"
#include "store/reader_file.h"
#include "store/reader_tail.h"
#include "store/segment_holes.h"

namespace luff::store {
namespace {

// First attempt at reading a tail; doubled while a step does not fit.
constexpr std::uint64_t kWindowBytes = 256 << 10;
constexpr std::uint64_t kMaxWindowBytes = 512ULL << 20;
constexpr std::size_t kEntriesInPage = 186;  // of the tensor directory: 16 KiB, read and cached together
// A step of this size that is read by itself is read into memory in which its rows stay.
constexpr std::uint64_t kLargeStep = 64 << 10;
// Key of the definitions, which are read once and never cached.
constexpr std::uint64_t kDefsKey = ~std::uint64_t{0};

/// Rows of the last step, unless the footer speaks of other steps than those that were read.
std::unique_ptr<const LastRows> LastRowsOf(TailColumns* tail, const format::StepColumns& sealed) {
  const auto read = tail->steps().ordinal;
  return std::ranges::equal(read, sealed.ordinal) ? tail->TakeLastRows() : nullptr;
}

}  // namespace

SegmentReader::SegmentReader() = default;
SegmentReader::~SegmentReader() = default;

Status SegmentReader::Located(const Status& status) const {
  // ReaderFile's errors name the path already.
  const bool named = status.message().find(path_) != std::string_view::npos;
  return named ? status : Status(status.code(), std::string(status.message()) + ": " + path_);
}

Result<std::unique_ptr<SegmentReader>> SegmentReader::Open(std::string path, std::uint64_t sequence,
                                                           std::uint32_t generation,
                                                           std::shared_ptr<ReadCache> cache,
                                                           std::shared_ptr<SegmentHoles> holes) {
  std::unique_ptr<SegmentReader> reader(new SegmentReader());
  reader->holes_ = std::move(holes);
  reader->path_ = std::move(path);
  reader->file_ = std::make_unique<ReaderFile>(ReaderFile::Kind::kSegment, reader->path_);
  reader->cache_ = cache != nullptr ? std::move(cache) : std::make_shared<ReadCache>();
  reader->cache_file_ = ReadCache::NewFile();
  reader->generation_ = generation;
  reader->header_.sequence = sequence;
  LUFF_RETURN_IF_ERROR(reader->TrySeal());
  if (!reader->sealed()) {
    reader->tail_ = std::make_unique<TailColumns>();
    LUFF_RETURN_IF_ERROR(reader->Poll().status());
  }
  return reader;
}

Status SegmentReader::TrySeal() {
  LUFF_ASSIGN_OR_RETURN(const std::uint64_t file_bytes, file_->Reopen());
  std::byte head[sizeof(format::FileHeader)];
  LUFF_ASSIGN_OR_RETURN(const std::size_t got, file_->ReadAt(head, 0));
  auto header = format::ParseFileHeaderUntrusted(std::span(head).first(got), format::kMetaMagic);
  if (!header.ok()) return Located(header.status());
  if (header->sequence != header_.sequence)
    return Corruption("found a segment under another number: " + path_);
  header_ = *header;
  Status status = ReadFooterOnce(file_bytes);
  // Of a copy that has only parts of the segment, what opens it was believed to be there.
  if (status.code() == StatusCode::kCorruption && holes_ != nullptr) {
    const Status filled = holes_->Fill(0, file_bytes);
    if (filled.code() == StatusCode::kUnavailable) return Located(filled);  // it may be whole all the same
    if (filled.ok()) status = ReadFooterOnce(file_bytes);
  }
  if (status.ok()) {
    if (tail_ != nullptr) last_ = LastRowsOf(tail_.get(), footer_->steps());
    tail_.reset();
    sealed_bytes_ = file_bytes;
  } else if (status.code() == StatusCode::kCorruption) {
    damage_ = Located(status);
  } else if (status.code() != StatusCode::kNotFound) {
    return Located(status);
  }
  return Status::Ok();
}

/// Reads what opens a sealed segment. kNotFound: it is not sealed.
Status SegmentReader::ReadFooterOnce(std::uint64_t file_bytes) {
  std::vector<std::shared_ptr<const void>> kept;
  const auto read = [&](std::uint64_t offset, std::uint64_t bytes) -> Result<std::span<const std::byte>> {
    const auto memory = AllocateForReading(bytes);
    if (memory == nullptr) return ResourceExhausted("no memory for the footer of a segment");
    const std::span<std::byte> to(memory.get(), static_cast<std::size_t>(bytes));
    LUFF_RETURN_IF_ERROR(file_->ReadAllAt(to, offset));
    kept.push_back(memory);
    return std::span<const std::byte>(to);
  };
  LUFF_ASSIGN_OR_RETURN(auto footer,
                        format::FooterDirectory::ReadUntrusted(file_bytes, header_.sequence, read));
  footer_bytes_ = std::exchange(kept, {});
  LUFF_ASSIGN_OR_RETURN(const auto tensors, footer.ReadTensorsUntrusted(read));
  std::vector<std::uint32_t> ids;
  ids.reserve(tensors.size());
  for (const format::TensorEntry& entry : tensors) ids.push_back(entry.tensor);
  ids_ = cache_->Shared(std::move(ids));
  footer_ = std::move(footer);
  return Status::Ok();
}

Result<bool> SegmentReader::Poll(std::uint64_t limit, bool reopen) {
  if (sealed()) return false;
  if (reopen) LUFF_RETURN_IF_ERROR(file_->Reopen().status());
  bool news = false;
  // The live page tells how much was published.
  const std::uint64_t expected =
      limit == ~std::uint64_t{0} || limit < position_ ? taken_bytes_ + taken_bytes_ / 8 : limit - position_;
  std::uint64_t window = std::clamp(expected, kWindowBytes, 4 * kWindowBytes);
  // Per thread, not per segment: a run has a tail for each worker, and the bytes are not needed after this
  // call.
  thread_local std::vector<std::byte> bytes;
  while (position_ < limit) {
    const std::uint64_t want = std::min(window, limit - position_);
    const bool one_step = want == limit - position_ && want >= kLargeStep && want / 3 * 2 <= step_bytes_;
    std::shared_ptr<std::byte> lasting;
    if (one_step) lasting = cache_->Lasting(want);
    if (lasting == nullptr && bytes.size() < want) bytes.resize(static_cast<std::size_t>(want));
    const std::span<std::byte> to(lasting != nullptr ? lasting.get() : bytes.data(),
                                  static_cast<std::size_t>(want));
    LUFF_ASSIGN_OR_RETURN(const std::size_t got, file_->ReadAt(to, position_));
    TailEnd end = TailEnd::kWindow;
    const std::size_t steps = tail_->steps().size();
    const std::uint64_t reached =
        tail_->TakeInUntrusted(to.first(got), position_, sequence(), &end, got == want ? lasting : nullptr);
    const bool moved = reached != position_;
    if (moved) taken_bytes_ = reached - position_;
    if (tail_->steps().size() > steps) step_bytes_ = taken_bytes_ / (tail_->steps().size() - steps);
    news = news || moved;
    position_ = reached;
    if (end == TailEnd::kFooter && damage_.ok()) {
      LUFF_RETURN_IF_ERROR(TrySeal());
      return news || sealed();
    }
    if (end != TailEnd::kWindow) break;
    if (moved && got == want) continue;
    if (got < want || window >= kMaxWindowBytes) break;  // end of the file, or a step beyond the limit
    window *= 2;                                         // the next step does not fit
  }
  if (bytes.capacity() > 4 * kWindowBytes) bytes = {};
  return news;
}

const format::StepColumns& SegmentReader::steps() const noexcept {
  return footer_ ? footer_->steps() : tail_->steps();
}

std::optional<std::uint32_t> SegmentReader::FindOrdinal(std::uint64_t ordinal) const noexcept {
  const auto ordinals = steps().ordinal;
  if (ordinals.empty() || ordinal < ordinals.front()) return std::nullopt;
  const std::uint64_t guess = ordinal - ordinals.front();
  if (guess < ordinals.size() && ordinals[guess] == ordinal) return static_cast<std::uint32_t>(guess);
  const auto at = std::lower_bound(ordinals.begin(), ordinals.end(), ordinal);
  if (at == ordinals.end() || *at != ordinal) return std::nullopt;
  return static_cast<std::uint32_t>(at - ordinals.begin());
}

std::size_t SegmentReader::slot_count() const noexcept {
  return footer_ ? ids_->size() : tail_->slot_count();
}
std::uint32_t SegmentReader::slot_tensor(std::size_t slot) const noexcept {
  return footer_ ? (*ids_)[slot] : tail_->slot_tensor(slot);
}
std::optional<std::size_t> SegmentReader::FindSlot(std::uint32_t tensor) const noexcept {
  if (footer_) {
    const auto at = std::lower_bound(ids_->begin(), ids_->end(), tensor);
    if (at == ids_->end() || *at != tensor) return std::nullopt;
    return static_cast<std::size_t>(at - ids_->begin());
  }
  return tail_->FindSlot(tensor);
}
std::optional<SegmentReader::PublishedRows> SegmentReader::PublishedAt(std::uint32_t index) const noexcept {
  if (footer_) return last_ == nullptr ? std::nullopt : last_->At(index);
  return tail_->RowsAt(index);
}

void SegmentReader::ForgetLastRows() noexcept { last_.reset(); }

void SegmentReader::Rest() noexcept {
  if (!footer_) return;
  rests_ = true;
  footer_->ForgetSteps();
  footer_bytes_.clear();
  last_.reset();
  by_ordinal_ = {};
  sorted_ = false;
}

Status SegmentReader::Wake() {
  if (!rests_) return Status::Ok();
  // A file that is open is read on, also after it was removed: what was sealed does not grow.
  if (const Status status = ReadFooterOnce(sealed_bytes_); !status.ok()) {
    if (status.code() != StatusCode::kNotFound) return Located(status);
    if (const auto bytes = file_->Reopen(); bytes.status().code() == StatusCode::kNotFound)
      return NotFound("the segment was removed, or merged meanwhile: " + path_);
    return Corruption("the footer of a sealed segment is gone: " + path_);
  }
  rests_ = false;
  return Status::Ok();
}

/// Returns the bytes of a section of the footer, from the cache if they were read recently. `key` identifies
/// the section within this segment.
Result<SegmentReader::Section> SegmentReader::ReadSection(const format::FooterSection& section,
                                                          std::uint64_t key, Again again) const {
  if (section.bytes == 0) return Section{};
  if (const auto* known = cache_->Find({cache_file_, key}); known != nullptr)
    return Section{known->bytes, known->owner, true};
  const auto place = footer_->PlaceOf(section);
  if (!place.ok()) return Located(place.status());
  const auto memory =
      again == Again::kYes ? AllocateForReading(section.bytes) : cache_->Passing(section.bytes);
  if (memory == nullptr)
    return ResourceExhausted("no memory for " + std::to_string(section.bytes) + " bytes of rows: " + path_);
  const std::span<std::byte> to(memory.get(), static_cast<std::size_t>(section.bytes));
  LUFF_RETURN_IF_ERROR(ReadFooter(to, *place));
  return Section{to, memory, false};
}

Status SegmentReader::ReadFooter(std::span<std::byte> to, std::uint64_t offset) const {
  if (holes_ != nullptr) LUFF_RETURN_IF_ERROR(holes_->Fill(offset, to.size()));
  const Status status = file_->ReadAllAt(to, offset);
  if (status.code() != StatusCode::kNotFound) return status;
  return NotFound("the segment was removed, or merged meanwhile (refresh the trial): " + path_);
}

/// Locates the rows of a slot of a sealed segment. The whole directory was verified when the segment was
/// opened; the checksums of the rows detect later changes.
Result<format::TensorEntry> SegmentReader::EntryAt(std::size_t slot) const {
  const std::size_t first = slot / kEntriesInPage * kEntriesInPage;
  if (first != first_in_page_) LUFF_RETURN_IF_ERROR(ReadPage(first));
  format::TensorEntry entry;
  std::memcpy(&entry, page_.bytes.data() + (slot - first) * sizeof(entry), sizeof(entry));
  if (entry.tensor != (*ids_)[slot])
    return Corruption("the tensor directory was changed after the segment was sealed: " + path_);
  return entry;
}

Status SegmentReader::ReadPage(std::size_t first) const {
  const std::size_t count = std::min(kEntriesInPage, ids_->size() - first);
  const format::FooterSection section{footer_->head().tensors.offset + first * sizeof(format::TensorEntry),
                                      count * sizeof(format::TensorEntry), 0};
  const std::uint64_t key = std::uint64_t{first} << 3 | static_cast<std::uint64_t>(Part::kTensors);
  LUFF_ASSIGN_OR_RETURN(Section read, ReadSection(section, key, Again::kYes));
  if (!read.verified) cache_->Put({cache_file_, key}, {read.bytes, read.owner});
  page_ = std::move(read);
  first_in_page_ = first;
  return Status::Ok();
}

/// Reads rows of a sealed segment. They are verified when read, so cached ones are intact.
template <typename Rows, typename Parse>
Result<Held<Rows>> SegmentReader::Sealed(std::size_t slot, Part part, const format::FooterSection& section,
                                         Again again, Parse parse) const {
  const std::uint64_t key = std::uint64_t{slot} << 3 | static_cast<std::uint64_t>(part);
  LUFF_ASSIGN_OR_RETURN(Section read, ReadSection(section, key, again));
  const auto rows = parse(read.bytes, !read.verified);
  if (!rows.ok()) return Located(rows.status());
  if (!read.verified && again == Again::kYes && !read.bytes.empty())
    cache_->Put({cache_file_, key}, {read.bytes, read.owner});
  return Held<Rows>{*rows, std::move(read.owner)};
}

Result<Held<format::SummaryBlock>> SegmentReader::Summaries(std::size_t slot, Again again) const {
  if (!footer_) return Held<format::SummaryBlock>{tail_->Summaries(slot), nullptr};
  LUFF_ASSIGN_OR_RETURN(const format::TensorEntry entry, EntryAt(slot));
  return Sealed<format::SummaryBlock>(
      slot, Part::kSummaries, format::FooterDirectory::SummarySection(entry), again,
      [&](auto bytes, bool verify) { return footer_->SummariesUntrusted(entry, bytes, verify); });
}
Result<std::size_t> SegmentReader::SummaryRowCount(std::size_t slot) const {
  if (!footer_) return tail_->Summaries(slot).size();
  LUFF_ASSIGN_OR_RETURN(const format::TensorEntry entry, EntryAt(slot));
  const auto place = footer_->PlaceOf(format::FooterDirectory::SummarySection(entry));
  if (!place.ok()) return Located(place.status());
  return entry.summary_rows;
}
Result<Held<format::ScalarBlock>> SegmentReader::Scalars(std::size_t slot, Again again) const {
  if (!footer_) return Held<format::ScalarBlock>{tail_->Scalars(slot), nullptr};
  LUFF_ASSIGN_OR_RETURN(const format::TensorEntry entry, EntryAt(slot));
  return Sealed<format::ScalarBlock>(
      slot, Part::kScalars, format::FooterDirectory::ScalarSection(entry), again,
      [&](auto bytes, bool verify) { return footer_->ScalarsUntrusted(entry, bytes, verify); });
}
Result<Held<format::IndexBlock>> SegmentReader::Index(std::size_t slot, Again again) const {
  if (!footer_) return Held<format::IndexBlock>{tail_->Index(slot), nullptr};
  LUFF_ASSIGN_OR_RETURN(const format::TensorEntry entry, EntryAt(slot));
  return Sealed<format::IndexBlock>(
      slot, Part::kIndex, format::FooterDirectory::IndexSection(entry), again,
      [&](auto bytes, bool verify) { return footer_->IndexUntrusted(entry, bytes, verify); });
}
Result<Held<format::FormBlock>> SegmentReader::Forms(std::size_t slot, Again again) const {
  if (!footer_) return Held<format::FormBlock>{tail_->Forms(slot), nullptr};
  LUFF_ASSIGN_OR_RETURN(const format::TensorEntry entry, EntryAt(slot));
  return Sealed<format::FormBlock>(
      slot, Part::kForms, format::FooterDirectory::FormSection(entry), again,
      [&](auto bytes, bool verify) { return footer_->FormsUntrusted(entry, bytes, verify); });
}
Result<SegmentReader::FrameList> SegmentReader::Frames(Again again) const {
  if (!footer_) return FrameList{tail_->frames(), nullptr};
  return Sealed<std::span<const format::FrameEntry>>(
      0, Part::kFrames, footer_->head().frames, again,
      [&](auto bytes, bool verify) { return footer_->FramesUntrusted(bytes, verify); });
}

std::uint32_t SegmentReader::frame_kinds() const noexcept {
  return footer_ ? footer_->head().kinds : tail_->kinds();
}

std::int64_t SegmentReader::heartbeat_unix_ns() const noexcept {
  return tail_ ? tail_->heartbeat_unix_ns() : 0;
}

Result<std::vector<format::FrameEntry>> SegmentReader::FramesOf(std::uint64_t ordinal) const {
  std::vector<format::FrameEntry> found;
  if (footer_) {
    if (!sorted_) {
      LUFF_ASSIGN_OR_RETURN(const auto frames, Frames());
      by_ordinal_.assign(frames.begin(), frames.end());
      std::erase_if(by_ordinal_, [](const auto& entry) { return entry.ordinal == format::kLooseOrdinal; });
      std::stable_sort(by_ordinal_.begin(), by_ordinal_.end(),
                       [](const auto& a, const auto& b) { return a.ordinal < b.ordinal; });
      by_ordinal_.shrink_to_fit();
      sorted_ = true;
    }
    auto at = std::lower_bound(by_ordinal_.begin(), by_ordinal_.end(), ordinal,
                               [](const auto& entry, std::uint64_t key) { return entry.ordinal < key; });
    for (; at != by_ordinal_.end() && at->ordinal == ordinal; ++at) found.push_back(*at);
    return found;
  }
  // Ascending by offset; the frames of a step are adjacent, the newest step comes last.
  const auto frames = tail_->frames();
  for (std::size_t i = frames.size(); i-- > 0;) {
    if (frames[i].ordinal == format::kLooseOrdinal) continue;
    if (frames[i].ordinal < ordinal) break;
    if (frames[i].ordinal == ordinal) found.push_back(frames[i]);
  }
  std::reverse(found.begin(), found.end());
  return found;
}

Result<std::span<const std::byte>> SegmentReader::ReadFrame(const format::FrameEntry& entry,
                                                            std::vector<std::byte>* scratch) const {
  if (entry.frame_bytes > format::kMaxFrameBody + 64ULL)
    return Corruption("frame of an impossible size: " + path_);
  if (holes_ != nullptr && sealed()) LUFF_RETURN_IF_ERROR(holes_->Fill(entry.offset, entry.frame_bytes));
  scratch->resize(entry.frame_bytes);
  LUFF_RETURN_IF_ERROR(file_->ReadAllAt(*scratch, entry.offset));
  format::FrameView frame;
  if (format::ParseFrameInWindowUntrusted(*scratch, entry.offset, entry.offset, sequence(), &frame) !=
          format::FrameOutcome::kFrame ||
      static_cast<std::uint16_t>(frame.kind) != entry.kind) {
    return Corruption("frame at byte " + std::to_string(entry.offset) + " is damaged: " + path_);
  }
  return frame.body;
}

namespace {

template <typename Def>
std::vector<Def> From(const std::vector<Def>& defs, std::size_t from) {
  return {defs.begin() + static_cast<std::ptrdiff_t>(std::min(from, defs.size())), defs.end()};
}

}  // namespace

SegmentReader::DefCounts SegmentReader::def_counts() const noexcept {
  if (!footer_) return {tail_->tensor_defs().size(), tail_->layout_defs().size()};
  return {footer_->head().def_count, footer_->head().layout_count};
}

Result<std::vector<TensorDef>> SegmentReader::TensorDefs(std::size_t from) const {
  if (!footer_) return From(tail_->tensor_defs(), from);
  LUFF_ASSIGN_OR_RETURN(const Section section, ReadSection(footer_->head().defs, kDefsKey, Again::kNo));
  const auto views = footer_->TensorDefsUntrusted(section.bytes);
  if (!views.ok()) return Located(views.status());
  std::vector<TensorDef> defs;
  for (std::size_t i = from; i < views->size(); ++i) defs.push_back(OwnedTensorDef((*views)[i]));
  return defs;
}

Result<std::vector<LayoutDef>> SegmentReader::LayoutDefs(std::size_t from) const {
  if (!footer_) return From(tail_->layout_defs(), from);
  LUFF_ASSIGN_OR_RETURN(const Section section, ReadSection(footer_->head().layouts, kDefsKey, Again::kNo));
  const auto views = footer_->LayoutDefsUntrusted(section.bytes);
  if (!views.ok()) return Located(views.status());
  std::vector<LayoutDef> defs;
  for (std::size_t i = from; i < views->size(); ++i) defs.push_back(OwnedLayoutDef((*views)[i]));
  return defs;
}

}  // namespace luff::store
