#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

/// Fixed layouts of the run format, version 1. Little-endian. The contract is docs/spec/run-format.md; every
/// struct here is drawn there. Enumerators are permanent: never renumber.
namespace luff::format {

inline constexpr std::uint16_t kFormatMajor = 1;
inline constexpr std::uint16_t kFormatMinor = 2;
inline constexpr std::size_t kFileHeaderBytes = 4096;  // both streams; the struct, then zeros
inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kChunkAlign = 64;
inline constexpr std::size_t kFrameAlign = 8;
inline constexpr std::uint64_t kMetaMagic = 0x4154454D4646554CULL;  // "LUFFMETA"
inline constexpr std::uint64_t kDataMagic = 0x415441444646554CULL;  // "LUFFDATA"
inline constexpr std::uint64_t kLiveMagic = 0x4556494C4646554CULL;  // "LUFFLIVE"
inline constexpr std::uint64_t kTailMagic = 0x4C4941544646554CULL;  // "LUFFTAIL"
inline constexpr std::uint32_t kFrameMagic = 0x4D46554CU;           // "LUFM"
inline constexpr std::uint32_t kChunkMagic = 0x4346554CU;           // "LUFC"
inline constexpr std::uint32_t kMaxFrameBody = 64U << 20;           // larger is hostile
inline constexpr std::uint32_t kNoId = 0xFFFFFFFFU;

enum class Mode : std::uint8_t { kTrain = 1, kEval = 2, kPredict = 3, kGlobal = 4 };

enum class Codec : std::uint8_t { kRaw = 0, kZeroBitmap = 1, kConstant = 2 };

/// The role of a tensor in the model. Selects default collections and the tensors that rules look at.
enum class Role : std::uint8_t {
  kOther = 0,
  kWeight = 1,
  kBias = 2,
  kGradient = 3,
  kBuffer = 4,
  kInput = 5,
  kOutput = 6,
  kLoss = 7,
  kLossInput = 8,
  kOptimizerState = 9,
  kOptimizerSetting = 10,
  kScalar = 11,
  kCustom = 12,
  kLabel = 13,
  kSample = 14,          // first rows of the inputs of a model or a loss; docs/spec/evidence.md
  kOutputGradient = 15,  // of the loss, with respect to a module's output
  kInputGradient = 16,   // with respect to a model's input
  kAttention = 17,       // weights of attention
};

enum class FrameKind : std::uint16_t {
  kTensorDefs = 1,  // definitions as PutTensorDef writes them
  kLayoutDefs = 2,  // definitions as PutLayoutDef writes them
  kDocument = 3,  // u16 name length, name, UTF-8 JSON: "collections", "model", "environment"; the latest wins
  kSummaryRows = 4,    // SummaryRow[n]
  kIndexRows = 5,      // IndexRow[n]
  kHistogramRows = 6,  // entries: u32 tensor, u32 bin count, then bin delta and count as varints
  kUnitRows = 7,       // entries: UnitHead, positive and zero counts as varints, float32 sums
  kFormRows = 8,       // FormRow[n]
  kScalarRows = 9,     // ScalarRow[n]
  kEventRows = 10,     // EventRow[n]
  kEventJson = 11,     // one UTF-8 JSON object with "kind"
  kGapRows = 12,       // GapRow[n]
  kStep = 13,          // StepMark: every frame since the last StepMark with this ordinal is complete
  kAck = 14,           // AckRow: a worker's answer to a control record
  kEnd = 15,           // EndMark: the worker has ended
  kRelocate = 16,      // RelocateRow[n]
  kRetire = 17,        // RetireRow[n]: payload files that are gone
  kHeartbeat = 18,     // i64 unix ns
  kFooter = 19,        // columns of the whole segment; see footer.h
  kPhases = 20,        // PhasesHead, PhaseRow[n]: where the time of a step went (since 1.1)
  kModuleTimes = 21,   // ModuleTimesHead, ModuleTimeRow[n]: of a step in which modules were timed (since 1.2)
  kSeriesDefs = 22,    // series of a host folder, as PutSeriesDef writes them (since 1.1)
  kSamples = 23,       // SamplesHead and their values, as PutSamples writes them (since 1.1)
};

/// What the training thread did. A step's time is divided among these; what none covers is kOther.
enum class Phase : std::uint8_t {
  kOther = 0,
  kDataWait = 1,   // for the next batch
  kDataStart = 2,  // making a loader's iterator
  kForward = 3,
  kLoss = 4,
  kBackward = 5,
  kOptimizer = 6,
  kClip = 7,
  kZeroGrad = 8,
  kScheduler = 9,
  kEval = 10,
  kCheckpoint = 11,  // saving one
  kCompile = 12,
  kGc = 13,    // a full collection of Python's garbage
  kLuff = 14,  // capture's own work
  kTrace = 15,
  kCompute = 16,  // a call that does all of a step's work: a compiled step, a boosting round
};
inline constexpr std::size_t kPhaseCount = 17;

/// Which batch a wait was for, in the subject of its row: bits 0 to 7 the number of the loader, 8 to 19 the
/// worker that makes the batch, 20 to 27 how many batches were ready when it was asked for; all ones in each:
/// not known.
struct WaitSubject {
  static constexpr std::uint32_t kNoLoader = 0xFF, kNoWorker = 0xFFF, kNoReady = 0xFF;
  std::uint32_t loader = kNoLoader, worker = kNoWorker, ready = kNoReady;

  [[nodiscard]] static constexpr WaitSubject Of(std::uint32_t subject) noexcept {
    return {subject & kNoLoader, subject >> 8U & kNoWorker, subject >> 20U & kNoReady};
  }
  [[nodiscard]] constexpr std::uint32_t packed() const noexcept {
    const auto within = [](std::uint32_t value, std::uint32_t none) { return value < none ? value : none; };
    return within(loader, kNoLoader) | within(worker, kNoWorker) << 8U | within(ready, kNoReady) << 20U |
           0xF0000000U;
  }
};

enum class Form : std::uint16_t {  // bits, also in StepMark and GapRow
  kSummary = 1,
  kRaw = 2,
  kHistogram = 4,
  kHash = 8,
  kUnits = 16,
  kDifference = 32,
  kExtra = 64,
  kShape = 128,
};

enum class GapReason : std::uint16_t {
  kNone = 0,
  kPoolFull = 1,        // no free block in time
  kOverheadBudget = 2,  // the governor widened the interval
  kByteBudget = 3,      // max_bytes reached
  kDiskFull = 4,
  kIoError = 5,
  kCompiledGraph = 6,  // activations inside a compiled graph
  kUnsupported = 7,    // dtype, layout, sparse or device memory that is not captured
  kNotSeen = 8,        // the hook did not see the event (compiled optimizer step, ...)
  kHookError = 9,      // an error inside Luff, counted
  kRetired = 10,       // payload deleted by retention
  kMerged = 11,        // summaries merged in tens
  kWorkerLost = 12,
  kFork = 13,
  kScripted = 14,         // inside a jit.script module
  kClosing = 15,          // deadline at exit
  kTooMany = 16,          // more tensors or names than the limit
  kRecordingFailed = 17,  // an error inside Luff, e.g. no memory, ended the recording or lost a step
  kFileLost = 18,         // a file of the run was removed, cut off, or its descriptor closed by the training
  kNoGradient = 19,       // the value required no gradient, or no backward pass of the step reached it
  kFusedAttention = 20,   // weights of attention that a fused kernel never had in memory
  kDeviceLate = 21,     // results of an accelerator that did not come in time, or found no room on their way
  kCapturedGraph = 22,  // the stream captured a graph, of which reading would have become a part
  kDeviceError = 23,    // reading this accelerator has ended; an event `device_error` says why
  kUploaded = 24,       // payload that is in a bucket, and not here any more
};

enum class EventKind : std::uint16_t {
  kForward = 1,
  kBackward = 2,
  kZeroGrad = 3,
  kOptimizerStep = 4,
  kSchedulerStep = 5,
  kModeChange = 6,
  kBatch = 7,        // arg = content hash of the first dense input
  kStepSkipped = 8,  // loss scaler skipped the update
  kClipGrad = 9,
  kCheckpoint = 10,
  kException = 11,
  kScaleLoss = 12,
  kGradientKept = 13,  // argument: checked parameters with a gradient that an earlier update has used
};

enum class EndReason : std::uint32_t {
  kCompleted = 1,
  kStopped = 2,
  kException = 3,
  kSignal = 4,
  kFailed = 5
};

struct FileHeader {  // first bytes of every m-*.lfm and d-*.lfd
  std::uint64_t magic;
  std::uint16_t major, minor;
  std::uint32_t header_bytes;  // kFileHeaderBytes
  std::uint8_t run_id[16];
  std::uint32_t worker, epoch;
  std::uint64_t sequence;  // number in the file name
  std::int64_t created_unix_ns;
  std::uint64_t first_ordinal;    // step ordinal of the first row
  std::uint32_t retention_class;  // data files: 0 keep all, 1 recent, 2 tenth, 3 hundredth; else 0
  std::uint32_t generation;       // metadata: how often the segment was rewritten by merging
  std::uint64_t checksum;         // XXH3-64 of all bytes before it
};
static_assert(sizeof(FileHeader) == 80);

struct FrameHeader {  // 32 bytes; body follows, zero-padded to 8
  std::uint32_t magic;
  std::uint16_t kind;
  std::uint16_t flags;
  std::uint32_t body_bytes;  // without padding
  std::uint32_t reserved;
  std::uint64_t ordinal;  // the step these rows belong to (0-based count of published steps of this worker)
  std::uint64_t
      checksum;  // XXH3-64(body, seed = XXH3-64(first 24 header bytes, seed = sequence << 40 ^ offset))
};
static_assert(sizeof(FrameHeader) == 32);

struct ChunkHeader {  // 64 bytes before each payload chunk, so that payload can be walked without metadata
  std::uint32_t magic;
  std::uint8_t dtype, codec;
  std::uint16_t flags;
  std::uint32_t tensor, layout;
  std::uint32_t part, parts;
  std::uint64_t ordinal;
  std::uint64_t raw_bytes, stored_bytes;
  std::uint64_t content_hash;  // XXH3-64 of the raw bytes of this part
  // XXH3-64(header bytes before it, seed). Seed: 0 for raw chunks, whose stored bytes the content hash
  // covers; else XXH3-64(stored bytes). So a raw chunk is hashed once.
  std::uint64_t checksum;
};
static_assert(sizeof(ChunkHeader) == 64);

struct SummaryRow {  // 80 bytes
  std::uint32_t tensor;
  std::uint8_t dtype;
  std::uint8_t flags;   // bit 0: merged from several steps
  std::uint16_t steps;  // number of steps merged, 1 otherwise
  std::uint64_t count;
  double sum, sum_sq, abs_sum;
  std::uint64_t min_bits, max_bits;
  std::uint64_t zero_count, nan_count, inf_count;
};
static_assert(sizeof(SummaryRow) == 80);

struct IndexRow {  // 64 bytes: where the raw value (or one part of it) is
  std::uint32_t tensor, layout;
  std::uint32_t part, parts;
  std::uint32_t data_file;  // sequence of d-*.lfd in the same worker folder
  std::uint8_t dtype, codec;
  std::uint16_t flags;   // bit 0: alias within the step; bit 1: same as an earlier step; bit 2: lossy
  std::uint64_t offset;  // of the ChunkHeader in the file
  std::uint64_t raw_bytes, stored_bytes;
  std::uint64_t content_hash;
  std::uint64_t reserved;
};
static_assert(sizeof(IndexRow) == 64);

struct FormRow {  // hash, difference, extra reductions
  std::uint32_t tensor;
  std::uint16_t form;  // one Form bit
  std::uint16_t flags;
  double values[6];  // difference: l1 sum_sq max changed previous_l1 previous_sum_sq; extra: abs_min prod
                     // abs_prod; hash: the bits of the u64 in values[0]
};
static_assert(sizeof(FormRow) == 56);

struct ScalarRow {
  std::uint32_t tensor;
  std::uint32_t flags;
  double value;
};
static_assert(sizeof(ScalarRow) == 16);

struct EventRow {
  std::uint16_t kind;
  std::uint16_t flags;
  std::uint32_t subject;  // optimizer number, module number or kNoId
  std::uint64_t argument;
  std::int64_t since_step_ns;  // time since the step began
};
static_assert(sizeof(EventRow) == 24);

struct PhasesHead {            // 48 bytes, then PhaseRow[rows]
  std::int64_t wall_ns;        // from the end of the worker's previous step to the end of this one
  std::int64_t cpu_ns;         // the training thread's CPU time meanwhile; -1 here and below: not known
  std::int64_t run_queue_ns;   // time for which it could have run and had no core
  std::int64_t device_ns;      // -1
  std::uint32_t steps;         // 1; of merged steps, how many
  std::uint32_t rows;          // at most kMaxPhaseRows
  std::uint32_t major_faults;  // kNoId: not known
  std::uint32_t flags;         // kStepTraced, kStepTimed (since 1.2)
};
static_assert(sizeof(PhasesHead) == 48);

struct PhaseRow {  // 24 bytes
  std::uint8_t phase;
  std::uint8_t clock;     // 0: the host's, 1: a device's
  std::uint16_t count;    // how often it began (65,535 also stands for more); of a device: in how many steps
                          // it had nothing left to do when the step's first phase began, which is this one
  std::uint32_t subject;  // of data_wait: WaitSubject; else kNoId
  std::int64_t start_ns;  // when it began last, since the step's begin; -1: before it, or merged; not known
                          // of a device
  std::int64_t duration_ns;  // without what other phases took inside it
};
static_assert(sizeof(PhaseRow) == 24);
/// Operators of the step were traced for Luff, or such a trace was written in it; merged: all of them.
inline constexpr std::uint32_t kStepTraced = 1;
/// Calls of modules were timed in the step; merged: in all of them.
inline constexpr std::uint32_t kStepTimed = 2;
inline constexpr std::size_t kMaxPhaseRows = 64;
inline constexpr std::int64_t kMaxPhaseNs = std::int64_t{1} << 60;  // so that sums of some do not overflow

struct ModuleTimesHead {  // 16 bytes, then ModuleTimeRow[rows]
  std::uint32_t steps;    // 1; of merged steps, how many
  std::uint32_t rows;     // at most kMaxModuleRows
  std::uint32_t modules;  // that were called; those without a row of their own share the row of kNoId
  std::uint32_t flags;    // kModulesHidden, ...
};
static_assert(sizeof(ModuleTimesHead) == 16);
inline constexpr std::uint32_t kModulesHidden = 1;  // some ran inside a compiled or scripted graph
inline constexpr std::uint32_t kModulesRecomputed =
    2;                                               // activations were computed again in the backward pass
inline constexpr std::uint32_t kModulesTooMany = 4;  // there were more calls than are timed

struct ModuleTimeRow {   // 40 bytes
  std::uint32_t module;  // number in the document "model"; kNoId: all others
  std::uint32_t calls;
  std::int64_t forward_ns;       // of its calls, with those of the modules that it called; -1 of kNoId
  std::int64_t forward_self_ns;  // without these
  std::int64_t backward_ns;      // likewise; -1: not seen
  std::int64_t backward_self_ns;
};
static_assert(sizeof(ModuleTimeRow) == 40);
inline constexpr std::size_t kMaxModuleRows = 1024;

/// What a series of samples counts. Stored as integers of the unit named here.
enum class SeriesUnit : std::uint8_t {
  kNumber = 0,
  kNanoseconds = 1,
  kBytes = 2,
  kShare = 3,        // millionths of the whole
  kPower = 4,        // milliwatts
  kEnergy = 5,       // microjoules
  kFrequency = 6,    // kilohertz
  kTemperature = 7,  // thousandths of a degree Celsius
  kBits = 8,         // a set of flags
};
enum class SeriesKind : std::uint8_t {
  kGauge = 0,    // as it was at that moment
  kCounter = 1,  // grows; what counts is the difference. Smaller than before: it began again
};

struct SamplesHead {           // 32 bytes, then times and values; docs/spec/run-format.md
  std::int64_t first_mono_ns;  // CLOCK_MONOTONIC of the host at the first sample
  std::int64_t first_unix_ns;  // the same moment by its wall clock
  std::uint32_t samples, series;
  std::uint32_t merged;  // 1; of merged samples, how many each stands for at most
  std::uint32_t flags;   // bit 0: gauges have a second row of values, their maxima
};
static_assert(sizeof(SamplesHead) == 32);
inline constexpr std::uint32_t kSamplesMaxima = 1;
inline constexpr std::uint32_t kMaxSamples = 4096;  // of one frame
inline constexpr std::uint32_t kMaxSeries = 16384;
inline constexpr std::int64_t kMaxSampleValue = std::int64_t{1} << 60;

struct GapRow {
  std::uint32_t tensor;      // kNoId: every tensor of the collection, or of the run
  std::uint32_t collection;  // index in the "collections" document; kNoId: none
  std::uint16_t reason;
  std::uint16_t forms;  // Form bits that are missing
  std::uint32_t reserved;
  std::uint64_t count;  // values left out
  std::uint64_t bytes;
  std::int64_t first_step, last_step;  // global steps
};
static_assert(sizeof(GapRow) == 48);

struct StepMark {
  std::int64_t global_step, mode_step;
  std::int64_t update;  // optimizer updates before this step
  std::int64_t wall_unix_ns;
  std::int64_t duration_ns;
  std::uint8_t mode;
  std::uint8_t reserved[3];
  std::uint32_t frames;  // frames of this step before the mark
  std::uint32_t forms;   // Form bits seen in it
  std::uint32_t epoch;
};
static_assert(sizeof(StepMark) == 56);

struct AckRow {
  std::uint64_t control;  // number of the control record
  std::uint32_t verdict;  // 1 accepted, 2 too late, 3 carried out, 4 refused, 5 failed, 6 alone
  std::uint32_t reserved;
  std::int64_t train_step;  // TRAIN steps finished when answering
  std::int64_t unix_ns;
};
static_assert(sizeof(AckRow) == 32);

struct EndMark {
  std::uint32_t reason;  // EndReason
  std::uint32_t reserved;
  std::int64_t last_global_step;
  std::int64_t unix_ns;
};
static_assert(sizeof(EndMark) == 24);

struct RelocateRow {
  std::uint32_t from_file, to_file;
  std::uint64_t from_offset, to_offset;
};
static_assert(sizeof(RelocateRow) == 24);

struct RetireRow {
  std::uint32_t data_file;
  std::uint32_t reason;  // GapReason
};
static_assert(sizeof(RetireRow) == 8);

struct FileTail {  // last 64 bytes of a sealed metadata segment
  std::uint64_t magic;
  std::uint64_t footer_offset;  // of the footer's FrameHeader
  std::uint64_t footer_bytes;   // header and padding included
  std::uint64_t sequence;
  std::uint64_t reserved[3];
  std::uint64_t checksum;  // XXH3-64 of the bytes before it
};
static_assert(sizeof(FileTail) == 64);

static_assert(std::is_trivially_copyable_v<FileHeader> && std::is_trivially_copyable_v<IndexRow>);

}  // namespace luff::format
