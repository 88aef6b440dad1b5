#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "luff/base/result.h"
#include "luff/format/frames.h"
#include "luff/format/layout.h"

/// Footer of a sealed metadata segment: all rows sorted by tensor and step, as columns. Readers use its parts
/// in place, without decoding.
///
///     FrameHeader (kFooter, kFlagHeadChecksumOnly) · FooterHead · sections · FileTail
///
/// Sections, each 8-byte aligned and with its own checksum:
///   steps     columns over the steps of the segment, in the order of publication
///   tensors   TensorEntry[n], ascending by tensor: where its rows are, and their checksums
///   blocks    per tensor: SummaryBlock, ScalarBlock, index rows, form rows, each sorted by step
///   defs      a kTensorDefs body: **all tensors defined in this epoch so far**
///   layouts   a kLayoutDefs body: likewise
///   frames    FrameEntry[n], ascending by offset: frames that are not columns (histograms, units,
///             events, JSON, gaps, acks, documents, relocations, retirements, end mark)
/// Tensor and layout ids are scoped by epoch (FileHeader.epoch).
namespace luff::format {

struct FooterSection {
  std::uint64_t offset;  // from the beginning of the frame's body
  std::uint64_t bytes;
  std::uint64_t checksum;
};
static_assert(sizeof(FooterSection) == 24);

struct FooterHead {
  std::uint32_t head_bytes;
  std::uint32_t kinds;            // bit k: the frame directory holds frames of kind k
  std::uint64_t first_ordinal;    // of the first step; next_ordinal when there is none
  std::uint64_t next_ordinal;     // one beyond the last step
  std::int64_t last_train_steps;  // TRAIN steps of this worker up to the end of the segment, all epochs
  std::uint32_t step_count, tensor_count, def_count, layout_count, frame_count, reserved;
  FooterSection steps, tensors, defs, layouts, frames;
  std::uint64_t checksum;  // XXH3-64 of all bytes before it
};
static_assert(sizeof(FooterHead) == 184);

struct TensorEntry {
  std::uint32_t tensor;
  std::uint32_t forms;  // Form bits that occur in form rows
  std::uint32_t summary_rows, scalar_rows, index_rows, form_rows;
  std::uint64_t summary_offset, scalar_offset, index_offset,
      form_offset;  // from the body's beginning, 8-aligned
  std::uint64_t summary_checksum, scalar_checksum, index_checksum, form_checksum;
};
static_assert(sizeof(TensorEntry) == 88);

struct FrameEntry {
  std::uint16_t kind;
  std::uint16_t reserved;
  std::uint32_t frame_bytes;  // header and padding included
  std::uint64_t ordinal;      // kLooseOrdinal: of no step
  std::uint64_t offset;       // of the FrameHeader in the file
};
static_assert(sizeof(FrameEntry) == 24);

/// Columns over the steps of one segment. `step index` in the blocks below counts these.
struct StepColumns {
  std::span<const std::uint64_t> ordinal;
  std::span<const std::int64_t> global_step, mode_step, update, wall_unix_ns, duration_ns;
  std::span<const std::uint32_t> forms, epoch;
  std::span<const std::uint8_t> mode;
  [[nodiscard]] std::size_t size() const noexcept { return ordinal.size(); }
  [[nodiscard]] StepMark mark(std::size_t i) const noexcept;
};

/// Summaries of one tensor in one segment, ascending by step.
struct SummaryBlock {
  std::span<const std::uint64_t> count;
  std::span<const double> sum, sum_sq, abs_sum;
  std::span<const std::uint64_t> min_bits, max_bits, zero_count, nan_count, inf_count;
  std::span<const std::uint32_t> step;   // index into StepColumns
  std::span<const std::uint16_t> steps;  // merged steps, 1 otherwise
  std::span<const std::uint8_t> dtype, flags;
  [[nodiscard]] std::size_t size() const noexcept { return count.size(); }
  [[nodiscard]] SummaryRow row(std::size_t i, std::uint32_t tensor) const noexcept;
};
struct ScalarBlock {
  std::span<const double> value;
  std::span<const std::uint32_t> step, flags;
  [[nodiscard]] std::size_t size() const noexcept { return value.size(); }
};
struct IndexBlock {  // ascending by step, then part
  std::span<const IndexRow> rows;
  std::span<const std::uint32_t> step;
};
struct FormBlock {  // ascending by step, then form
  std::span<const FormRow> rows;
  std::span<const std::uint32_t> step;
};

/// A footer without its tensors and their rows: head and steps. Callers read the rest one section at a time.
/// **Immutable.** Lifetime: that of the bytes that `read` returned.
class FooterDirectory {
 public:
  /// Reads `bytes` bytes of the segment from `offset` on, 8-byte aligned.
  using Read = std::function<Result<std::span<const std::byte>>(std::uint64_t offset, std::uint64_t bytes)>;
  /// Verifies tail, head and steps of a segment of `file_bytes` bytes. Asks `read` only for bytes within the
  /// segment, and never for more than a frame may have. Errors: kNotFound (no tail: the segment is not
  /// sealed), kCorruption, and those of `read`.
  [[nodiscard]] static Result<FooterDirectory> ReadUntrusted(std::uint64_t file_bytes, std::uint64_t sequence,
                                                             const Read& read);
  /// Returns where the rows of each tensor lie, ascending by tensor: 88 bytes for each. Lifetime: that of the
  /// bytes that `read` returned. Errors: kCorruption, and those of `read`.
  [[nodiscard]] Result<std::span<const TensorEntry>> ReadTensorsUntrusted(const Read& read) const;

  [[nodiscard]] const FooterHead& head() const noexcept { return head_; }
  /// Offset of the footer's frame in the file; rows lie before it.
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  [[nodiscard]] const StepColumns& steps() const noexcept { return steps_; }
  /// From now on steps() is empty; the rest of the footer needs no bytes of it.
  void ForgetSteps() noexcept { steps_ = {}; }

  /// Sections of one tensor; those of definitions and frames are in head().
  [[nodiscard]] static FooterSection SummarySection(const TensorEntry& entry) noexcept;
  [[nodiscard]] static FooterSection ScalarSection(const TensorEntry& entry) noexcept;
  [[nodiscard]] static FooterSection IndexSection(const TensorEntry& entry) noexcept;
  [[nodiscard]] static FooterSection FormSection(const TensorEntry& entry) noexcept;
  /// Returns the offset of a section in the file. kCorruption if it does not lie in the footer.
  [[nodiscard]] Result<std::uint64_t> PlaceOf(const FooterSection& section) const;

  /// Return the rows of one tensor, from the bytes of their section. `verify` checks the checksum, which is
  /// needed only once.
  [[nodiscard]] Result<SummaryBlock> SummariesUntrusted(const TensorEntry& entry,
                                                        std::span<const std::byte> section,
                                                        bool verify) const;
  [[nodiscard]] Result<ScalarBlock> ScalarsUntrusted(const TensorEntry& entry,
                                                     std::span<const std::byte> section, bool verify) const;
  [[nodiscard]] Result<IndexBlock> IndexUntrusted(const TensorEntry& entry,
                                                  std::span<const std::byte> section, bool verify) const;
  [[nodiscard]] Result<FormBlock> FormsUntrusted(const TensorEntry& entry, std::span<const std::byte> section,
                                                 bool verify) const;
  [[nodiscard]] Result<std::vector<TensorDefView>> TensorDefsUntrusted(
      std::span<const std::byte> section) const;
  [[nodiscard]] Result<std::vector<LayoutDefView>> LayoutDefsUntrusted(
      std::span<const std::byte> section) const;
  [[nodiscard]] Result<std::span<const FrameEntry>> FramesUntrusted(std::span<const std::byte> section,
                                                                    bool verify) const;

 private:
  [[nodiscard]] Status ReadStepsUntrusted(const Read& read);
  [[nodiscard]] Result<std::span<const std::byte>> ReadSection(const FooterSection& section,
                                                               const Read& read) const;

  std::uint64_t offset_ = 0, body_bytes_ = 0;
  FooterHead head_{};
  StepColumns steps_;
};

/// A whole segment in memory, with its footer. **Immutable.** Lifetime: that of the bytes, which must be
/// 8-byte aligned.
class FooterView {
 public:
  /// Errors: as FooterDirectory::ReadUntrusted.
  [[nodiscard]] static Result<FooterView> ParseUntrusted(std::span<const std::byte> file,
                                                         std::uint64_t sequence);
  [[nodiscard]] const FooterHead& head() const noexcept { return directory_.head(); }
  [[nodiscard]] const StepColumns& steps() const noexcept { return directory_.steps(); }
  [[nodiscard]] std::span<const TensorEntry> tensors() const noexcept { return tensors_; }
  [[nodiscard]] Result<SummaryBlock> SummariesUntrusted(const TensorEntry& entry, bool verify) const;
  [[nodiscard]] Result<ScalarBlock> ScalarsUntrusted(const TensorEntry& entry, bool verify) const;
  [[nodiscard]] Result<IndexBlock> IndexUntrusted(const TensorEntry& entry, bool verify) const;
  [[nodiscard]] Result<FormBlock> FormsUntrusted(const TensorEntry& entry, bool verify) const;
  [[nodiscard]] Result<std::vector<TensorDefView>> TensorDefsUntrusted() const;
  [[nodiscard]] Result<std::vector<LayoutDefView>> LayoutDefsUntrusted() const;
  [[nodiscard]] Result<std::span<const FrameEntry>> FramesUntrusted() const;

 private:
  FooterView(std::span<const std::byte> file, FooterDirectory directory, std::span<const TensorEntry> tensors)
      : file_(file),
        directory_(std::move(directory)),
        tensors_(tensors) {}
  [[nodiscard]] Result<std::span<const std::byte>> BytesOf(const FooterSection& section) const;

  std::span<const std::byte> file_;
  FooterDirectory directory_;
  std::span<const TensorEntry> tensors_;
};

/// Collects the rows of one segment as they are written and builds its footer. **Owned by the writer
/// thread.** Uses about as much memory as the segment. Clear() keeps that memory for the next segment;
/// definitions stay until ClearDefs().
class FooterBuilder {
 public:
  FooterBuilder();
  ~FooterBuilder();
  FooterBuilder(FooterBuilder&&) noexcept;
  FooterBuilder& operator=(FooterBuilder&&) noexcept;

  /// The largest id; the writer drops and counts rows beyond it.
  static constexpr std::uint32_t kMaxTensorId = (1U << 24) - 1;

  void AddTensorDef(const TensorDefView& def);
  void AddLayoutDef(const LayoutDefView& def);
  /// Add the rows of one step, then its mark. DropOpenStep() drops rows without a mark.
  void AddSummaries(std::span<const SummaryRow> rows);
  void AddScalars(std::span<const ScalarRow> rows);
  void AddIndex(std::span<const IndexRow> rows);
  void AddForms(std::span<const FormRow> rows);
  void AddStep(std::uint64_t ordinal, const StepMark& mark);
  void DropOpenStep();
  void AddFrame(FrameKind kind, std::uint64_t ordinal, std::uint64_t offset, std::uint64_t frame_bytes);

  [[nodiscard]] std::size_t step_count() const noexcept;
  /// True when nothing but definitions was added since Clear().
  [[nodiscard]] bool empty() const noexcept;
  /// Appends footer frame and tail to `to`, at its next_offset(). Errors: kResourceExhausted if the footer
  /// would be larger than a frame may be.
  [[nodiscard]] Status Build(std::uint64_t next_ordinal, std::int64_t train_steps, FrameBuffer* to) const;
  /// Appends all definitions of the epoch as loose frames.
  void PutDefinitions(FrameBuffer* to) const;
  void Clear();
  void ClearDefs();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace luff::format
