#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "luff/base/result.h"
#include "luff/format/layout.h"
#include "luff/tensor/summary.h"
#include "luff/tensor/view.h"

/// Frames of the metadata stream: encoding into memory, and parsing of bytes that may be hostile.
namespace luff::format {

/// FrameHeader.ordinal of frames that belong to no step (definitions, documents, acks, gaps, relocations of a
/// loose publication). They are valid on their own, without a StepMark.
inline constexpr std::uint64_t kLooseOrdinal = 0xFFFFFFFFFFFFFFFFULL;
/// FrameHeader.flags of a footer: the checksum covers the FooterHead only, sections have their own.
inline constexpr std::uint16_t kFlagHeadChecksumOnly = 1;
/// IndexRow.flags.
inline constexpr std::uint16_t kIndexAlias = 1;      // another tensor of the same step stored the chunk
inline constexpr std::uint16_t kIndexUnchanged = 2;  // the chunk was stored for an earlier step
inline constexpr std::uint16_t kIndexLossy = 4;
/// SummaryRow.flags.
inline constexpr std::uint8_t kSummaryMerged = 1;

/// XXH3-64 with seed 0: content hash and section checksum of this format.
[[nodiscard]] std::uint64_t HashBytes(std::span<const std::byte> bytes, std::uint64_t seed = 0) noexcept;

/// Fills in magic, version, size and checksum.
void SealFileHeader(FileHeader* header, std::uint64_t magic) noexcept;
/// Errors: kCorruption (too short, wrong magic, checksum), kUnsupportedVersion (names both versions).
[[nodiscard]] Result<FileHeader> ParseFileHeaderUntrusted(std::span<const std::byte> file,
                                                          std::uint64_t magic);

/// Encodes frames that will lie at `base_offset` of metadata file `sequence`. **Thread-compatible.** Reset()
/// keeps the memory, so the steady state allocates nothing.
class FrameBuffer {
 public:
  void Reset(std::uint64_t sequence, std::uint64_t base_offset);
  /// One frame: Begin, any number of Put, End. End fills in size, padding and checksum.
  void Begin(FrameKind kind, std::uint64_t ordinal, std::uint16_t flags = 0);
  void Put(const void* data, std::size_t bytes);
  template <typename T>
  void PutValue(const T& value) {
    Put(&value, sizeof(value));
  }
  template <typename T>
  void PutRows(std::span<const T> rows) {
    Put(rows.data(), rows.size_bytes());
  }
  void PutVarint(std::uint64_t value);
  void PutZeros(std::size_t bytes);
  /// Replaces bytes that were already put, at their offset in the file.
  void Overwrite(std::uint64_t offset, const void* data, std::size_t bytes);
  /// `checksum_bytes`: how much of the body the checksum covers (for footers); all by default.
  void End(std::size_t checksum_bytes = ~std::size_t{0});

  [[nodiscard]] std::uint64_t next_offset() const noexcept { return base_offset_ + bytes_.size(); }
  [[nodiscard]] std::uint64_t base_offset() const noexcept { return base_offset_; }
  [[nodiscard]] std::uint64_t sequence() const noexcept { return sequence_; }
  [[nodiscard]] std::size_t body_bytes() const noexcept {
    return bytes_.size() - begin_ - sizeof(FrameHeader);
  }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool empty() const noexcept { return bytes_.empty(); }

 private:
  std::vector<std::byte> bytes_;
  std::uint64_t sequence_ = 0;
  std::uint64_t base_offset_ = 0;
  std::size_t begin_ = 0;  // of the open frame
};

/// A frame in borrowed bytes. Lifetime: that of the bytes.
struct FrameView {
  FrameKind kind{};
  std::uint16_t flags = 0;
  std::uint64_t ordinal = 0;
  std::uint64_t offset = 0;       // of the header in the file
  std::uint64_t next_offset = 0;  // of the frame after it
  std::span<const std::byte> body;
};

enum class FrameOutcome : std::uint8_t {
  kFrame,       // *out is filled in
  kIncomplete,  // the bytes end before the frame does: a torn tail, or not yet written
  kBad,         // wrong magic, size or checksum. Scanning stops here
};

/// Parses the frame at `offset`. `file` holds the readable part of the file, from its beginning. A frame of
/// unknown kind is a kFrame too; callers skip it. Does not verify a footer's sections.
[[nodiscard]] FrameOutcome ParseFrameUntrusted(std::span<const std::byte> file, std::uint64_t offset,
                                               std::uint64_t sequence, FrameView* out) noexcept;

/// The same for bytes that begin at `window_offset` of the file (a tail read by pread).
[[nodiscard]] FrameOutcome ParseFrameInWindowUntrusted(std::span<const std::byte> window,
                                                       std::uint64_t window_offset, std::uint64_t offset,
                                                       std::uint64_t sequence, FrameView* out) noexcept;

/// The same for a footer, whose checksum covers only its head; `begin` holds its first bytes, and `body`
/// becomes the part of the body among them. kBad for any other frame.
[[nodiscard]] FrameOutcome ParseFrameHeadUntrusted(std::span<const std::byte> begin, std::uint64_t offset,
                                                   std::uint64_t sequence, FrameView* out) noexcept;

// ---- Typed bodies ----
// All return kCorruption if sizes do not fit or an enumerator is unknown. Spans point into `body`, which must
// be 8-byte aligned, like FrameBuffers and the memory that files are read into; else kInvalidArgument.

[[nodiscard]] Result<std::span<const SummaryRow>> ParseSummaryRowsUntrusted(std::span<const std::byte> body);
[[nodiscard]] Result<std::span<const IndexRow>> ParseIndexRowsUntrusted(std::span<const std::byte> body);
[[nodiscard]] Result<std::span<const FormRow>> ParseFormRowsUntrusted(std::span<const std::byte> body);
[[nodiscard]] Result<std::span<const ScalarRow>> ParseScalarRowsUntrusted(std::span<const std::byte> body);
[[nodiscard]] Result<std::span<const EventRow>> ParseEventRowsUntrusted(std::span<const std::byte> body);
[[nodiscard]] Result<std::span<const GapRow>> ParseGapRowsUntrusted(std::span<const std::byte> body);
[[nodiscard]] Result<std::span<const AckRow>> ParseAckRowsUntrusted(std::span<const std::byte> body);
[[nodiscard]] Result<std::span<const RelocateRow>> ParseRelocateRowsUntrusted(
    std::span<const std::byte> body);
[[nodiscard]] Result<std::span<const RetireRow>> ParseRetireRowsUntrusted(std::span<const std::byte> body);
/// Where the time of a step, or of merged steps, went. The rows' durations add up to head.wall_ns.
struct PhasesView {
  PhasesHead head{};
  std::span<const PhaseRow> rows;
};
/// Further errors: kCorruption if a duration is negative, or the rows do not add up.
[[nodiscard]] Result<PhasesView> ParsePhasesUntrusted(std::span<const std::byte> body);
/// How long calls of modules took, in a step or in merged steps.
struct ModuleTimesView {
  ModuleTimesHead head{};
  std::span<const ModuleTimeRow> rows;
};
/// Further errors: kCorruption if a time is impossible or beyond kMaxPhaseNs.
[[nodiscard]] Result<ModuleTimesView> ParseModuleTimesUntrusted(std::span<const std::byte> body);
[[nodiscard]] Result<StepMark> ParseStepMarkUntrusted(std::span<const std::byte> body);
[[nodiscard]] Result<EndMark> ParseEndMarkUntrusted(std::span<const std::byte> body);
[[nodiscard]] Result<std::int64_t> ParseHeartbeatUntrusted(std::span<const std::byte> body);

/// Definition of a tensor. Texts are borrowed.
struct TensorDefView {
  std::uint32_t id = 0;
  Role role = Role::kOther;
  std::string_view name, module_path, module_type;
  std::span<const std::uint32_t> collections;
};
/// Definition of a layout: dtype and shape; for a shard also the global shape and the offset in it.
struct LayoutDefView {
  std::uint32_t id = 0;
  Layout layout;                                              // contiguous
  std::span<const std::int64_t> global_shape, global_offset;  // both of rank entries, or both empty
};
struct DocumentView {
  std::string_view name, json;
};
struct HistogramView {
  std::uint32_t tensor = 0;
  std::uint32_t bin_count = 0;
  std::span<const std::byte> varints;  // for DecodeHistogramUntrusted
};
struct UnitsView {
  std::uint32_t tensor = 0;
  UnitAxis axis = UnitAxis::kChannel;
  std::uint32_t unit_count = 0;
  std::uint64_t values_per_unit = 0;
  std::span<const std::byte> bytes;  // for DecodeUnitsUntrusted
};

/// Longest text of a definition; the writer truncates longer names.
inline constexpr std::size_t kMaxNameBytes = 4096;

void PutTensorDef(const TensorDefView& def, FrameBuffer* to);
void PutLayoutDef(const LayoutDefView& def, FrameBuffer* to);
void PutDocument(std::string_view name, std::string_view json, FrameBuffer* to);
void PutHistogram(std::uint32_t tensor, std::span<const HistogramBin> bins, FrameBuffer* to);
void PutUnits(std::uint32_t tensor, const UnitCounts& units, FrameBuffer* to);

[[nodiscard]] Result<std::vector<TensorDefView>> ParseTensorDefsUntrusted(std::span<const std::byte> body);
[[nodiscard]] Result<std::vector<LayoutDefView>> ParseLayoutDefsUntrusted(std::span<const std::byte> body);
[[nodiscard]] Result<DocumentView> ParseDocumentUntrusted(std::span<const std::byte> body);
[[nodiscard]] Result<std::vector<HistogramView>> ParseHistogramsUntrusted(std::span<const std::byte> body);
[[nodiscard]] Result<std::vector<UnitsView>> ParseUnitsUntrusted(std::span<const std::byte> body);
[[nodiscard]] Status DecodeHistogramUntrusted(const HistogramView& view, SparseHistogram* out);
[[nodiscard]] Status DecodeUnitsUntrusted(const UnitsView& view, UnitCounts* out);

}  // namespace luff::format
