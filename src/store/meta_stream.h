#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "luff/base/env.h"
#include "luff/format/footer.h"
#include "luff/format/frames.h"
#include "luff/store/writer.h"

namespace luff::store {

/// The metadata stream of one worker: encodes batches, appends them, seals segments. **Owned by the writer
/// thread.**
///
/// After an error the open segment is abandoned and never written again, because a reader that follows frames
/// may already have read part of what failed. The next write opens a new segment. If the file itself was
/// removed or truncated, the new segment begins with all definitions and a gap for the steps that were in the
/// old one.
class MetaStream {
 public:
  struct Start {
    std::array<std::uint8_t, 16> run_id{};
    std::uint32_t worker = 0, epoch = 0;
    std::uint64_t next_sequence = 1;
    std::uint64_t next_ordinal = 0;
    std::int64_t train_steps = 0;
    std::uint64_t segment_bytes = 0;
  };
  MetaStream(Env& env, std::string directory, const Start& start);
  ~MetaStream();

  /// Opens a segment if none is open. Errors: as Env.
  [[nodiscard]] Status EnsureSegment();
  /// Writes one step with its mark, or what belongs to no step (definitions, documents, JSON events, gaps,
  /// acknowledgements). On an error none of it counts as written.
  [[nodiscard]] Status WriteStep(const StepBatch& batch);
  [[nodiscard]] Status WriteLoose(const StepBatch& batch);
  [[nodiscard]] Status WriteRetention(std::span<const format::RelocateRow> relocated,
                                      std::span<const format::RetireRow> retired);
  [[nodiscard]] Status WriteHeartbeat(std::int64_t unix_ns);
  [[nodiscard]] Status WriteEnd(const format::EndMark& end);
  /// Writes the footer and closes the segment. After an error the segment can still be read frame by frame.
  [[nodiscard]] Status Seal();
  [[nodiscard]] bool full() const noexcept { return end_ - format::kFileHeaderBytes >= start_.segment_bytes; }
  [[nodiscard]] bool open() const noexcept { return file_ != nullptr; }
  [[nodiscard]] Status Sync();

  [[nodiscard]] std::uint64_t sequence() const noexcept { return sequence_; }  // of the newest segment
  [[nodiscard]] std::uint64_t length() const noexcept { return end_; }
  [[nodiscard]] std::uint64_t next_ordinal() const noexcept { return next_ordinal_; }
  [[nodiscard]] std::int64_t train_steps() const noexcept { return train_steps_; }
  [[nodiscard]] std::int64_t last_global_step() const noexcept { return last_global_step_; }
  [[nodiscard]] std::uint64_t bytes_written() const noexcept { return bytes_written_; }
  [[nodiscard]] std::uint32_t epoch() const noexcept { return start_.epoch; }

  struct SealedSegment {
    std::uint64_t sequence = 0;
    std::uint64_t bytes = 0;
  };
  /// Segments sealed since the last call.
  [[nodiscard]] std::vector<SealedSegment> TakeSealed();

 private:
  struct Encoded {
    format::FrameKind kind;
    std::uint64_t offset, bytes;
  };
  void Frame(format::FrameKind kind, std::uint64_t ordinal, bool listed);
  void EndFrame();
  void EncodeRows(const StepBatch& batch, std::uint64_t ordinal);
  template <typename Row>
  void EncodeTable(format::FrameKind kind, std::uint64_t ordinal, const std::vector<Row>& rows, bool listed);
  /// Writes the buffer.
  Status Append();
  Status WriteFooter();
  /// Abandons the segment; it can still be read frame by frame.
  void AbandonSegment() noexcept;
  /// Adds what was written to the footer. If memory runs out, the segment gets no footer.
  template <typename F>
  void Account(std::uint64_t ordinal, F&& add) noexcept;
  /// Handles an error of the file, not of the disk: notes the steps that were lost with it.
  void GiveUp(const Status& status);
  Status WriteLosses();
  void AccountDefs(const StepBatch& batch);

  Env& env_;
  const std::string directory_;
  const Start start_;
  std::unique_ptr<File> file_;
  std::string path_;
  format::FrameBuffer buffer_;
  std::vector<Encoded> listed_;  // frames of the buffer that go to the footer's frame directory
  std::uint32_t frames_ = 0;     // in the buffer
  format::FrameKind frame_kind_{};
  bool frame_listed_ = false;
  std::uint64_t frame_offset_ = 0;
  format::FooterBuilder footer_;
  bool footer_lost_ = false;  // footer_ lacks something of the open segment
  std::uint64_t sequence_ = 0;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t next_ordinal_ = 0;
  std::int64_t train_steps_ = 0;
  std::int64_t last_global_step_ = -1;
  std::uint64_t bytes_written_ = 0;
  struct StepEnd {
    std::uint64_t end = 0;  // of its frames in the file
    std::int64_t global_step = 0;
  };
  std::vector<StepEnd> steps_here_;  // of the open segment
  format::GapRow lost_{};            // of removed segments, not yet on record
  bool redefine_ = false;
  std::vector<SealedSegment> sealed_;
};

}  // namespace luff::store
