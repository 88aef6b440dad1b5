#include "luff/format/footer.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "luff/base/bytes.h"

namespace luff::format {
namespace {

constexpr std::uint64_t kStepBytes = 8 * 6 + 4 + 4 + 1;  // of one step over all columns, without padding

std::uint64_t StepSectionBytes(std::uint64_t count) noexcept { return AlignUp(count * kStepBytes, 8); }
std::uint64_t SummaryBlockBytes(std::uint64_t rows) noexcept { return rows * sizeof(SummaryRow); }
std::uint64_t ScalarBlockBytes(std::uint64_t rows) noexcept { return rows * 16; }
std::uint64_t IndexBlockBytes(std::uint64_t rows) noexcept {
  return AlignUp(rows * (sizeof(IndexRow) + 4), 8);
}
std::uint64_t FormBlockBytes(std::uint64_t rows) noexcept { return AlignUp(rows * (sizeof(FormRow) + 4), 8); }

/// Takes spans one after another; the caller has checked the total size.
class Slicer {
 public:
  explicit Slicer(const std::byte* at) : at_(at) {}
  template <typename T>
  std::span<const T> Take(std::size_t count) {
    std::span<const T> span(reinterpret_cast<const T*>(at_), count);
    at_ += count * sizeof(T);
    return span;
  }

 private:
  const std::byte* at_;
};

bool StepsInRange(std::span<const std::uint32_t> steps, std::size_t limit) noexcept {
  std::uint32_t last = 0;
  for (const std::uint32_t step : steps) {
    if (step >= limit || step < last) return false;
    last = step;
  }
  return true;
}

/// True if each ordinal is larger than the one before and none is kLooseOrdinal.
bool OrdinalsAscend(std::span<const std::uint64_t> ordinals) noexcept {
  bool ascend = ordinals.empty() || ordinals.back() != kLooseOrdinal;
  for (std::size_t i = 1; i < ordinals.size(); ++i) ascend &= ordinals[i - 1] < ordinals[i];
  return ascend;
}

/// Checks that `bytes` has the size of the section, and with `verify` also its checksum.
Status CheckSection(const FooterSection& section, std::span<const std::byte> bytes, bool verify) {
  if (bytes.size() != section.bytes) return Corruption("part of the footer of a wrong size");
  if (verify && HashBytes(bytes) != section.checksum) {
    return Corruption("checksum of a part of the footer does not match, at byte " +
                      std::to_string(section.offset) + " of it");
  }
  return Status::Ok();
}

}  // namespace

StepMark StepColumns::mark(std::size_t i) const noexcept {
  StepMark mark{};
  mark.global_step = global_step[i];
  mark.mode_step = mode_step[i];
  mark.update = update[i];
  mark.wall_unix_ns = wall_unix_ns[i];
  mark.duration_ns = duration_ns[i];
  mark.mode = mode[i];
  mark.forms = forms[i];
  mark.epoch = epoch[i];
  return mark;
}

SummaryRow SummaryBlock::row(std::size_t i, std::uint32_t tensor) const noexcept {
  SummaryRow row{};
  row.tensor = tensor;
  row.dtype = dtype[i];
  row.flags = flags[i];
  row.steps = steps[i];
  row.count = count[i];
  row.sum = sum[i];
  row.sum_sq = sum_sq[i];
  row.abs_sum = abs_sum[i];
  row.min_bits = min_bits[i];
  row.max_bits = max_bits[i];
  row.zero_count = zero_count[i];
  row.nan_count = nan_count[i];
  row.inf_count = inf_count[i];
  return row;
}

Result<FooterDirectory> FooterDirectory::ReadUntrusted(std::uint64_t file_bytes, std::uint64_t sequence,
                                                       const Read& read) {
  FileTail tail;
  if (file_bytes < kFileHeaderBytes + sizeof(FrameHeader) + sizeof(FooterHead) + sizeof(tail)) {
    return NotFound("segment has no footer");
  }
  const std::uint64_t end = file_bytes - sizeof(tail);
  LUFF_ASSIGN_OR_RETURN(const auto last, read(end, sizeof(tail)));
  std::memcpy(&tail, last.data(), sizeof(tail));
  if (tail.magic != kTailMagic) return NotFound("segment has no footer");
  if (tail.checksum != HashBytes(last.first(offsetof(FileTail, checksum)))) {
    return Corruption("checksum of the segment's tail does not match");
  }
  constexpr std::size_t kBegin = sizeof(FrameHeader) + sizeof(FooterHead);
  if (tail.sequence != sequence || tail.footer_offset < kFileHeaderBytes || tail.footer_offset > end ||
      tail.footer_bytes != end - tail.footer_offset) {
    return Corruption("tail of the segment points outside of it");
  }
  if (tail.footer_bytes < kBegin) return Corruption("footer is shorter than its head");
  LUFF_ASSIGN_OR_RETURN(const auto begin, read(tail.footer_offset, kBegin));
  FrameView frame;
  if (ParseFrameHeadUntrusted(begin, tail.footer_offset, sequence, &frame) != FrameOutcome::kFrame ||
      frame.kind != FrameKind::kFooter || frame.next_offset != end) {
    return Corruption("footer of the segment is damaged");
  }
  if (frame.body.size() < sizeof(FooterHead)) return Corruption("footer is shorter than its head");
  FooterDirectory directory;
  directory.offset_ = tail.footer_offset;
  directory.body_bytes_ = tail.footer_bytes - sizeof(FrameHeader);
  std::memcpy(&directory.head_, frame.body.data(), sizeof(FooterHead));
  if (directory.head_.head_bytes != sizeof(FooterHead) ||
      directory.head_.checksum != HashBytes(frame.body.first(offsetof(FooterHead, checksum)))) {
    return Corruption("head of the footer is damaged");
  }
  LUFF_RETURN_IF_ERROR(directory.ReadStepsUntrusted(read));
  return directory;
}

Status FooterDirectory::ReadStepsUntrusted(const Read& read) {
  const std::uint32_t count = head_.step_count;
  if (head_.steps.bytes != StepSectionBytes(count)) return Corruption("step columns of a wrong size");
  LUFF_ASSIGN_OR_RETURN(const auto steps, ReadSection(head_.steps, read));
  Slicer slicer(steps.data());
  steps_.ordinal = slicer.Take<std::uint64_t>(count);
  steps_.global_step = slicer.Take<std::int64_t>(count);
  steps_.mode_step = slicer.Take<std::int64_t>(count);
  steps_.update = slicer.Take<std::int64_t>(count);
  steps_.wall_unix_ns = slicer.Take<std::int64_t>(count);
  steps_.duration_ns = slicer.Take<std::int64_t>(count);
  steps_.forms = slicer.Take<std::uint32_t>(count);
  steps_.epoch = slicer.Take<std::uint32_t>(count);
  steps_.mode = slicer.Take<std::uint8_t>(count);
  if (!OrdinalsAscend(steps_.ordinal)) return Corruption("steps of the segment are not in order");
  for (const std::uint8_t mode : steps_.mode) {
    if (mode < 1 || mode > 4) return Corruption("step of unknown mode " + std::to_string(mode));
  }
  return Status::Ok();
}

Result<std::span<const TensorEntry>> FooterDirectory::ReadTensorsUntrusted(const Read& read) const {
  if (head_.tensors.bytes != head_.tensor_count * sizeof(TensorEntry))
    return Corruption("tensor directory of a wrong size");
  LUFF_ASSIGN_OR_RETURN(const auto bytes, ReadSection(head_.tensors, read));
  const std::span tensors(reinterpret_cast<const TensorEntry*>(bytes.data()), head_.tensor_count);
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i - 1].tensor >= tensors[i].tensor) return Corruption("tensor directory is not sorted");
  }
  return tensors;
}

Result<std::uint64_t> FooterDirectory::PlaceOf(const FooterSection& section) const {
  if (section.offset % 8 != 0 || section.offset > body_bytes_ ||
      section.bytes > body_bytes_ - section.offset) {
    return Corruption("footer points outside of itself");
  }
  return offset_ + sizeof(FrameHeader) + section.offset;
}

Result<std::span<const std::byte>> FooterDirectory::ReadSection(const FooterSection& section,
                                                                const Read& read) const {
  LUFF_ASSIGN_OR_RETURN(const std::uint64_t place, PlaceOf(section));
  LUFF_ASSIGN_OR_RETURN(const auto bytes, read(place, section.bytes));
  LUFF_RETURN_IF_ERROR(CheckSection(section, bytes, true));
  return bytes;
}

FooterSection FooterDirectory::SummarySection(const TensorEntry& entry) noexcept {
  return {entry.summary_offset, SummaryBlockBytes(entry.summary_rows), entry.summary_checksum};
}
FooterSection FooterDirectory::ScalarSection(const TensorEntry& entry) noexcept {
  return {entry.scalar_offset, ScalarBlockBytes(entry.scalar_rows), entry.scalar_checksum};
}
FooterSection FooterDirectory::IndexSection(const TensorEntry& entry) noexcept {
  return {entry.index_offset, IndexBlockBytes(entry.index_rows), entry.index_checksum};
}
FooterSection FooterDirectory::FormSection(const TensorEntry& entry) noexcept {
  return {entry.form_offset, FormBlockBytes(entry.form_rows), entry.form_checksum};
}

Result<SummaryBlock> FooterDirectory::SummariesUntrusted(const TensorEntry& entry,
                                                         std::span<const std::byte> section,
                                                         bool verify) const {
  const std::size_t n = entry.summary_rows;
  LUFF_RETURN_IF_ERROR(CheckSection(SummarySection(entry), section, verify));
  Slicer slicer(section.data());
  SummaryBlock block;
  block.count = slicer.Take<std::uint64_t>(n);
  block.sum = slicer.Take<double>(n);
  block.sum_sq = slicer.Take<double>(n);
  block.abs_sum = slicer.Take<double>(n);
  block.min_bits = slicer.Take<std::uint64_t>(n);
  block.max_bits = slicer.Take<std::uint64_t>(n);
  block.zero_count = slicer.Take<std::uint64_t>(n);
  block.nan_count = slicer.Take<std::uint64_t>(n);
  block.inf_count = slicer.Take<std::uint64_t>(n);
  block.step = slicer.Take<std::uint32_t>(n);
  block.steps = slicer.Take<std::uint16_t>(n);
  block.dtype = slicer.Take<std::uint8_t>(n);
  block.flags = slicer.Take<std::uint8_t>(n);
  if (verify) {
    if (!StepsInRange(block.step, steps_.size()))
      return Corruption("summary of a step that is not in the segment");
    std::uint8_t known = 0;  // checks once per run of equal dtypes
    for (const std::uint8_t dtype : block.dtype) {
      if (dtype == known) continue;
      if (!IsKnownDType(dtype)) return Corruption("summary of unknown dtype " + std::to_string(dtype));
      known = dtype;
    }
  }
  return block;
}

Result<ScalarBlock> FooterDirectory::ScalarsUntrusted(const TensorEntry& entry,
                                                      std::span<const std::byte> section, bool verify) const {
  const std::size_t n = entry.scalar_rows;
  LUFF_RETURN_IF_ERROR(CheckSection(ScalarSection(entry), section, verify));
  Slicer slicer(section.data());
  ScalarBlock block;
  block.value = slicer.Take<double>(n);
  block.step = slicer.Take<std::uint32_t>(n);
  block.flags = slicer.Take<std::uint32_t>(n);
  if (verify && !StepsInRange(block.step, steps_.size())) {
    return Corruption("scalar of a step that is not in the segment");
  }
  return block;
}

Result<IndexBlock> FooterDirectory::IndexUntrusted(const TensorEntry& entry,
                                                   std::span<const std::byte> section, bool verify) const {
  const std::size_t n = entry.index_rows;
  LUFF_RETURN_IF_ERROR(CheckSection(IndexSection(entry), section, verify));
  Slicer slicer(section.data());
  IndexBlock block;
  block.rows = slicer.Take<IndexRow>(n);
  block.step = slicer.Take<std::uint32_t>(n);
  if (verify) {
    if (!StepsInRange(block.step, steps_.size()))
      return Corruption("index row of a step that is not in the segment");
    LUFF_RETURN_IF_ERROR(ParseIndexRowsUntrusted(section.first(n * sizeof(IndexRow))).status());
  }
  return block;
}

Result<FormBlock> FooterDirectory::FormsUntrusted(const TensorEntry& entry,
                                                  std::span<const std::byte> section, bool verify) const {
  const std::size_t n = entry.form_rows;
  LUFF_RETURN_IF_ERROR(CheckSection(FormSection(entry), section, verify));
  Slicer slicer(section.data());
  FormBlock block;
  block.rows = slicer.Take<FormRow>(n);
  block.step = slicer.Take<std::uint32_t>(n);
  if (verify && !StepsInRange(block.step, steps_.size())) {
    return Corruption("form row of a step that is not in the segment");
  }
  return block;
}

Result<std::vector<TensorDefView>> FooterDirectory::TensorDefsUntrusted(
    std::span<const std::byte> section) const {
  LUFF_RETURN_IF_ERROR(CheckSection(head_.defs, section, true));
  return ParseTensorDefsUntrusted(section);
}

Result<std::vector<LayoutDefView>> FooterDirectory::LayoutDefsUntrusted(
    std::span<const std::byte> section) const {
  LUFF_RETURN_IF_ERROR(CheckSection(head_.layouts, section, true));
  return ParseLayoutDefsUntrusted(section);
}

Result<std::span<const FrameEntry>> FooterDirectory::FramesUntrusted(std::span<const std::byte> section,
                                                                     bool verify) const {
  LUFF_RETURN_IF_ERROR(CheckSection(head_.frames, section, verify));
  if (section.size() != head_.frame_count * sizeof(FrameEntry))
    return Corruption("frame directory of a wrong size");
  std::span<const FrameEntry> entries(reinterpret_cast<const FrameEntry*>(section.data()), head_.frame_count);
  for (const FrameEntry& entry : entries) {
    if (!verify) break;
    if (entry.offset % kFrameAlign != 0 || entry.offset < kFileHeaderBytes || entry.offset >= offset_ ||
        entry.frame_bytes > offset_ - entry.offset) {
      return Corruption("frame directory points outside of the segment");
    }
  }
  return entries;
}

Result<FooterView> FooterView::ParseUntrusted(std::span<const std::byte> file, std::uint64_t sequence) {
  if (reinterpret_cast<std::uintptr_t>(file.data()) % 8 != 0) {
    return InvalidArgument("segment in memory that is not 8-byte aligned");
  }
  const auto read = [&](std::uint64_t offset, std::uint64_t bytes) -> Result<std::span<const std::byte>> {
    return file.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
  };
  LUFF_ASSIGN_OR_RETURN(FooterDirectory directory,
                        FooterDirectory::ReadUntrusted(file.size(), sequence, read));
  LUFF_ASSIGN_OR_RETURN(const auto tensors, directory.ReadTensorsUntrusted(read));
  return FooterView(file, std::move(directory), tensors);
}

Result<std::span<const std::byte>> FooterView::BytesOf(const FooterSection& section) const {
  LUFF_ASSIGN_OR_RETURN(const std::uint64_t place, directory_.PlaceOf(section));
  return file_.subspan(static_cast<std::size_t>(place), static_cast<std::size_t>(section.bytes));
}

Result<SummaryBlock> FooterView::SummariesUntrusted(const TensorEntry& entry, bool verify) const {
  LUFF_ASSIGN_OR_RETURN(const auto bytes, BytesOf(FooterDirectory::SummarySection(entry)));
  return directory_.SummariesUntrusted(entry, bytes, verify);
}
Result<ScalarBlock> FooterView::ScalarsUntrusted(const TensorEntry& entry, bool verify) const {
  LUFF_ASSIGN_OR_RETURN(const auto bytes, BytesOf(FooterDirectory::ScalarSection(entry)));
  return directory_.ScalarsUntrusted(entry, bytes, verify);
}
Result<IndexBlock> FooterView::IndexUntrusted(const TensorEntry& entry, bool verify) const {
  LUFF_ASSIGN_OR_RETURN(const auto bytes, BytesOf(FooterDirectory::IndexSection(entry)));
  return directory_.IndexUntrusted(entry, bytes, verify);
}
Result<FormBlock> FooterView::FormsUntrusted(const TensorEntry& entry, bool verify) const {
  LUFF_ASSIGN_OR_RETURN(const auto bytes, BytesOf(FooterDirectory::FormSection(entry)));
  return directory_.FormsUntrusted(entry, bytes, verify);
}
Result<std::vector<TensorDefView>> FooterView::TensorDefsUntrusted() const {
  LUFF_ASSIGN_OR_RETURN(const auto bytes, BytesOf(head().defs));
  return directory_.TensorDefsUntrusted(bytes);
}
Result<std::vector<LayoutDefView>> FooterView::LayoutDefsUntrusted() const {
  LUFF_ASSIGN_OR_RETURN(const auto bytes, BytesOf(head().layouts));
  return directory_.LayoutDefsUntrusted(bytes);
}
Result<std::span<const FrameEntry>> FooterView::FramesUntrusted() const {
  LUFF_ASSIGN_OR_RETURN(const auto bytes, BytesOf(head().frames));
  return directory_.FramesUntrusted(bytes, true);
}

}  // namespace luff::format
