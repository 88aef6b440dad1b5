#include "cli/reading.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "base/format.h"
#include "base/interrupted.h"
#include "base/json.h"
#include "base/json_nonfinite.h"
#include "base/owned_fd.h"
#include "base/python_child.h"
#include "base/text_escape.h"
#include "catalog/catalog.h"
#include "cli/bucket_runs.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/base/env.h"
#include "luff/base/process.h"

namespace luff::cli {
namespace {

constexpr query::Mode kModes[] = {query::Mode::kTrain, query::Mode::kEval, query::Mode::kPredict,
                                  query::Mode::kGlobal};

std::size_t StepsOf(const query::Trial& trial, query::TensorId id, query::Mode mode) {
  // Steps saved by hand alone have the mode GLOBAL, which here means those of all modes.
  const auto steps = trial.TensorSteps(id, mode);
  return steps.ok() ? steps->size() : 0;
}

// Has Luff's Python package make, or find, the local copy of a run in a bucket. Returns its directory.
std::string CopyOfUrlOrExit(const std::string& url, Rows rows) {
  auto command = PythonCommand("spool");
  if (!command.ok())
    ExitWithError(command.status().WithContext("runs in a bucket are fetched by Luff's Python package"));
  command->push_back(url);
  if (rows == Rows::kAsked) command->push_back("asked");
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) ExitWithError(IoError(std::strerror(errno)));
  const OwnedFd from(ends[0]);
  OwnedFd to(ends[1]);
  ProcessOptions process;
  process.argv = std::move(command).value();
  process.stdout_fd = to.get();
  process.dies_with_parent = true;
  const pid_t child = ValueOrExit(StartProcess(process));
  to = OwnedFd();
  std::string answer;
  char bytes[4096];
  for (ssize_t got = 1; got > 0 && answer.size() < (std::size_t{1} << 20);) {
    got = Uninterrupted([&] { return read(from.get(), bytes, sizeof(bytes)); });
    if (got > 0) answer.append(bytes, static_cast<std::size_t>(got));
  }
  while (answer.ends_with('\n')) answer.pop_back();
  const ExitState state = DecodeStatus(WaitFor(child));
  if (state.code == 0 && answer.starts_with('/')) return answer;
  if (answer.empty()) answer = "the process that fetches runs ended without a word";
  ExitWithError(Status(StatusCode::kUnavailable, answer));
}

}  // namespace

bool IsUrl(std::string_view run) {
  static constexpr std::string_view kSchemes[] = {"s3://", "gs://", "az://", "file://"};
  return std::any_of(std::begin(kSchemes), std::end(kSchemes),
                     [&](std::string_view scheme) { return run.starts_with(scheme); });
}

void FindRunOrExit(std::string* run, Rows rows) {
  if (run->empty()) return;
  *run = IsUrl(*run) ? CopyOfUrlOrExit(RunUrlOrExit(*run), rows) : ValueOrExit(catalog::FindRun(*run));
}

void FindOwnRunOrExit(std::string* run) {
  if (IsUrl(*run))
    ExitWithError(InvalidArgument("a run in a bucket is only read; this needs the run's directory: " + *run));
  FindRunOrExit(run);
}

CLI::Validator SizeValue(bool kb_is_1000) {
  const CLI::AsSizeValue parse(kb_is_1000);
  const auto take = [parse](std::string& text) -> std::string {
    const std::string given = text;
    try {
      if (parse(text).empty()) return "";
    } catch (const CLI::ValidationError&) {  // its message lists a hundred spellings
    }
    return fmt::format("'{}' is no size; expected e.g. 5MB or 25MiB", given);
  };
  return {take, "SIZE"};
}

void AddRunOption(CLI::App* verb, ReadOptions* options) {
  verb->add_option("RUN", options->run, kRunHelp)->required();
  verb->add_flag("--json", options->json, "JSON on stdout");
}

void AddModeOption(CLI::App* verb, ReadOptions* options) {
  verb->add_option(
      "--mode", options->mode,
      "What step numbers count: TRAIN, EVAL, PREDICT, or GLOBAL for all of them; default: TRAIN, or "
      "the mode that the tensor has");
  verb->add_option("--worker", options->worker, "Number of the worker; default: the first that has it");
}

void ExitWithError(const Status& status) {
  PrintError(status);
  ExitWith(kExitUsage);
}

void BecomePython(std::string_view verb, std::vector<std::string> words, std::string_view needs) {
  Result<std::vector<std::string>> command = PythonCommand(verb);
  if (!command.ok()) ExitWithError(command.status().WithContext(needs));
  words.insert(words.begin(), command.value().begin(), command.value().end());
  const ExecTexts argv(std::move(words));
  std::fflush(stdout);
  execv(*argv.get(), argv.get());
  ExitWithError(IoError(fmt::format("{}: {}", std::strerror(errno), *argv.get())));
}

void BecomePythonThatAsks(std::string_view verb, std::vector<std::string> words, std::string_view needs) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) setenv("LUFF_EXECUTABLE", self.c_str(), 0);
  BecomePython(verb, std::move(words), needs);
}

bool IsProfilerFolder(const std::string& path) {
  Env& env = Env::Real();
  const auto has = [&](const char* name) { return env.Exists(path + "/" + name); };
  return (has("system") || has("framework")) && !has("run.json") && !has("collections") && !has("index");
}

StepRange StepRangeOrExit(std::string_view text) {
  StepRange range;
  if (text.empty()) return range;
  const auto colon = text.find(':');
  const auto number = [](std::string_view part, std::int64_t* to) {
    if (part.empty()) return true;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), *to);
    return error == std::errc() && end == part.data() + part.size() && *to >= 0;
  };
  if (colon == std::string_view::npos || !number(text.substr(0, colon), &range.from) ||
      !number(text.substr(colon + 1), &range.to) || range.from > range.to) {
    ExitWithError(InvalidArgument(
        fmt::format("--steps: found '{}', expected FROM:TO, TRAIN steps from 0 on, both included", text)));
  }
  return range;
}

std::unique_ptr<query::Trial> OpenOrExit(const ReadOptions& options) {
  return ValueOrExit(query::Trial::Open(options.run));
}

query::Mode ModeOrExit(const ReadOptions& options, query::Mode otherwise) {
  return options.mode.empty() ? otherwise : ValueOrExit(query::ParseMode(options.mode));
}

query::Mode ModeOfRun(const ReadOptions& options, const query::Trial& trial) {
  const bool trains = options.mode.empty() && !trial.Steps(query::Mode::kTrain).empty();
  return ModeOrExit(options, trains ? query::Mode::kTrain : query::Mode::kGlobal);
}

query::Mode ModeOfTensor(const ReadOptions& options, const query::Trial& trial, query::TensorId id) {
  if (!options.mode.empty()) return ModeOrExit(options, query::Mode::kTrain);
  for (const query::Mode mode : kModes) {
    if (StepsOf(trial, id, mode) > 0) return mode;
  }
  return query::Mode::kTrain;
}

std::string OtherModes(const query::Trial& trial, query::TensorId id, query::Mode mode) {
  std::string text;
  for (const query::Mode other : kModes) {
    if (mode == query::Mode::kGlobal || other == mode || other == query::Mode::kGlobal) continue;
    const std::size_t steps = StepsOf(trial, id, other);
    if (steps == 0) continue;
    text += fmt::format("{}{} in {} (--mode {})", text.empty() ? "also at " : ", ",
                        steps == 1 ? "1 step" : fmt::format("{} steps", steps), query::ModeName(other),
                        query::ModeName(other));
  }
  return text;
}

std::string StepsText(const catalog::Evaluation& evaluation) {
  if (evaluation.steps == 1) return fmt::format("step {}", evaluation.first_step);
  return fmt::format("steps {} to {}", evaluation.first_step, evaluation.mean.mode_step);
}

Json EvaluationJson(const catalog::Evaluation& evaluation) {
  return {{"first_step", evaluation.first_step},
          {"last_step", evaluation.mean.mode_step},
          {"update", evaluation.mean.update},
          {"steps", evaluation.steps},
          {"mean", evaluation.mean.value}};
}

void PrintJson(Json json, int indent) {
  NameNonFinite(&json);
  fmt::print("{}\n", JsonEscaped(JsonText(json, indent)));
}

bool IsOfWholeSteps(const query::GapInfo& gap) {
  static constexpr std::string_view kReasons[] = {"pool full", "disk full",        "input/output error",
                                                  "closing",   "recording failed", "file lost"};
  const bool named = std::find(std::begin(kReasons), std::end(kReasons), gap.reason) != std::end(kReasons);
  return named && gap.tensor.empty() && gap.collection.empty() && gap.forms.empty() && gap.count > 0 &&
         gap.last_step >= 0;
}

std::string SizeText(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} bytes", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string NumberText(double value) { return std::isnan(value) ? "nan" : fmt::format("{:.6g}", value); }

}  // namespace luff::cli
