#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/bounded_read.h"
#include "luff/store/reader.h"
#include "store/paths.h"
#include "store/reader_tail.h"

namespace luff::store {
namespace {

constexpr std::uint64_t kWindowBytes =
    256 << 10;  // first attempt at reading a tail; doubled while a step does not fit
constexpr std::uint64_t kMaxWindowBytes = 512ULL << 20;

constexpr std::uint64_t kMapWindow = 512 << 10;
constexpr std::uint64_t kMapFrom = 8 << 10;  // smaller blocks come page by page

constexpr int kMaxOpenTails = 256;

enum VerifiedBit : std::uint8_t { kSummaries = 1, kScalars = 2, kIndex = 4, kForms = 8 };

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  LUFF_ASSIGN_OR_RETURN(const auto source, RegularFile::Open(path, kNamesInRun));
  std::shared_ptr<MappedFile> file(new MappedFile());
  if (const auto size = static_cast<std::size_t>(source->size()); size > 0) {
    void* at = mmap(nullptr, size, PROT_READ, MAP_SHARED, source->descriptor(), 0);
    if (at == MAP_FAILED) return IoError(std::string("map file: ") + std::strerror(errno) + ": " + path);
    file->bytes_ = {static_cast<const std::byte*>(at), size};
  }
  return std::shared_ptr<const MappedFile>(std::move(file));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

/// The file of a tail stays open between looks, but for those beyond kMaxOpenTails: a run has as many tails
/// as workers.
struct SegmentReader::Tail {
  ~Tail() { Close(); }
  [[nodiscard]] Status Open(const std::string& path, bool again) {
    if (file != nullptr && !again) return Status::Ok();
    LUFF_ASSIGN_OR_RETURN(auto opened, RegularFile::Open(path, kNamesInRun));
    Close();
    file = std::move(opened);
    ++open_tails;
    return Status::Ok();
  }
  void Looked() {
    if (open_tails > kMaxOpenTails) Close();
  }
  void Close() {
    if (file != nullptr) --open_tails;
    file.reset();
  }

  static inline std::atomic<int> open_tails = 0;
  std::unique_ptr<RegularFile> file;
  TailColumns columns;
};

SegmentReader::~SegmentReader() = default;

Status SegmentReader::Located(const Status& status) const {
  return Status(status.code(), std::string(status.message()) + ": " + path_);
}

Result<std::unique_ptr<SegmentReader>> SegmentReader::Open(std::string path, std::uint64_t sequence,
                                                           std::uint32_t generation) {
  std::unique_ptr<SegmentReader> reader(new SegmentReader());
  reader->path_ = std::move(path);
  reader->generation_ = generation;
  reader->header_.sequence = sequence;
  LUFF_RETURN_IF_ERROR(reader->TrySeal());
  if (!reader->sealed()) {
    reader->tail_ = std::make_unique<Tail>();
    LUFF_RETURN_IF_ERROR(reader->Poll().status());
  }
  return reader;
}

Status SegmentReader::TrySeal() {
  LUFF_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path_));
  auto header = format::ParseFileHeaderUntrusted(file->bytes(), format::kMetaMagic);
  if (!header.ok()) return Located(header.status());
  if (header->sequence != header_.sequence)
    return Corruption("found a segment under another number: " + path_);
  header_ = *header;
  auto footer = format::FooterView::ParseUntrusted(file->bytes(), header_.sequence);
  if (footer.ok()) {
    file_ = std::move(file);
    footer_ = std::move(footer).value();
    verified_.assign(footer_->tensors().size(), 0);
    tail_.reset();
  } else if (footer.status().code() != StatusCode::kNotFound) {
    damage_ = Located(footer.status());
  }
  return Status::Ok();
}

Result<bool> SegmentReader::Poll(std::uint64_t limit, bool reopen) {
  if (sealed()) return false;
  LUFF_RETURN_IF_ERROR(tail_->Open(path_, reopen));
  bool news = false;
  std::uint64_t window = kWindowBytes;
  // Of the thread, not of the segment: a run has as many tails as workers, and nothing of it is kept.
  thread_local std::vector<std::byte> bytes;
  while (position_ < limit) {
    const std::uint64_t want = std::min(window, limit - position_);
    bytes.resize(static_cast<std::size_t>(want));
    LUFF_ASSIGN_OR_RETURN(const std::size_t got, tail_->file->ReadAt(bytes, position_));
    TailEnd end = TailEnd::kWindow;
    const std::uint64_t reached =
        tail_->columns.TakeInUntrusted(std::span(bytes).first(got), position_, sequence(), &end);
    const bool moved = reached != position_;
    news = news || moved;
    position_ = reached;
    if (end == TailEnd::kFooter && damage_.ok()) {
      LUFF_RETURN_IF_ERROR(TrySeal());
      return news || sealed();
    }
    if (end != TailEnd::kWindow) break;
    if (moved && got == want) continue;
    if (got < want || window >= kMaxWindowBytes) break;  // all there is was seen
    window *= 2;                                         // one step larger than the window
  }
  if (bytes.capacity() > 4 * kWindowBytes) bytes = {};
  tail_->Looked();
  return news;
}

const format::StepColumns& SegmentReader::steps() const noexcept {
  return footer_ ? footer_->steps() : tail_->columns.steps();
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
  return footer_ ? footer_->tensors().size() : tail_->columns.slot_count();
}
std::uint32_t SegmentReader::slot_tensor(std::size_t slot) const noexcept {
  return footer_ ? footer_->tensors()[slot].tensor : tail_->columns.slot_tensor(slot);
}
std::optional<std::size_t> SegmentReader::FindSlot(std::uint32_t tensor) const noexcept {
  if (footer_) {
    const format::TensorEntry* entry = footer_->Find(tensor);
    if (entry == nullptr) return std::nullopt;
    return static_cast<std::size_t>(entry - footer_->tensors().data());
  }
  const auto at = tail_->columns.slots().find(tensor);
  if (at == tail_->columns.slots().end()) return std::nullopt;
  return at->second;
}

// A sealed block is verified at its first use; what is remembered is only that it was right.
#define LUFF_SEALED_BLOCK_(function, bit)                               \
  const bool verify = (verified_[slot] & (bit)) == 0;                   \
  auto block = footer_->function(footer_->tensors()[slot], verify);     \
  if (!block.ok()) return Located(block.status());                      \
  verified_[slot] = static_cast<std::uint8_t>(verified_[slot] | (bit)); \
  return block

Result<format::SummaryBlock> SegmentReader::Summaries(std::size_t slot) const {
  if (!footer_) return tail_->columns.Summaries(slot);
  if ((verified_[slot] & kSummaries) == 0) {
    const format::TensorEntry& entry = footer_->tensors()[slot];
    MapAhead(footer_->offset() + sizeof(format::FrameHeader) + entry.summary_offset,
             entry.summary_rows * sizeof(format::SummaryRow));
  }
  LUFF_SEALED_BLOCK_(SummariesUntrusted, kSummaries);
}
/// Maps the pages of a block that was never read, and its neighbours, in aligned windows. Page by page the
/// faults cost more than reading what is in the pages; who reads one tensor mostly reads the next, whose
/// block lies behind it.
void SegmentReader::MapAhead(std::uint64_t begin, std::uint64_t bytes) const noexcept {
#if defined(MADV_POPULATE_READ)
  const std::span<const std::byte> file = file_->bytes();
  if (bytes < kMapFrom || begin > file.size() || bytes > file.size() - begin) return;
  for (std::uint64_t window = begin / kMapWindow; window <= (begin + bytes - 1) / kMapWindow && window < 64;
       ++window) {
    if ((mapped_ >> window & 1) != 0) continue;
    mapped_ |= std::uint64_t{1} << window;
    const std::uint64_t from = window * kMapWindow;
    // Refused by older kernels, and where a page cannot be read: then the pages come one by one.
    (void)madvise(const_cast<std::byte*>(file.data()) + from, std::min(kMapWindow, file.size() - from),
                  MADV_POPULATE_READ);
  }
#endif
}

std::size_t SegmentReader::SummaryRowCount(std::size_t slot) const noexcept {
  if (!footer_) return tail_->columns.Summaries(slot).size();
  const auto block =
      footer_->SummariesUntrusted(footer_->tensors()[slot], false);  // looks only where it lies
  return block.ok() ? block->size() : 0;
}
Result<format::ScalarBlock> SegmentReader::Scalars(std::size_t slot) const {
  if (!footer_) return tail_->columns.Scalars(slot);
  LUFF_SEALED_BLOCK_(ScalarsUntrusted, kScalars);
}
Result<format::IndexBlock> SegmentReader::Index(std::size_t slot) const {
  if (!footer_) return tail_->columns.Index(slot);
  LUFF_SEALED_BLOCK_(IndexUntrusted, kIndex);
}
Result<format::FormBlock> SegmentReader::Forms(std::size_t slot) const {
  if (!footer_) return tail_->columns.Forms(slot);
  LUFF_SEALED_BLOCK_(FormsUntrusted, kForms);
}
#undef LUFF_SEALED_BLOCK_

Result<std::span<const format::FrameEntry>> SegmentReader::Frames() const {
  if (!footer_) return tail_->columns.frames();
  auto frames = footer_->FramesUntrusted();
  if (!frames.ok()) return Located(frames.status());
  return frames;
}

std::uint32_t SegmentReader::frame_kinds() const noexcept {
  return footer_ ? footer_->head().kinds : tail_->columns.kinds();
}

std::int64_t SegmentReader::heartbeat_unix_ns() const noexcept {
  return tail_ ? tail_->columns.heartbeat_unix_ns() : 0;
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
  const auto frames = tail_->columns.frames();  // by offset; a step's frames lie together, the newest last
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
  std::span<const std::byte> window;
  std::uint64_t window_offset = 0;
  if (file_) {
    window = file_->bytes();
  } else {
    if (entry.frame_bytes > format::kMaxFrameBody + 64ULL)
      return Corruption("frame of an impossible size: " + path_);
    scratch->resize(entry.frame_bytes);
    LUFF_RETURN_IF_ERROR(tail_->Open(path_, false));
    LUFF_ASSIGN_OR_RETURN(const std::size_t got, tail_->file->ReadAt(*scratch, entry.offset));
    tail_->Looked();
    window = std::span<const std::byte>(*scratch).first(got);
    window_offset = entry.offset;
  }
  format::FrameView frame;
  if (format::ParseFrameInWindowUntrusted(window, window_offset, entry.offset, sequence(), &frame) !=
          format::FrameOutcome::kFrame ||
      static_cast<std::uint16_t>(frame.kind) != entry.kind) {
    return Corruption("frame at byte " + std::to_string(entry.offset) + " is damaged: " + path_);
  }
  return frame.body;
}

Result<std::vector<TensorDef>> SegmentReader::TensorDefs() const {
  if (!footer_) return tail_->columns.tensor_defs();
  auto views = footer_->TensorDefsUntrusted();
  if (!views.ok()) return Located(views.status());
  std::vector<TensorDef> defs;
  for (const auto& view : *views) defs.push_back(OwnedTensorDef(view));
  return defs;
}

Result<std::vector<LayoutDef>> SegmentReader::LayoutDefs() const {
  if (!footer_) return tail_->columns.layout_defs();
  auto views = footer_->LayoutDefsUntrusted();
  if (!views.ok()) return Located(views.status());
  std::vector<LayoutDef> defs;
  for (const auto& view : *views) defs.push_back(OwnedLayoutDef(view));
  return defs;
}

}  // namespace luff::store
