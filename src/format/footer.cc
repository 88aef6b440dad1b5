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

/// Takes spans one after the other; the caller has checked the size of the whole.
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

/// Each larger than the one before; the largest number of all means "of no step".
bool OrdinalsAscend(std::span<const std::uint64_t> ordinals) noexcept {
  bool ascend = ordinals.empty() || ordinals.back() != kLooseOrdinal;
  for (std::size_t i = 1; i < ordinals.size(); ++i) ascend &= ordinals[i - 1] < ordinals[i];
  return ascend;
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

Result<FooterView> FooterView::ParseUntrusted(std::span<const std::byte> file, std::uint64_t sequence) {
  FileTail tail;
  if (file.size() < kFileHeaderBytes + sizeof(FrameHeader) + sizeof(FooterHead) + sizeof(tail)) {
    return NotFound("segment has no footer");
  }
  if (reinterpret_cast<std::uintptr_t>(file.data()) % 8 != 0) {
    return InvalidArgument("segment in memory that is not 8-byte aligned");
  }
  std::memcpy(&tail, file.data() + file.size() - sizeof(tail), sizeof(tail));
  if (tail.magic != kTailMagic) return NotFound("segment has no footer");
  if (tail.checksum != HashBytes(file.last(sizeof(tail)).first(offsetof(FileTail, checksum)))) {
    return Corruption("checksum of the segment's tail does not match");
  }
  const std::uint64_t end = file.size() - sizeof(tail);
  if (tail.sequence != sequence || tail.footer_offset < kFileHeaderBytes || tail.footer_offset > end ||
      tail.footer_bytes != end - tail.footer_offset) {
    return Corruption("tail of the segment points outside of it");
  }
  FrameView frame;
  if (ParseFrameUntrusted(file.first(static_cast<std::size_t>(end)), tail.footer_offset, sequence, &frame) !=
          FrameOutcome::kFrame ||
      frame.kind != FrameKind::kFooter || frame.next_offset != end) {
    return Corruption("footer of the segment is damaged");
  }
  FooterView view;
  view.body_ = frame.body;
  view.offset_ = tail.footer_offset;
  if (frame.body.size() < sizeof(FooterHead)) return Corruption("footer is shorter than its head");
  std::memcpy(&view.head_, frame.body.data(), sizeof(FooterHead));
  const FooterHead& head = view.head_;
  if (head.head_bytes != sizeof(FooterHead) ||
      head.checksum != HashBytes(frame.body.first(offsetof(FooterHead, checksum)))) {
    return Corruption("head of the footer is damaged");
  }
  LUFF_ASSIGN_OR_RETURN(const auto steps, view.SectionUntrusted(head.steps, true));
  if (steps.size() != StepSectionBytes(head.step_count)) return Corruption("step columns of a wrong size");
  Slicer slicer(steps.data());
  StepColumns& c = view.steps_;
  c.ordinal = slicer.Take<std::uint64_t>(head.step_count);
  c.global_step = slicer.Take<std::int64_t>(head.step_count);
  c.mode_step = slicer.Take<std::int64_t>(head.step_count);
  c.update = slicer.Take<std::int64_t>(head.step_count);
  c.wall_unix_ns = slicer.Take<std::int64_t>(head.step_count);
  c.duration_ns = slicer.Take<std::int64_t>(head.step_count);
  c.forms = slicer.Take<std::uint32_t>(head.step_count);
  c.epoch = slicer.Take<std::uint32_t>(head.step_count);
  c.mode = slicer.Take<std::uint8_t>(head.step_count);
  if (!OrdinalsAscend(c.ordinal)) return Corruption("steps of the segment are not in order");
  for (const std::uint8_t mode : c.mode) {
    if (mode < 1 || mode > 4) return Corruption("step of unknown mode " + std::to_string(mode));
  }
  LUFF_ASSIGN_OR_RETURN(const auto tensors, view.SectionUntrusted(head.tensors, true));
  if (tensors.size() != head.tensor_count * sizeof(TensorEntry))
    return Corruption("tensor directory of a wrong size");
  view.tensors_ = {reinterpret_cast<const TensorEntry*>(tensors.data()), head.tensor_count};
  for (std::size_t i = 1; i < view.tensors_.size(); ++i) {
    if (view.tensors_[i - 1].tensor >= view.tensors_[i].tensor)
      return Corruption("tensor directory is not sorted");
  }
  return view;
}

Result<std::span<const std::byte>> FooterView::SectionUntrusted(const FooterSection& section,
                                                                bool verify) const {
  return BlockUntrusted(section.offset, section.bytes, section.checksum, verify);
}

Result<std::span<const std::byte>> FooterView::BlockUntrusted(std::uint64_t offset, std::uint64_t bytes,
                                                              std::uint64_t checksum, bool verify) const {
  if (offset % 8 != 0 || offset > body_.size() || bytes > body_.size() - offset) {
    return Corruption("footer points outside of itself");
  }
  const auto block = body_.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
  if (verify && HashBytes(block) != checksum) {
    return Corruption("checksum of a part of the footer does not match, at byte " + std::to_string(offset) +
                      " of it");
  }
  return block;
}

const TensorEntry* FooterView::Find(std::uint32_t tensor) const noexcept {
  const auto at =
      std::lower_bound(tensors_.begin(), tensors_.end(), tensor,
                       [](const TensorEntry& entry, std::uint32_t id) { return entry.tensor < id; });
  return at != tensors_.end() && at->tensor == tensor ? &*at : nullptr;
}

Result<SummaryBlock> FooterView::SummariesUntrusted(const TensorEntry& entry, bool verify) const {
  const std::size_t n = entry.summary_rows;
  LUFF_ASSIGN_OR_RETURN(const auto bytes, BlockUntrusted(entry.summary_offset, SummaryBlockBytes(n),
                                                         entry.summary_checksum, verify));
  Slicer slicer(bytes.data());
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
    std::uint8_t known = 0;  // a row is looked at once for each run of one dtype
    for (const std::uint8_t dtype : block.dtype) {
      if (dtype == known) continue;
      if (!IsKnownDType(dtype)) return Corruption("summary of unknown dtype " + std::to_string(dtype));
      known = dtype;
    }
  }
  return block;
}

Result<ScalarBlock> FooterView::ScalarsUntrusted(const TensorEntry& entry, bool verify) const {
  const std::size_t n = entry.scalar_rows;
  LUFF_ASSIGN_OR_RETURN(const auto bytes, BlockUntrusted(entry.scalar_offset, ScalarBlockBytes(n),
                                                         entry.scalar_checksum, verify));
  Slicer slicer(bytes.data());
  ScalarBlock block;
  block.value = slicer.Take<double>(n);
  block.step = slicer.Take<std::uint32_t>(n);
  block.flags = slicer.Take<std::uint32_t>(n);
  if (verify && !StepsInRange(block.step, steps_.size())) {
    return Corruption("scalar of a step that is not in the segment");
  }
  return block;
}

Result<IndexBlock> FooterView::IndexUntrusted(const TensorEntry& entry, bool verify) const {
  const std::size_t n = entry.index_rows;
  LUFF_ASSIGN_OR_RETURN(const auto bytes,
                        BlockUntrusted(entry.index_offset, IndexBlockBytes(n), entry.index_checksum, verify));
  Slicer slicer(bytes.data());
  IndexBlock block;
  block.rows = slicer.Take<IndexRow>(n);
  block.step = slicer.Take<std::uint32_t>(n);
  if (verify) {
    if (!StepsInRange(block.step, steps_.size()))
      return Corruption("index row of a step that is not in the segment");
    LUFF_RETURN_IF_ERROR(ParseIndexRowsUntrusted(bytes.first(n * sizeof(IndexRow))).status());
  }
  return block;
}

Result<FormBlock> FooterView::FormsUntrusted(const TensorEntry& entry, bool verify) const {
  const std::size_t n = entry.form_rows;
  LUFF_ASSIGN_OR_RETURN(const auto bytes,
                        BlockUntrusted(entry.form_offset, FormBlockBytes(n), entry.form_checksum, verify));
  Slicer slicer(bytes.data());
  FormBlock block;
  block.rows = slicer.Take<FormRow>(n);
  block.step = slicer.Take<std::uint32_t>(n);
  if (verify && !StepsInRange(block.step, steps_.size())) {
    return Corruption("form row of a step that is not in the segment");
  }
  return block;
}

Result<std::vector<TensorDefView>> FooterView::TensorDefsUntrusted() const {
  LUFF_ASSIGN_OR_RETURN(const auto section, SectionUntrusted(head_.defs, true));
  return ParseTensorDefsUntrusted(section);
}

Result<std::vector<LayoutDefView>> FooterView::LayoutDefsUntrusted() const {
  LUFF_ASSIGN_OR_RETURN(const auto section, SectionUntrusted(head_.layouts, true));
  return ParseLayoutDefsUntrusted(section);
}

Result<std::span<const FrameEntry>> FooterView::FramesUntrusted() const {
  LUFF_ASSIGN_OR_RETURN(const auto section, SectionUntrusted(head_.frames, true));
  if (section.size() != head_.frame_count * sizeof(FrameEntry))
    return Corruption("frame directory of a wrong size");
  std::span<const FrameEntry> entries(reinterpret_cast<const FrameEntry*>(section.data()), head_.frame_count);
  for (const FrameEntry& entry : entries) {
    if (entry.offset % kFrameAlign != 0 || entry.offset < kFileHeaderBytes || entry.offset >= offset_ ||
        entry.frame_bytes > offset_ - entry.offset) {
      return Corruption("frame directory points outside of the segment");
    }
  }
  return entries;
}

}  // namespace luff::format
