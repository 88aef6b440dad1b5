#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"
#include "luff/format/layout.h"

/// Names and index files of directories that smdebug writes; docs/spec/smdebug.md is the contract. All
/// functions are **thread-safe**.
namespace luff::format {

/// An index file: where the tensors of one (step, worker) are. Views point into the text it was parsed from,
/// or into `unescaped`. The next ParseSmdebugIndexUntrusted reuses its memory.
struct SmdebugIndex {
  struct Tensor {
    std::string_view name;
    std::uint64_t start = 0, length = 0;  // of the whole record in the event file
  };
  struct Shape {
    std::string_view name, original_name;
    std::uint32_t first = 0, rank = 0;  // in `dims`
  };
  Mode mode = Mode::kGlobal;
  std::int64_t mode_step = 0;
  std::string_view event_file;  // relative to the trial; "" when there are only shapes
  std::vector<Tensor> tensors;
  std::vector<Shape> shapes;
  std::vector<std::int64_t> dims;
  std::deque<std::string> unescaped;
  std::uint64_t error_at = 0;  // byte offset of the mistake if the text does not parse
};

/// Accepts keys in any order, and unknown ones. Errors: kCorruption with the byte offset.
[[nodiscard]] Status ParseSmdebugIndexUntrusted(std::string_view json, SmdebugIndex* to);
/// Formats the file as smdebug writes it.
[[nodiscard]] std::string FormatSmdebugIndex(const SmdebugIndex& index);

/// Appends text as Python's json.dumps writes it: quoted, everything but ASCII escaped.
void AppendPythonJson(std::string_view text, std::string* to);

// ---- Names of files ----

struct SmdebugFileName {
  std::int64_t step = 0;
  std::string_view worker;  // as spelled in the file name
};
/// "000000000012_worker_0.json" or ".csv". Returns nothing for other names.
[[nodiscard]] std::optional<SmdebugFileName> ParseSmdebugIndexName(std::string_view name);
/// "index/000000000/000000000012_worker_0.json", relative to the trial.
[[nodiscard]] std::string SmdebugIndexPath(std::int64_t step, std::string_view worker);
/// "events/000000000012/000000000012_worker_0.tfevents".
[[nodiscard]] std::string SmdebugEventPath(std::int64_t step, std::string_view worker);
/// "collections/000000000/worker_0_collections.json".
[[nodiscard]] std::string SmdebugCollectionsPath(std::string_view worker);
inline constexpr const char* kSmdebugEndFile = "training_job_end.ts";

/// Turns a worker's spelling in a file name into its name. TensorFlow's devices begin with "_" there, and
/// have "_" and "-" for "/" and ":".
[[nodiscard]] std::string SmdebugWorkerName(std::string_view in_file_name);

// ---- Reductions ----

inline constexpr std::string_view kSmdebugReductions = "smdebug/reductions/";

enum class SmdebugReduction : std::uint8_t { kMin, kMax, kMean, kStd, kVariance, kSum, kProd, kL1, kL2 };
inline constexpr std::size_t kSmdebugReductionCount = 9;
[[nodiscard]] std::string_view SmdebugReductionName(SmdebugReduction reduction) noexcept;

struct SmdebugReductionOf {
  std::string_view tensor;
  SmdebugReduction reduction = SmdebugReduction::kMin;
  bool abs = false;
};
/// "smdebug/reductions/abs_mean/fc.weight". Returns nothing for other names.
[[nodiscard]] std::optional<SmdebugReductionOf> ParseSmdebugReduction(std::string_view name);

}  // namespace luff::format
