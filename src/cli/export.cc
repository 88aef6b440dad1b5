#include "cli/export.h"

#include <malloc.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <thread>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/interrupted.h"
#include "base/json.h"
#include "cli/export_trace.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/base/env.h"

namespace luff::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kFlushEvery = std::chrono::seconds(2);
constexpr auto kTellEvery = std::chrono::milliseconds(200);
constexpr auto kLookEvery = std::chrono::milliseconds(250);
constexpr auto kClosingTime = std::chrono::seconds(5);
constexpr const char* kStateFile = "luff-export.json";
constexpr const char* kFormats[] = {"smdebug",     "tensorboard", "csv",   "parquet",
                                    "safetensors", "perfetto",    "chrome"};

struct ExportOptions : ReadOptions {
  std::string to, out, regex, collection, steps;
  std::optional<std::int64_t> step;
  bool follow = false, force = false, profiler = false;
  bool until_closed = false;  // set by the supervisor: the job is over when stdin is closed
};

/// True if no process holds the other end of stdin open.
bool StdinClosed() {
  pollfd fd{STDIN_FILENO, POLLIN, 0};
  if (poll(&fd, 1, 0) <= 0) return false;
  char byte;
  return Uninterrupted([&] { return read(STDIN_FILENO, &byte, 1); }) <= 0;
}

/// Formats that show where the time went. They are one file.
bool IsTrace(std::string_view format) { return format == "perfetto" || format == "chrome"; }
bool IsOneFile(std::string_view format) { return format == "safetensors" || IsTrace(format); }

/// Makes blocks from 128 KiB on go back to the system when they are freed. By itself glibc raises that limit
/// to the size of what is freed, and what is read of one segment after the other then leaves holes between
/// small blocks that stay.
void GiveLargeBlocksBack() {
#ifdef __GLIBC__
  (void)mallopt(M_MMAP_THRESHOLD, 128 << 10);
#endif
}

class Export {
 public:
  explicit Export(const ExportOptions& options)
      : options_(options),
        out_(fs::absolute(options.out).lexically_normal().string()),
        told_(StderrIsTerminal() && !options.until_closed) {}

  Status Run() {
    // A trace needs all steps once: the run is read in one pass, without a table of them.
    if (IsTrace(options_.to) && Env::Real().Exists(options_.run + "/run.json")) return Trace();
    LUFF_RETURN_IF_ERROR(OpenTrial());
    if (IsTrace(options_.to)) return NoPhases(trial_->path());  // smdebug's
    choice_.regex = options_.regex;
    choice_.collection = options_.collection;
    choice_.worker = options_.worker;
    if (!options_.mode.empty()) {
      LUFF_ASSIGN_OR_RETURN(choice_.mode, query::ParseMode(options_.mode));
    }
    LUFF_RETURN_IF_ERROR(choice_.Update(*trial_));
    if (!options_.follow &&
        std::find(choice_.wanted.begin(), choice_.wanted.end(), 1) == choice_.wanted.end())
      return NotFound("no tensor is wanted by --tensors and --collection; `luff tensors RUN` lists them");
    if (options_.to == "safetensors") return OneStep();
    LUFF_ASSIGN_OR_RETURN(const bool done, Prepare());
    if (done) {
      fmt::print("{} holds all {} steps already\n", Escaped(out_), state_.steps);
      return Status::Ok();
    }
    exporter_ = options_.to == "smdebug"       ? MakeSmdebugExporter(folder_, &choice_)
                : options_.to == "tensorboard" ? MakeTensorBoardExporter(folder_, &choice_)
                                               : MakeCsvExporter(folder_, &choice_);
    const Status status = WriteAll();
    if (told_) fmt::print(stderr, "\r\033[K");
    for (const std::string& remark : exporter_->remarks()) fmt::print(stderr, "luff: {}\n", Escaped(remark));
    LUFF_RETURN_IF_ERROR(status);
    if (!options_.until_closed) {
      fmt::print("{} steps, {} written to {}\n", state_.steps - before_, SizeText(exporter_->bytes()),
                 Escaped(out_));
    }
    return Status::Ok();
  }

 private:
  /// Opens the run; with --follow, waits until it has begun.
  Status OpenTrial() {
    for (;;) {
      auto opened = query::Trial::Open(options_.run);
      if (opened.ok()) {
        trial_ = std::move(opened).value();
        return Status::Ok();
      }
      const bool may_come = options_.follow && Env::Real().Exists(options_.run) &&
                            !Env::Real().Exists(options_.run + "/run.json");
      if (!may_come) return opened.status();
      if (options_.until_closed && StdinClosed())
        return Status(StatusCode::kCancelled, "the job recorded nothing");
      std::this_thread::sleep_for(kLookEvery);
    }
  }

  Status OneStep() {
    const std::size_t steps = trial_->step_count();
    if (steps == 0) return OutOfRange("the run has no complete step yet: " + trial_->path());
    std::optional<std::size_t> wanted;
    std::int64_t step = 0;
    if (options_.step) {
      LUFF_ASSIGN_OR_RETURN(const query::StepInfo info,
                            trial_->FindStep(*options_.step, ModeOfRun(options_, *trial_)));
      step = info.global_step;
    } else {  // the newest step that has values
      for (std::size_t n = steps; n-- > 0 && !wanted;) {
        query::Trial::StepContents contents;
        LUFF_RETURN_IF_ERROR(trial_->ReadStepContents(n, &contents));
        const bool any = std::any_of(contents.values.begin(), contents.values.end(), [&](const auto& value) {
          return choice_.Takes(value.tensor, value.worker);
        });
        if (any && choice_.TakesStep(trial_->step_at(n))) wanted = n;
      }
      if (!wanted)
        return OutOfRange(
            "no value of what is wanted was saved at any step; values are recorded of collections whose "
            "forms hold \"raw\" (docs/capture.md): " +
            trial_->path());
      step = trial_->step_at(*wanted).global_step;
    }
    for (std::size_t n = steps; n-- > 0 && !wanted;) {
      const query::StepInfo info = trial_->step_at(n);
      if (info.global_step == step && !info.superseded) wanted = n;
    }
    LUFF_ASSIGN_OR_RETURN(const auto written,
                          ExportSafetensors(*trial_, choice_, wanted.value_or(0), out_,
                                            options_.force ? Existing::kReplace : Existing::kRefuse));
    for (const std::string& remark : written.remarks) fmt::print(stderr, "luff: {}\n", Escaped(remark));
    fmt::print("{} values of step {} written to {}\n", written.values, step, Escaped(out_));
    return Status::Ok();
  }

  Status Trace() {
    TraceChoice choice;
    const StepRange range = StepRangeOrExit(options_.steps);
    choice.from = range.from;
    choice.to = range.to;
    choice.worker = options_.worker;
    if (!options_.mode.empty()) {
      LUFF_ASSIGN_OR_RETURN(choice.mode, query::ParseMode(options_.mode));
    }
    const auto format = options_.to == "chrome" ? MakeChromeTrace() : MakePerfettoTrace();
    GiveLargeBlocksBack();
    LUFF_ASSIGN_OR_RETURN(const auto run, query::RunStream::Open(options_.run));
    LUFF_ASSIGN_OR_RETURN(const auto written,
                          ExportTrace(*run, choice, format.get(), out_,
                                      options_.force ? Existing::kReplace : Existing::kRefuse));
    for (const std::string& remark : written.remarks) fmt::print(stderr, "luff: {}\n", Escaped(remark));
    fmt::print(
        "{} steps, {} findings{} and {} series of the machine, {} written to {}\n", written.steps,
        written.findings,
        written.traces == 0 ? "" : ", " + Plural(written.traces, "trace of operators", "traces of operators"),
        written.series, SizeText(written.bytes), Escaped(out_));
    return Status::Ok();
  }

  [[nodiscard]] Json Identity() const {
    return {{"format", options_.to},
            {"created_unix_ns", trial_->created_unix_ns()},
            {"tensors", options_.regex},
            {"collection", options_.collection},
            {"mode", std::string(query::ModeName(choice_.mode))},
            {"worker", options_.worker ? Json(*options_.worker) : Json(nullptr)}};
  }

  /// Opens the output folder and reads the state of an earlier export. Returns true if that is complete.
  Result<bool> Prepare() {
    Env& env = Env::Real();
    const std::string path = out_ + "/" + kStateFile;
    if (!env.Exists(path)) {
      if (env.Exists(out_)) {
        LUFF_ASSIGN_OR_RETURN(const auto names, env.List(out_));
        if (!names.empty()) {
          return AlreadyExists(
              "the output directory is not empty and holds no export of luff's; give another one: " + out_);
        }
      }
      LUFF_ASSIGN_OR_RETURN(folder_, OutputFolder::Open(out_));
      LUFF_RETURN_IF_ERROR(SaveState(false));
      return false;
    }
    LUFF_ASSIGN_OR_RETURN(folder_, OutputFolder::Open(out_));
    LUFF_ASSIGN_OR_RETURN(const std::string text, ReadRegular(path, 64U << 20, 1));
    try {
      const Json json = ParseOrderedJson(text);
      if (json.at("what") != Identity()) {
        return FailedPrecondition(
            "the output directory holds an export of another run, format or choice; give another one: " +
            out_);
      }
      state_.steps = json.at("steps").get<std::size_t>();
      for (const auto& [name, bytes] : json.at("files").items()) {
        state_.files[name] = bytes.get<std::uint64_t>();
      }
      before_ = state_.steps;
      return json.at("done").get<bool>() && state_.steps == trial_->step_count();
    } catch (const std::exception& error) {
      return Corruption(std::string("cannot be read (") + error.what() +
                        "); remove the output directory to begin anew: " + path);
    }
  }

  Status SaveState(bool done) const {
    Json json;
    json["what"] = Identity();
    json["steps"] = state_.steps;
    json["files"] = Json::object();
    for (const auto& [name, bytes] : state_.files) json["files"][name] = bytes;
    json["done"] = done;
    return folder_.Write(kStateFile, JsonText(json, 1) + "\n");
  }

  Status WriteAll() {
    LUFF_RETURN_IF_ERROR(exporter_->Begin(*trial_, state_));
    query::Trial::StepRows rows;
    Clock::time_point flushed = Clock::now();
    bool closed = false;
    for (;;) {
      bool news = false;
      for (; state_.steps < trial_->step_count(); ++state_.steps) {
        const query::StepInfo info = trial_->step_at(state_.steps);
        if (choice_.TakesStep(info)) {
          LUFF_RETURN_IF_ERROR(trial_->ReadStepRows(state_.steps, &rows));
          InOrder(&rows.summaries);
          InOrder(&rows.scalars);
          LUFF_RETURN_IF_ERROR(exporter_->Step(*trial_, state_.steps, rows));
        }
        news = true;
        Tell();
        if (Clock::now() - flushed < kFlushEvery) continue;
        flushed = Clock::now();
        ++state_.steps;
        const Status saved = Flush(false);
        --state_.steps;
        LUFF_RETURN_IF_ERROR(saved);
      }
      if (!options_.follow || closed || trial_->loaded_all_steps()) break;
      if (news) LUFF_RETURN_IF_ERROR(Flush(false));
      // After the job has ended, dead workers are detected within kClosingTime.
      if (!closing_ && options_.until_closed && StdinClosed()) closing_ = Clock::now() + kClosingTime;
      closed = closing_ && Clock::now() > *closing_;
      LUFF_ASSIGN_OR_RETURN(const bool more, trial_->WaitForNews(kLookEvery));
      if (more) LUFF_RETURN_IF_ERROR(choice_.Update(*trial_));
    }
    const bool over = trial_->loaded_all_steps();
    LUFF_RETURN_IF_ERROR(exporter_->End(*trial_, over));
    return Flush(over);
  }

  Status Flush(bool done) {
    LUFF_RETURN_IF_ERROR(exporter_->Flush(&state_));
    return SaveState(done);
  }

  void Tell() {
    if (!told_ || Clock::now() - said_ < kTellEvery) return;
    said_ = Clock::now();
    fmt::print(stderr, "\r\033[Kstep {} of {}, {}", state_.steps + 1, trial_->step_count(),
               SizeText(exporter_->bytes()));
    std::fflush(stderr);
  }

  const ExportOptions& options_;
  std::string out_;
  OutputFolder folder_;
  bool told_;
  std::unique_ptr<query::Trial> trial_;
  ExportChoice choice_;
  ExportState state_;
  std::size_t before_ = 0;
  std::unique_ptr<Exporter> exporter_;
  Clock::time_point said_;
  std::optional<Clock::time_point> closing_;
};

/// Becomes the Python program that writes Parquet.
[[noreturn]] void ExportInPython(const ExportOptions& options) {
  std::vector<std::string> words = {"--to=" + options.to,
                                    "--mode=" + std::string(options.mode.empty() ? "GLOBAL" : options.mode)};
  if (!options.regex.empty()) words.push_back("--tensors=" + options.regex);
  if (!options.collection.empty()) words.push_back("--collection=" + options.collection);
  if (options.worker) words.push_back("--worker=" + std::to_string(*options.worker));
  words.insert(words.end(), {"--", options.run, options.out});
  BecomePython("export", words, "Parquet needs Python with pyarrow");
}

}  // namespace

void Exporter::Remark(std::string text) {
  constexpr std::size_t kMost = 20;
  if (remarks_.size() < kMost && std::find(remarks_.begin(), remarks_.end(), text) == remarks_.end())
    remarks_.push_back(std::move(text));
}

Status ExportChoice::Update(const query::Trial& trial) {
  if (wanted.size() == trial.tensor_count() && collection.empty()) return Status::Ok();
  query::Trial::NameFilter filter;
  filter.regex = regex;
  filter.collection = collection;
  const auto names = trial.TensorNames(filter);
  if (!names.ok() && names.status().code() != StatusCode::kNotFound) return names.status();
  wanted.assign(trial.tensor_count(), 0);
  if (!names.ok()) return wanted.empty() ? Status::Ok() : names.status();
  for (const std::string& name : *names) {
    LUFF_ASSIGN_OR_RETURN(const query::TensorId id, trial.FindTensor(name));
    wanted[id] = 1;
  }
  return Status::Ok();
}

void AddExport(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("export", "Write a run in the format of another program");
  auto options = std::make_shared<ExportOptions>();
  verb->add_option("RUN", options->run, kRunHelp)->required();
  verb->add_option("OUT", options->out,
                   "The directory to write; of safetensors, perfetto and chrome the file")
      ->required();
  verb->add_option("--to", options->to, "smdebug, tensorboard, csv, parquet, safetensors, perfetto or chrome")
      ->required();
  verb->add_option("--tensors", options->regex, "Only tensors whose names match this expression");
  verb->add_option("--collection", options->collection, "Only tensors of this collection");
  verb->add_option("--step", options->step, "The step of safetensors; default: the newest with values");
  verb->add_option("--steps", options->steps,
                   "Of perfetto and chrome: only these TRAIN steps, FROM:TO, both included");
  verb->add_flag("--force", options->force, "Replace an existing file of safetensors, perfetto or chrome");
  verb->add_flag("--profiler", options->profiler,
                 "Of smdebug: where the time went, in the layout of its profiler, instead of tensors");
  verb->add_flag("--follow", options->follow, "Continue until the job has ended");
  verb->add_flag("--until-closed", options->until_closed)->group("");
  AddModeOption(verb, options.get());
  verb->footer("After an interruption, the same command continues where it stopped.");
  verb->callback([options] {
    FindRunOrExit(&options->run);
    const auto known = std::find(std::begin(kFormats), std::end(kFormats), options->to);
    if (known == std::end(kFormats)) {
      ExitWithError(InvalidArgument(fmt::format(
          "'{}' is no format; there are smdebug, tensorboard, csv, parquet, safetensors, perfetto and chrome",
          options->to)));
    }
    if (options->step && options->to != "safetensors")
      ExitWithError(InvalidArgument("--step goes with --to safetensors; the other formats hold all steps"));
    if (!options->steps.empty() && !IsTrace(options->to))
      ExitWithError(InvalidArgument("--steps goes with --to perfetto and chrome"));
    if (IsTrace(options->to) && !(options->regex.empty() && options->collection.empty()))
      ExitWithError(InvalidArgument(
          "--tensors and --collection choose tensors; perfetto and chrome show where the time went"));
    if (options->force && !IsOneFile(options->to))
      ExitWithError(InvalidArgument(
          "--force goes with --to safetensors, perfetto and chrome; the other formats fill a directory of "
          "their own"));
    if (options->follow && (options->to == "parquet" || IsOneFile(options->to)))
      ExitWithError(InvalidArgument("--follow goes with --to smdebug, tensorboard and csv"));
    if (options->profiler) {
      if (options->to != "smdebug" || options->follow || options->worker || !options->mode.empty() ||
          !options->regex.empty() || !options->collection.empty())
        ExitWithError(InvalidArgument("--profiler goes with --to smdebug, and without what chooses tensors"));
      BecomePython("profiler",
                   {"export", options->run, fs::absolute(options->out).lexically_normal().string()},
                   "the layout of smdebug's profiler is written by Luff's Python package");
    }
    if (options->to == "parquet") ExportInPython(*options);
    try {
      const Status status = Export(*options).Run();
      if (status.code() == StatusCode::kCancelled) ExitWith(kExitOk);
      if (!status.ok()) ExitWithError(status);
    } catch (const fs::filesystem_error& error) {
      ExitWithError(IoError(error.what()));
    }
    ExitWith(kExitOk);
  });
}

}  // namespace luff::cli
