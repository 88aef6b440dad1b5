#include <algorithm>

#include "luff/store/reader.h"
#include "store/read_cache.h"

namespace luff::store {
namespace {

constexpr std::uint64_t kPiece = std::uint64_t{256} << 10;  // stays in the processor's cache while it is used

}  // namespace

void SegmentSweep::Begin(const SegmentReader& segment) noexcept {
  segment_ = &segment;
  offset_ = bytes_ = 0;
}

/// Returns the bytes of a section of the footer, and reads those that lie behind it with them.
Result<std::span<const std::byte>> SegmentSweep::Bytes(const format::FooterSection& section) {
  if (section.bytes == 0) return std::span<const std::byte>();
  const bool there = section.offset >= offset_ && section.offset - offset_ <= bytes_ &&
                     section.bytes <= bytes_ - (section.offset - offset_);
  if (!there) {
    const auto place = segment_->footer_->PlaceOf(section);
    if (!place.ok()) return segment_->Located(place.status());
    // Rows lie before the directory of the tensors.
    const std::uint64_t end = segment_->footer_->head().tensors.offset;
    bytes_ = std::max(section.bytes, std::min(kPiece, end > section.offset ? end - section.offset : 0));
    if (!segment_->footer_->PlaceOf({section.offset, bytes_, 0}).ok()) bytes_ = section.bytes;
    offset_ = section.offset;
    if (bytes_ > room_) {
      memory_ = AllocateForReading(std::max(bytes_, kPiece));
      room_ = memory_ == nullptr ? 0 : std::max(bytes_, kPiece);
    }
    if (memory_ == nullptr) {
      return ResourceExhausted("no memory for " + std::to_string(std::exchange(bytes_, 0)) +
                               " bytes of rows: " + segment_->path());
    }
    const Status read = segment_->ReadFooter({memory_.get(), static_cast<std::size_t>(bytes_)}, *place);
    if (!read.ok()) {
      bytes_ = 0;
      return read;
    }
  }
  return std::span<const std::byte>(memory_.get() + (section.offset - offset_),
                                    static_cast<std::size_t>(section.bytes));
}

Result<format::SummaryBlock> SegmentSweep::Summaries(std::size_t slot) {
  LUFF_ASSIGN_OR_RETURN(const format::TensorEntry entry, segment_->EntryAt(slot));
  LUFF_ASSIGN_OR_RETURN(const auto bytes, Bytes(format::FooterDirectory::SummarySection(entry)));
  auto rows = segment_->footer_->SummariesUntrusted(entry, bytes, true);
  if (!rows.ok()) return segment_->Located(rows.status());
  return rows;
}

Result<format::FormBlock> SegmentSweep::Forms(std::size_t slot) {
  LUFF_ASSIGN_OR_RETURN(const format::TensorEntry entry, segment_->EntryAt(slot));
  LUFF_ASSIGN_OR_RETURN(const auto bytes, Bytes(format::FooterDirectory::FormSection(entry)));
  auto rows = segment_->footer_->FormsUntrusted(entry, bytes, true);
  if (!rows.ok()) return segment_->Located(rows.status());
  return rows;
}

}  // namespace luff::store
