#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "luff/base/env.h"
#include "luff/base/result.h"
#include "luff/format/chunk.h"
#include "luff/format/footer.h"
#include "luff/format/frames.h"
#include "luff/format/layout.h"
#include "luff/store/writer.h"

/// Reads one run directory as it is on disk, worker by worker. query::Trial builds on it: steps of the whole
/// run, names across workers, waiting.
///
/// All classes are **thread-compatible**. Every byte of the run may be hostile, and files may be truncated
/// while they are read. Therefore nothing is memory-mapped: reading missing bytes fails with kCorruption,
/// naming file and offset, and the rest stays readable. Memory is bounded by what is published and not yet
/// sealed (up to twice the size of one segment for each worker, or its newest step), of which up to 8 MiB
/// stay for the next segment, plus 60 bytes for each step, 16 KiB for each segment, 4 bytes for each tensor
/// of a segment whose tensors differ from those of the previous segment, and ReadCache::kMaxBytes of recently
/// read bytes.
namespace luff::store {

class LivePageReader;
class LastRows;
class TailColumns;

class ReadCache;
class ReaderFile;
class SegmentHoles;

/// Rows and the memory that holds them. If `memory` is null they live until the next Poll().
template <typename Rows>
struct Held : Rows {
  std::shared_ptr<const void> memory;
};

/// Whether the caller is likely to ask for the same rows again soon.
enum class Again : bool { kNo, kYes };

/// Reads run.json. Errors: kNotFound (no such directory), kFailedPrecondition (no run.json in it),
/// kUnsupportedVersion, kCorruption.
[[nodiscard]] Result<RunInfo> ReadRunInfo(const std::string& run_path);
/// The id in run.json as it is written there, of any version of the format; "" if there is none in it.
/// Errors: those of reading.
[[nodiscard]] Result<std::string> ReadRunId(const std::string& run_path);

/// One metadata segment. If it is sealed, its footer is read and verified piece by piece, on demand. If it is
/// not (or its footer is damaged), its rows are kept in memory as they were published, and put into the same
/// columns for whom asks for them.
class SegmentReader {
 public:
  /// Rows of one kind in one step, in the order of publication.
  template <typename Row>
  struct RowsOfStep {
    std::span<const Row> rows;
    std::span<const std::uint32_t> slot;      // of each row
    std::span<const std::uint32_t> counting;  // the last row of each slot, ascending
  };
  struct PublishedRows {
    RowsOfStep<format::SummaryRow> summaries;
    RowsOfStep<format::ScalarRow> scalars;
    RowsOfStep<format::FormRow> forms;
  };
  /// `cache` is shared by the segments of a run; if it is null, the segment makes its own. `holes`: in a copy
  /// of a run in a bucket, whom to ask for what is read; rows then also have the errors of Mirror::NeedRows.
  /// Errors: kNotFound, kIo, kCorruption (file header), kUnsupportedVersion.
  [[nodiscard]] static Result<std::unique_ptr<SegmentReader>> Open(
      std::string path, std::uint64_t sequence, std::uint32_t generation,
      std::shared_ptr<ReadCache> cache = nullptr, std::shared_ptr<SegmentHoles> holes = nullptr);
  ~SegmentReader();

  /// Reads frames published since the last call, up to `limit` bytes of the file. Returns true if there were
  /// any. The segment becomes sealed when its footer is found. A torn tail counts as not yet written.
  /// `reopen` asks a network file system for its newest state.
  [[nodiscard]] Result<bool> Poll(std::uint64_t limit = ~std::uint64_t{0}, bool reopen = false);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t sequence() const noexcept { return header_.sequence; }
  [[nodiscard]] std::uint32_t generation() const noexcept { return generation_; }
  [[nodiscard]] const format::FileHeader& header() const noexcept { return header_; }
  [[nodiscard]] bool sealed() const noexcept { return footer_.has_value(); }
  /// Why an existing footer is not used; OK otherwise.
  [[nodiscard]] const Status& damage() const noexcept { return damage_; }
  /// For an unsealed segment: frames before this offset have been read.
  [[nodiscard]] std::uint64_t position() const noexcept { return position_; }

  [[nodiscard]] const format::StepColumns& steps() const noexcept;
  /// Index in steps() of the step with this ordinal.
  [[nodiscard]] std::optional<std::uint32_t> FindOrdinal(std::uint64_t ordinal) const noexcept;

  /// Slots number the tensors that have rows in this segment.
  [[nodiscard]] std::size_t slot_count() const noexcept;
  [[nodiscard]] std::uint32_t slot_tensor(std::size_t slot) const noexcept;
  [[nodiscard]] std::optional<std::size_t> FindSlot(std::uint32_t tensor) const noexcept;
  /// Rows of the step with this index in a segment that is not sealed, or of the last step of one that was
  /// sealed when that step was read: the step that fills a segment is published with its footer. Whoever
  /// wants all tensors of a step reads them here instead of asking for the columns of each. Slots are those
  /// of the segment only while it is not sealed; rows name their tensors. Nothing if the segment is sealed
  /// otherwise. Lifetime: until the next Poll() or ForgetLastRows().
  [[nodiscard]] std::optional<PublishedRows> PublishedAt(std::uint32_t index) const noexcept;
  /// The rows that were kept of the last step: later steps have been read.
  void ForgetLastRows() noexcept;
  /// Gives back what a sealed segment holds in memory for each of its steps. Until Wake(), steps() is empty.
  void Rest() noexcept;
  /// Reads it again, after Rest(). Errors: as Open(), and kNotFound if the segment was removed or merged
  /// meanwhile.
  [[nodiscard]] Status Wake();
  /// Rows of a slot, ascending by step. Errors: kCorruption naming the file, kNotFound (it was removed),
  /// kResourceExhausted.
  [[nodiscard]] Result<Held<format::SummaryBlock>> Summaries(std::size_t slot,
                                                             Again again = Again::kYes) const;
  /// How many rows Summaries() has, without reading them. Errors: as Summaries().
  [[nodiscard]] Result<std::size_t> SummaryRowCount(std::size_t slot) const;
  [[nodiscard]] Result<Held<format::ScalarBlock>> Scalars(std::size_t slot, Again again = Again::kYes) const;
  [[nodiscard]] Result<Held<format::IndexBlock>> Index(std::size_t slot, Again again = Again::kYes) const;
  [[nodiscard]] Result<Held<format::FormBlock>> Forms(std::size_t slot, Again again = Again::kYes) const;

  /// Frames() returns the frames that hold no columns, ascending by offset; frame_kinds() the bits of their
  /// kinds.
  using FrameList = Held<std::span<const format::FrameEntry>>;
  [[nodiscard]] Result<FrameList> Frames(Again again = Again::kYes) const;
  [[nodiscard]] std::uint32_t frame_kinds() const noexcept;
  /// Newest heartbeat of an unsealed segment; 0 if there is none.
  [[nodiscard]] std::int64_t heartbeat_unix_ns() const noexcept;
  /// Frames of one step.
  [[nodiscard]] Result<std::vector<format::FrameEntry>> FramesOf(std::uint64_t ordinal) const;
  /// Reads the body of a frame into `scratch` and verifies it.
  [[nodiscard]] Result<std::span<const std::byte>> ReadFrame(const format::FrameEntry& entry,
                                                             std::vector<std::byte>* scratch) const;
  /// Definitions from number `from` on. A sealed segment has all those of its epoch;
  [[nodiscard]] Result<std::vector<TensorDef>> TensorDefs(std::size_t from = 0) const;
  [[nodiscard]] Result<std::vector<LayoutDef>> LayoutDefs(std::size_t from = 0) const;
  struct DefCounts {
    std::size_t tensors = 0, layouts = 0;
    friend bool operator==(const DefCounts&, const DefCounts&) = default;
  };
  [[nodiscard]] DefCounts def_counts() const noexcept;

 private:
  friend class SegmentSweep;
  enum class Part : std::uint8_t { kSummaries, kScalars, kIndex, kForms, kFrames, kTensors };
  struct Section {
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> owner;
    bool verified = false;  // an earlier read has verified the bytes
  };
  SegmentReader();
  [[nodiscard]] Status TrySeal();
  [[nodiscard]] Status ReadFooterOnce(std::uint64_t file_bytes);
  [[nodiscard]] Status Located(const Status& status) const;
  [[nodiscard]] Result<format::TensorEntry> EntryAt(std::size_t slot) const;
  [[nodiscard]] Status ReadPage(std::size_t first) const;
  [[nodiscard]] Result<Section> ReadSection(const format::FooterSection& section, std::uint64_t key,
                                            Again again) const;
  /// Fills `to` from this offset in the file.
  [[nodiscard]] Status ReadFooter(std::span<std::byte> to, std::uint64_t offset) const;
  template <typename Rows, typename Parse>
  [[nodiscard]] Result<Held<Rows>> Sealed(std::size_t slot, Part part, const format::FooterSection& section,
                                          Again again, Parse parse) const;

  std::string path_;
  std::uint32_t generation_ = 0;
  format::FileHeader header_{};
  std::uint64_t position_ = format::kFileHeaderBytes;
  std::uint64_t taken_bytes_ = 0;  // by the last reading of the tail that found steps
  std::uint64_t step_bytes_ = 0;   // of one of them
  std::unique_ptr<ReaderFile> file_;
  std::shared_ptr<ReadCache> cache_;
  std::uint64_t cache_file_ = 0;
  std::optional<format::FooterDirectory> footer_;          // sealed
  std::vector<std::shared_ptr<const void>> footer_bytes_;  // sealed: what footer_ points into
  std::shared_ptr<const std::vector<std::uint32_t>> ids_;  // sealed: tensors by slot, ascending
  mutable Section page_;  // sealed: directory entries from slot first_in_page_ on
  mutable std::size_t first_in_page_ = ~std::size_t{0};
  mutable std::vector<format::FrameEntry> by_ordinal_;  // sealed: frames sorted by ordinal, on first use
  mutable bool sorted_ = false;
  std::unique_ptr<TailColumns> tail_;     // not sealed
  std::unique_ptr<const LastRows> last_;  // sealed since its last step was read
  Status damage_;
  std::shared_ptr<SegmentHoles> holes_;  // null: the file has none
  bool rests_ = false;
  std::uint64_t sealed_bytes_ = 0;  // length of the file when it was found sealed
};

/// Reads the rows of sealed segments tensor by tensor, in large pieces and past the cache: for those
/// who look at everything, once. **Thread-compatible.**
class SegmentSweep {
 public:
  /// Begins with the rows of another segment, which is sealed and outlives their use.
  void Begin(const SegmentReader& segment) noexcept;
  /// As those of the segment. Rows live until the next call of either; ascending slots are read fastest.
  [[nodiscard]] Result<format::SummaryBlock> Summaries(std::size_t slot);
  [[nodiscard]] Result<format::FormBlock> Forms(std::size_t slot);

 private:
  [[nodiscard]] Result<std::span<const std::byte>> Bytes(const format::FooterSection& section);

  const SegmentReader* segment_ = nullptr;
  std::shared_ptr<std::byte> memory_;
  std::uint64_t room_ = 0;                // of memory_
  std::uint64_t offset_ = 0, bytes_ = 0;  // of what it holds, within the footer
};

/// A definition, and the epoch that scopes its id.
struct EpochTensorDef {
  std::uint32_t epoch = 0;
  TensorDef def;
};

class Mirror;

struct ReaderOptions {
  bool use_live_page = true;
  /// Set where the run is a copy of one in a bucket: payload and rows are asked for before they are read.
  std::shared_ptr<Mirror> mirror;
  /// Segments that are sealed when they are found rest (SegmentReader::Rest), so that memory does not grow
  /// with the number of steps: for who looks at one segment after the other. Whatever asks for steps by their
  /// ordinal finds none of theirs.
  bool rest = false;
};

/// What is known about the writing process.
struct Liveness {
  std::int64_t heartbeat_unix_ns = 0;  // the latest sign of life found
  std::optional<bool> process_exists;  // only on the same host and boot, and not from another container
  std::uint64_t pid = 0;               // of the writer, if it exists and can be seen from here
};

/// One worker's folder.
class WorkerReader {
 public:
  [[nodiscard]] static Result<std::unique_ptr<WorkerReader>> Open(const std::string& folder,
                                                                  std::uint32_t worker, const RunInfo& run,
                                                                  const ReaderOptions& options,
                                                                  std::shared_ptr<ReadCache> cache = nullptr);
  ~WorkerReader();

  /// Reads what was published since the last call. Returns true if it found anything new. With a live page
  /// and nothing new it costs one read of 64 bytes, and more every half second. Damage is not an error here:
  /// see problems(). `thorough` scans the directory even if the live page shows nothing new.
  [[nodiscard]] Result<bool> Refresh(bool thorough = false);

  [[nodiscard]] std::uint32_t worker() const noexcept { return worker_; }
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }
  /// Ascending by sequence.
  [[nodiscard]] std::span<const std::unique_ptr<SegmentReader>> segments() const noexcept {
    return segments_;
  }
  /// Increases when merged segments have replaced others; spans and indices into those are then invalid.
  [[nodiscard]] std::uint64_t rebuilds() const noexcept { return rebuilds_; }
  /// Ordinal that the next published step will have.
  [[nodiscard]] std::uint64_t next_ordinal() const noexcept { return next_ordinal_; }
  /// Segment and index of a step.
  struct StepPlace {
    const SegmentReader* segment = nullptr;
    std::uint32_t index = 0;
  };
  [[nodiscard]] std::optional<StepPlace> FindStep(std::uint64_t ordinal) const noexcept;
  /// The first step with this ordinal or a later one.
  [[nodiscard]] std::optional<StepPlace> FirstStepFrom(std::uint64_t ordinal) const noexcept;

  /// Only grows.
  [[nodiscard]] std::span<const EpochTensorDef> definitions() const noexcept { return definitions_; }
  [[nodiscard]] const LayoutDef* FindLayout(std::uint32_t epoch, std::uint32_t id) const;
  /// Latest document of each name.
  [[nodiscard]] const std::map<std::string, std::string>& documents() const noexcept { return documents_; }
  /// The document as it was when a step was published; that of the next step counts too, since what a step
  /// does may be described after it. The first one, for steps before it. Of more than kMaxVersions versions,
  /// or 16 MiB of them, the later ones count as the latest. Null if there is none.
  [[nodiscard]] const std::string* DocumentAt(const std::string& name, std::uint64_t ordinal) const;
  static constexpr std::size_t kMaxVersions = 64;
  struct Gap {
    std::uint32_t epoch = 0;
    format::GapRow row{};
  };
  /// Gaps, summed over equal tensor, collection, reason and forms.
  [[nodiscard]] std::vector<Gap> gaps() const;
  [[nodiscard]] const std::vector<format::AckRow>& acks() const noexcept { return acks_; }
  /// End mark of the newest epoch.
  [[nodiscard]] const std::optional<format::EndMark>& end() const noexcept { return end_; }
  [[nodiscard]] std::uint32_t epoch() const noexcept { return epoch_; }
  [[nodiscard]] Liveness liveness() const;
  [[nodiscard]] bool uses_live_page() const noexcept { return live_ != nullptr; }
  /// Damage found so far: file, offset, what is lost. At most 100 entries.
  [[nodiscard]] const std::vector<std::string>& problems() const noexcept { return problems_; }

  /// Reads a raw value: the rows of one tensor at one step (its parts). Asking for a raw chunk repeatedly
  /// returns the same memory while the chunk is cached.
  struct Payload {
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> owner;
  };
  /// Errors: kCorruption (checksum, sizes, a truncated file; names file and offset), kOutOfRange (deleted by
  /// retention), kNotFound (payload file vanished), kResourceExhausted (no memory to assemble the value);
  /// of a run in a bucket also kUnavailable (not uploaded yet, or the bucket does not answer).
  [[nodiscard]] Result<Payload> ReadPayload(std::span<const format::IndexRow> parts,
                                            std::uint64_t expected_bytes) const;
  /// Same, but reads into the caller's memory, which has exactly the size of the value.
  [[nodiscard]] Status ReadPayloadInto(std::span<const format::IndexRow> parts,
                                       std::span<std::byte> to) const;
  /// Call it before allocating memory for a value of this many bytes. If the value is larger than 64 MiB,
  /// checks that its chunks exist, since a damaged index may claim chunks that do not. Errors: as
  /// ReadPayload.
  [[nodiscard]] Status CheckThere(std::span<const format::IndexRow> parts, std::uint64_t bytes) const;
  /// Checks that the chunk of a row exists and is intact; with `decode`, also checks the decoded contents.
  /// Caches nothing. Errors: as ReadPayload.
  [[nodiscard]] Status CheckChunk(const format::IndexRow& row, bool decode) const;
  /// Of a run in a bucket: has these bytes of a payload file fetched. Errors: as Mirror::Need.
  [[nodiscard]] Status Fetch(std::uint32_t data_file, std::uint64_t from, std::uint64_t bytes) const;
  /// Finds where the chunk of a row is now. kOutOfRange if it was retired; the message of one that is in a
  /// bucket names its URL.
  [[nodiscard]] Result<Place> Locate(const format::IndexRow& row) const;
  [[nodiscard]] bool IsRetired(std::uint32_t data_file) const noexcept {
    return retired_.contains(data_file);
  }
  /// True if the file was retired since its bytes are in a bucket.
  [[nodiscard]] bool IsUploaded(std::uint32_t data_file) const noexcept;
  [[nodiscard]] std::string DataPath(std::uint32_t data_file) const;

 private:
  WorkerReader() = default;
  [[nodiscard]] Result<bool> ScanFolder();
  [[nodiscard]] bool PollTail(std::uint64_t limit);
  [[nodiscard]] bool PollAllOfTail();
  void TakeInSegment(SegmentReader& segment, bool all);
  void ForgetLastRowsBefore(const SegmentReader& segment);
  void TakeFrames(SegmentReader& segment);
  void TakeDefs(SegmentReader& segment);
  void OpenLive();
  /// Reads the live page. Returns false if there is none, or if reading it fails; it is then closed.
  [[nodiscard]] bool ReadLive(std::uint64_t* position, std::uint32_t* changes);
  void Problem(std::string text);
  [[nodiscard]] Status CheckSizes(std::span<const format::IndexRow> parts, std::uint64_t bytes) const;
  /// The URL of the run in the bucket that it was uploaded into, "" if it is not known any more.
  [[nodiscard]] std::string UploadUrl() const;
  /// Locate(), within the limits of the format.
  [[nodiscard]] Result<Place> PlaceOfChunk(const format::IndexRow& row) const;
  [[nodiscard]] Status ReadAt(const Place& place, std::uint64_t from, std::span<std::byte> to) const;
  [[nodiscard]] Result<format::ChunkHeader> ReadHeader(const format::IndexRow& row, const Place& place) const;
  struct Piece {
    format::ChunkView chunk;
    std::shared_ptr<const void> owner;
  };
  [[nodiscard]] Result<Piece> ReadChunk(const format::IndexRow& row, const Place& place, bool lasting) const;
  [[nodiscard]] Status ReadPart(const format::IndexRow& row, std::span<std::byte> to) const;

  std::string folder_;
  std::uint32_t worker_ = 0;
  RunInfo run_;
  ReaderOptions options_;
  std::vector<std::unique_ptr<SegmentReader>> segments_;
  struct FramesTaken {
    std::uint32_t generation = 0;  // of the segment, when it was last read
    std::size_t listed = 0;        // frames of its directory that have been read
    std::size_t loose = 0;         // those among them that TakeFrames() has a use for
  };
  std::map<std::uint64_t, FramesTaken> frames_taken_;  // by sequence
  std::unordered_set<std::uint64_t> unreadable_;       // sequences whose problem is reported
  std::uint64_t rebuilds_ = 0;
  std::uint64_t next_ordinal_ = 0;
  std::vector<EpochTensorDef> definitions_;
  std::unordered_set<std::uint64_t> defined_;                     // epoch << 32 | id
  std::map<std::uint32_t, SegmentReader::DefCounts> known_defs_;  // by epoch
  struct TailDefs {
    std::uint64_t sequence = 0;
    SegmentReader::DefCounts taken;
  };
  TailDefs tail_defs_;  // of the segment that grows
  std::unordered_map<std::uint64_t, LayoutDef> layouts_;
  void TakeDocument(const std::string& name, std::string json, std::uint64_t ordinal);
  struct Version {
    std::uint64_t ordinal = 0;
    std::string json;
  };
  std::map<std::string, std::string> documents_;
  std::map<std::string, std::vector<Version>> versions_;  // of each name, the first ones
  std::uint64_t version_bytes_ = 0, last_ordinal_ = 0;    // of a step whose document was read
  std::map<std::pair<std::uint64_t, std::uint64_t>, Gap> gaps_;
  std::vector<format::AckRow> acks_;
  std::optional<format::EndMark> end_;
  std::uint32_t epoch_ = 0;
  std::int64_t heartbeat_ = 0;
  std::map<std::pair<std::uint32_t, std::uint64_t>, Place> relocated_;
  std::unordered_map<std::uint32_t, std::uint32_t> retired_;  // file, reason
  std::vector<std::string> problems_;
  std::unique_ptr<LivePageReader> live_;
  std::uint64_t live_position_ = 0;
  std::uint32_t live_changes_ = 0;
  std::int64_t folder_mtime_ns_ = -1;
  std::int64_t checked_monotonic_ns_ = 0;
  std::shared_ptr<ReadCache> cache_;
  std::uint64_t cache_file_ = 0;
  mutable std::unordered_map<std::uint32_t, std::unique_ptr<ReaderFile>> data_files_;
  mutable std::vector<std::byte> decoded_;
  mutable std::string upload_url_;  // once somebody asked
};

/// Numbers of the run's host folders, ascending. Their files are those of a worker's folder, so WorkerReader
/// reads them too. Errors: kNotFound, kIo.
[[nodiscard]] Result<std::vector<std::uint32_t>> HostNumbers(const std::string& run_path);
[[nodiscard]] std::string HostFolder(const std::string& run_path, std::uint32_t host);

/// A run and its workers. Refresh() finds new ones.
class RunReader {
 public:
  /// Errors: as ReadRunInfo.
  [[nodiscard]] static Result<std::unique_ptr<RunReader>> Open(const std::string& run_path,
                                                               const ReaderOptions& options = {});
  /// Returns true if it found anything new in any worker. `thorough` scans for new workers, and the folders
  /// of all known ones, even if that was done a moment ago.
  [[nodiscard]] Result<bool> Refresh(bool thorough = false);
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] const RunInfo& info() const noexcept { return info_; }
  /// Null if the run is not a copy of one in a bucket.
  [[nodiscard]] const std::shared_ptr<Mirror>& mirror() const noexcept { return options_.mirror; }
  /// Ascending by worker.
  [[nodiscard]] std::span<const std::unique_ptr<WorkerReader>> workers() const noexcept { return workers_; }

 private:
  RunReader() = default;
  [[nodiscard]] Result<bool> FindWorkers(bool thorough = false);
  std::string path_;
  RunInfo info_;
  ReaderOptions options_;
  std::shared_ptr<ReadCache> cache_;
  std::vector<std::unique_ptr<WorkerReader>> workers_;
  std::int64_t mtime_ns_ = -1;
  std::int64_t checked_monotonic_ns_ = 0;
};

}  // namespace luff::store
