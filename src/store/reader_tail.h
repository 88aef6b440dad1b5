#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "luff/base/result.h"
#include "luff/format/footer.h"
#include "luff/format/frames.h"
#include "luff/store/reader.h"
#include "luff/store/writer.h"
#include "store/tail_rows.h"

namespace luff::store {

/// Why reading a tail stopped.
enum class TailEnd : std::uint8_t {
  kWindow,   // the window ended; the file may continue
  kFooter,   // the segment's footer
  kNoFrame,  // bytes that are not a frame: a larger window does not help
};

/// Rows of a segment without a footer: by step, as they were published, and by tensor, in the same columns as
/// a footer. Columns are made of what somebody asks for. **Thread-compatible.**
class TailColumns {
 public:
  /// Reads the frames of `window`, which begins at `offset` of segment `sequence`, at a boundary between two
  /// publications. Returns the offset up to which it has read everything: the end of the last step mark, or
  /// of loose frames. Leaves steps without a mark for the next call. `owner`: of the window's memory. Rows
  /// that fill half of the window stay in it and keep it; others are copied, and so are all if it is null.
  [[nodiscard]] std::uint64_t TakeInUntrusted(std::span<const std::byte> window, std::uint64_t offset,
                                              std::uint64_t sequence, TailEnd* end,
                                              const std::shared_ptr<const void>& owner = nullptr);

  [[nodiscard]] const format::StepColumns& steps() const noexcept { return view_; }
  [[nodiscard]] std::size_t slot_count() const noexcept { return slots_.size(); }
  [[nodiscard]] std::uint32_t slot_tensor(std::size_t slot) const noexcept { return slots_.tensor(slot); }
  [[nodiscard]] std::optional<std::size_t> FindSlot(std::uint32_t tensor) const {
    return slots_.Find(tensor);
  }
  [[nodiscard]] SegmentReader::PublishedRows RowsAt(std::uint32_t step) const noexcept {
    return {summaries_.At(step), scalars_.At(step), forms_.At(step)};
  }
  /// Takes the rows of the last step out; null if there is no step. Nothing else is used afterwards.
  [[nodiscard]] std::unique_ptr<const LastRows> TakeLastRows();
  // Lifetime: until the next call for the same slot after more was read.
  [[nodiscard]] format::SummaryBlock Summaries(std::size_t slot) const;
  [[nodiscard]] format::ScalarBlock Scalars(std::size_t slot) const;
  [[nodiscard]] format::IndexBlock Index(std::size_t slot) const;
  [[nodiscard]] format::FormBlock Forms(std::size_t slot) const;
  [[nodiscard]] std::span<const format::FrameEntry> frames() const noexcept { return frames_; }
  [[nodiscard]] std::uint32_t kinds() const noexcept { return kinds_; }
  [[nodiscard]] std::int64_t heartbeat_unix_ns() const noexcept { return heartbeat_; }  // 0: none
  [[nodiscard]] const std::vector<TensorDef>& tensor_defs() const noexcept { return tensor_defs_; }
  [[nodiscard]] const std::vector<LayoutDef>& layout_defs() const noexcept { return layout_defs_; }

 private:
  /// Columns of one tensor, as far as they were made: of so many entries of the tables below.
  struct Columns {
    std::size_t summaries_made = 0, scalars_made = 0, index_made = 0, forms_made = 0;
    std::vector<std::uint64_t> count, min_bits, max_bits, zero_count, nan_count, inf_count;
    std::vector<double> sum, sum_sq, abs_sum;
    std::vector<std::uint32_t> summary_step;
    std::vector<std::uint16_t> merged;
    std::vector<std::uint8_t> dtype, flags;
    std::vector<double> scalar;
    std::vector<std::uint32_t> scalar_step, scalar_flags;
    std::vector<format::IndexRow> index;
    std::vector<std::uint32_t> index_step;
    std::vector<format::FormRow> forms;
    std::vector<std::uint32_t> form_step;
  };
  void AddRows(const format::FrameView& frame, std::uint32_t step, const std::shared_ptr<const void>& owner);
  void AddDefs(const format::FrameView& frame);
  void AddFrame(const format::FrameView& frame);
  void AddStep(std::uint64_t ordinal, const format::StepMark& mark);

  std::vector<std::uint64_t> ordinal_;
  std::vector<std::int64_t> global_step_, mode_step_, update_, wall_, duration_;
  std::vector<std::uint32_t> step_forms_, epoch_;
  std::vector<std::uint8_t> mode_;
  format::StepColumns view_;
  TailSlots slots_;
  TailRows<format::SummaryRow> summaries_;
  TailRows<format::ScalarRow> scalars_;
  TailRows<format::IndexRow> index_;
  TailRows<format::FormRow> forms_;
  mutable std::unordered_map<std::size_t, Columns> columns_;  // by slot
  std::vector<format::FrameEntry> frames_;
  std::uint32_t kinds_ = 0;
  std::int64_t heartbeat_ = 0;
  std::vector<TensorDef> tensor_defs_;
  std::vector<LayoutDef> layout_defs_;
  std::uint64_t defs_until_ = 0;  // definitions in frames before this offset have been read
};

/// Checks that a file belongs to this worker of this run. Errors: kCorruption, without the path.
[[nodiscard]] Status CheckOwner(const format::FileHeader& header, const RunInfo& run, std::uint32_t worker);
[[nodiscard]] TensorDef OwnedTensorDef(const format::TensorDefView& view);
[[nodiscard]] LayoutDef OwnedLayoutDef(const format::LayoutDefView& view);

}  // namespace luff::store
