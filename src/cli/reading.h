#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "catalog/card.h"
#include "cli/json.h"
#include "luff/query/trial.h"

/// Code shared by the verbs that read a run.
namespace luff::cli {

/// Options of a verb over one run. Lives as long as the callback that holds it.
struct ReadOptions {
  std::string run;
  std::string mode;  // "": of a tensor, TRAIN if it has such steps, else the one that it has
  std::optional<std::uint32_t> worker;
  bool json = false;
};

inline constexpr const char* kRunHelp =
    "The run: its directory, its name, @1 for the newest (luff runs), or its URL in a bucket (URL/@1)";
/// The same of a verb that commands a run or writes into it.
inline constexpr const char* kOwnRunHelp =
    "The run: its directory, its name, or @1 for the newest (luff runs)";
/// True for s3://, gs://, az:// and file://.
[[nodiscard]] bool IsUrl(std::string_view run);
/// Help of --keep-local.
inline constexpr const char* kKeepLocalHelp =
    "Remove values from the run while it trains, once they are in the bucket, the oldest first, until at "
    "most so many bytes are left in the folder of each worker: 0, 500MB, 2GB; default: all stay";
/// Replaces what a person calls a run by its path (catalog::FindRun); the URL of a run in a bucket by that of
/// a local copy, which is followed while this process reads it. Leaves "" alone. Not while options are
/// parsed: another mistake in them comes first. kAsked: of a copy, rows are fetched when they are read, so a
/// bucket that goes away makes reading fail; for verbs that say so, and look at few tensors.
enum class Rows : bool { kAll, kAsked };
void FindRunOrExit(std::string* run, Rows rows = Rows::kAll);
/// As FindRunOrExit, for verbs that command or change a run, or need what no bucket has: refuses URLs.
void FindOwnRunOrExit(std::string* run);
/// True for a folder that a profiler of SageMaker's kind wrote: with `system` or `framework` in it, and no
/// run.
[[nodiscard]] bool IsProfilerFolder(const std::string& path);
/// Takes sizes: "5MB", "25MiB", "1000". `kb_is_1000`: else KB is 1024 bytes as KiB is.
[[nodiscard]] CLI::Validator SizeValue(bool kb_is_1000);
void AddRunOption(CLI::App* verb, ReadOptions* options);
void AddModeOption(CLI::App* verb, ReadOptions* options);

/// TRAIN steps, both included.
struct StepRange {
  std::int64_t from = 0, to = INT64_MAX;
};
/// Of "A:B", "A:", ":B" or "", which means all.
[[nodiscard]] StepRange StepRangeOrExit(std::string_view text);

/// Opens the trial, or prints an error and ends the program with kExitUsage.
[[nodiscard]] std::unique_ptr<query::Trial> OpenOrExit(const ReadOptions& options);
/// The mode that was given, or else `otherwise`.
[[nodiscard]] query::Mode ModeOrExit(const ReadOptions& options, query::Mode otherwise);
/// The mode that was given, or else TRAIN if the run has such steps, or else GLOBAL.
[[nodiscard]] query::Mode ModeOfRun(const ReadOptions& options, const query::Trial& trial);
/// The mode that was given, or else the tensor's. Findings name steps in the same way.
[[nodiscard]] query::Mode ModeOfTensor(const ReadOptions& options, const query::Trial& trial,
                                       query::TensorId id);
/// Other modes in which the tensor has steps, as a line that names the option; "" if there are none.
[[nodiscard]] std::string OtherModes(const query::Trial& trial, query::TensorId id, query::Mode mode);

template <typename T>
[[nodiscard]] T ValueOrExit(Result<T> result);
/// Replaces this process by the Python that runs `luff._verbs.VERB`. `needs`: the message if there is none.
[[noreturn]] void BecomePython(std::string_view verb, std::vector<std::string> words, std::string_view needs);
/// Likewise of a verb that asks this very command for what it shows.
[[noreturn]] void BecomePythonThatAsks(std::string_view verb, std::vector<std::string> words,
                                       std::string_view needs);
[[noreturn]] void ExitWithError(const Status& status);

/// "steps 4 to 7", or "step 4".
[[nodiscard]] std::string StepsText(const catalog::Evaluation& evaluation);
/// For JSON: first and last step in EVAL, update, number of steps, and mean.
[[nodiscard]] Json EvaluationJson(const catalog::Evaluation& evaluation);

/// Prints one line of JSON; replaces invalid UTF-8. JSON has no numbers for NaN and infinities; they become
/// the strings "NaN", "Infinity" and "-Infinity".
void PrintJson(Json json, int indent = 2);
/// The step number of a row as `mode` counts it, or all step numbers of columns.
[[nodiscard]] inline const auto& StepAs(query::Mode mode, const auto& of) {
  return mode == query::Mode::kGlobal ? of.global_step : of.mode_step;
}
/// True if no element of a row is finite. Its statistics, which cover finite elements only, are then
/// meaningless.
[[nodiscard]] inline bool NothingFinite(const query::SummaryColumns& columns, std::size_t row) {
  const std::uint64_t strange = columns.nan_count[row] + columns.inf_count[row];
  return columns.count[row] != 0 && strange == columns.count[row];
}
/// True if the gap describes `count` whole steps that are missing from the run (docs/spec/run-format.md, 4).
[[nodiscard]] bool IsOfWholeSteps(const query::GapInfo& gap);
/// "12.3 MiB".
[[nodiscard]] std::string SizeText(std::uint64_t bytes);
/// Six significant digits; "nan" of any sign.
[[nodiscard]] std::string NumberText(double value);

template <typename T>
T ValueOrExit(Result<T> result) {
  if (!result.ok()) ExitWithError(result.status());
  return std::move(result).value();
}

}  // namespace luff::cli
