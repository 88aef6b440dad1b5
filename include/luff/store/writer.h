#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"
#include "luff/format/layout.h"
#include "luff/format/samples.h"
#include "luff/tensor/summary.h"

namespace luff {
class Env;
}

/// Writes one worker's folder of a run directory.
namespace luff::store {

struct RunInfo {
  std::array<std::uint8_t, 16> run_id{};
  std::int64_t created_unix_ns = 0;
  std::uint32_t world_size = 1;
  std::string command;  // JSON text of the argument vector, "" if unknown
};

/// Creates `path` (mode 0700, with its parents), run.json, control/ and rules/. With `join` it opens a run
/// that another worker has just created, with `resume` any run. Errors: kAlreadyExists if `path` holds a run
/// and neither is set; kFailedPrecondition for a non-empty directory that is not a run; kUnsupportedVersion;
/// kIo.
[[nodiscard]] Result<RunInfo> CreateRun(const std::string& path, const RunInfo& wanted, bool join,
                                        bool resume);

/// Which raw payload is kept. Each retention counts its own steps: those in which at least one of its rows
/// was written.
struct Retention {
  enum class Kind : std::uint8_t {
    kAll,   // everything, until max_bytes
    kLast,  // the last `last_steps` steps
    kThin,  // the last `last_steps` steps, every 10th of ten times as many, every 100th for ever; 0: thinned
            // only when max_bytes requires it
  } kind = Kind::kAll;
  std::int64_t last_steps = 0;
  friend bool operator==(const Retention&, const Retention&) = default;
};

struct WriterOptions {
  std::string run_path;
  std::uint32_t worker = 0;
  bool host = false;            // the folder of host `worker`, which holds samples and no steps
  bool fresh = false;           // fails with kAlreadyExists if the folder already has files of a worker
  std::uint64_t max_bytes = 0;  // payload and metadata of this worker; 0: no limit
  std::uint64_t summary_max_bytes = 0;  // share of metadata; 0: a quarter of max_bytes, or no limit
  std::uint64_t segment_bytes_payload = 64ULL << 20;
  std::uint64_t segment_bytes_meta = 8ULL << 20;
  enum class Direct : std::uint8_t { kAuto, kOn, kOff } direct_io = Direct::kAuto;
  enum class Sync : std::uint8_t { kNone, kInterval, kStep } sync = Sync::kNone;
  bool live_page = true;
  Env* env = nullptr;  // files and clocks; null: the real ones
};

/// Where a chunk was written.
struct Place {
  std::uint32_t data_file = 0;
  std::uint64_t offset = 0;
};

/// A chunk in memory: header (checksum and content_hash already filled in) and stored bytes, laid out
/// contiguously, padded to 64 bytes.
struct ChunkRef {
  const std::byte* data = nullptr;  // at the ChunkHeader
  std::uint64_t bytes = 0;          // header, stored bytes and padding
};

struct TensorDef {
  std::uint32_t id = 0;
  format::Role role = format::Role::kOther;
  std::string name;
  std::string module_path;  // "" if none
  std::string module_type;  // e.g. "ReLU"
  std::vector<std::uint32_t> collections;
};
struct LayoutDef {
  std::uint32_t id = 0;
  Layout layout;  // strides are not stored: values are row-major
  /// Shards: shape and offset in the whole tensor; empty otherwise.
  std::vector<std::int64_t> global_shape, global_offset;
};

/// Where the time of a step went. head.rows is the number of rows in use; 0: nothing is known.
struct StepPhases {
  format::PhasesHead head{};
  static constexpr std::size_t kWaits = 16;  // of a step that are told apart
  std::array<format::PhaseRow, format::kPhaseCount + kWaits> rows{};
};

/// How long calls of modules took in a step; without rows: they were not timed.
struct StepModules {
  format::ModuleTimesHead head{};  // head.rows is filled in by the writer
  std::vector<format::ModuleTimeRow> rows;
};

/// The contents of one step, in the order they are written. Reused between steps: clear() keeps the capacity.
struct StepBatch {
  std::vector<TensorDef> tensors;  // defined since the last step
  std::vector<LayoutDef> layouts;
  std::vector<std::pair<std::string, std::string>> documents;  // name, JSON
  std::vector<format::SummaryRow> summaries;
  std::vector<format::IndexRow> index;  // data_file/offset already resolved by AppendChunks
  /// Retention of each index row. If empty, each row has the retention of the file that holds its chunk. A
  /// row that is kept longer than that file gets a copy of the chunk.
  std::vector<Retention> index_retention;
  std::vector<std::pair<std::uint32_t, SparseHistogram>> histograms;
  std::vector<std::pair<std::uint32_t, UnitCounts>> units;
  std::vector<format::FormRow> forms;
  std::vector<format::ScalarRow> scalars;
  std::vector<format::EventRow> events;
  std::vector<std::string> event_json;
  std::vector<format::GapRow> gaps;
  std::vector<format::AckRow> acks;
  // Of a host's folder, loose only; samples that find no room in memory are a gap of no step.
  std::vector<format::SeriesDef> series;
  std::vector<format::SampleBlock> samples;
  StepPhases phases;
  StepModules modules;
  format::StepMark mark{};  // frames, forms and epoch are filled in by the writer
  void clear();
};

/// **Owned by one writer thread** (all calls), except health counters.
///
/// Order on disk: payload, then metadata, then the live page. After a file-system error the writer continues
/// in degraded form: AppendChunks fails, rows are kept as long as possible, and gaps record what is missing.
/// A later call may succeed.
class WorkerWriter {
 public:
  /// Errors: kIo, kAlreadyExists (another live writer owns the folder). A folder with earlier segments
  /// (resume) continues with new sequence numbers and the next epoch. The writer holds on to the directory
  /// itself, not to its path, so the directory may be moved.
  [[nodiscard]] static Result<std::unique_ptr<WorkerWriter>> Open(const WriterOptions& options,
                                                                  const RunInfo& run);
  virtual ~WorkerWriter() = default;

  /// Writes chunks of one step to the payload stream of a retention class, whole pages by O_DIRECT where
  /// possible. Adjacent ChunkRefs are written with one call, so their memory is best contiguous and 4
  /// KiB-aligned. Fills `places` (same order).
  [[nodiscard]] virtual Status AppendChunks(std::span<const ChunkRef> chunks, Retention retention,
                                            std::int64_t global_step, std::vector<Place>* places) = 0;
  /// Writes the rows and the step mark, publishes them, seals segments, applies retention and budgets.
  /// Whatever it returns, the writer owns the contents of the batch: they are written, wait in memory (8 MiB
  /// at most), or have become a gap.
  [[nodiscard]] virtual Status PublishStep(StepBatch& batch) = 0;
  /// Writes rows that belong to no step (documents, acks, gaps, definitions) and publishes them at once.
  [[nodiscard]] virtual Status PublishLoose(StepBatch& batch) = 0;
  /// Updates the live page's heartbeat, and writes a heartbeat frame at most every 5 s.
  virtual void Heartbeat() = 0;
  /// Writes the end mark and seals every segment. Idempotent.
  [[nodiscard]] virtual Status Close(format::EndReason reason) = 0;

  /// True if the payload budget of `max_bytes` is used up and retention cannot free more.
  [[nodiscard]] virtual bool payload_budget_exhausted() const noexcept = 0;
  /// True if the chunk is still readable (not retired). Call it before a row refers to an older chunk.
  [[nodiscard]] virtual bool ChunkIsKept(Place place) const noexcept = 0;
  /// Where the chunk is now, after relocations.
  [[nodiscard]] virtual Place Resolve(Place place) const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t epoch() const noexcept = 0;
  /// The number of the next published step. ChunkHeader.ordinal repeats it as a hint for walking payload
  /// without metadata.
  [[nodiscard]] virtual std::uint64_t next_ordinal() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t bytes_written() const noexcept = 0;
  /// Why recording ended early although training continues: the run directory was removed, or its files were
  /// taken away repeatedly. Nothing more is written then. OK while recording continues.
  [[nodiscard]] virtual Status gone() const { return Status::Ok(); }
};

}  // namespace luff::store
