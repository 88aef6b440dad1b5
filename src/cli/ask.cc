#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "base/format.h"
#include "base/json.h"
#include "base/nearest_names.h"
#include "base/owned_fd.h"
#include "base/python_child.h"
#include "cli/json.h"
#include "cli/kept_actions.h"
#include "cli/key_option.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "keys/gate.h"
#include "keys/order.h"
#include "luff/actions/coordinate.h"
#include "luff/actions/requests.h"
#include "luff/base/env.h"
#include "luff/base/process.h"
#include "luff/base/regex.h"
#include "luff/capture/config.h"
#include "luff/profile/kineto_trace.h"
#include "luff/store/owner.h"

/// `luff stop`, `luff capture`, `luff trace` and `luff request`: ask a running job for something, and follow
/// what becomes of it.
namespace luff::cli {
namespace {

using actions::Asked;

struct AskOptions : ReadOptions {
  std::string reason, key;
  std::string url;  // of the run, where it lies in a bucket: then `run` is a copy of it
  double wait_s = 60;
  bool no_wait = false;
};

struct TraceOptions : AskOptions {
  std::int64_t steps = 3;
  bool stacks = false;
};

struct NumberOptions : AskOptions {
  double factor = 0;
  std::int64_t step = -1;
};

struct CaptureOptions : AskOptions {
  std::vector<std::string> include, tensors, roles, forms{"summary", "raw"};
  std::string name = "requested";
  std::int64_t every = 1, for_steps = 0, max_mib = 0;
};

constexpr std::int64_t kLastAnswersNs = 15'000'000'000;  // for what was uploaded last to arrive in a copy
volatile std::sig_atomic_t g_interrupted = 0;

void Interrupt(int) { g_interrupted = 1; }

void Interruptible() {
  signal(SIGINT, Interrupt);
  signal(SIGTERM, Interrupt);
}

std::string Told(const Asked& asked) {
  switch (asked.state) {
    case Asked::State::kAsked: return "asked; waiting for whoever watches the job";
    case Asked::State::kProposed:
      return fmt::format("proposed to all ranks, for after {} TRAIN steps", asked.train_step);
    case Asked::State::kCommitted: return fmt::format("all agreed on {} TRAIN steps", asked.train_step);
    case Asked::State::kDone: {
      std::string text = asked.action == "stop"      ? "done: the job leaves"
                         : asked.action == "capture" ? "done: it is recorded from now on"
                         : asked.action == "trace"   ? "done: the next steps are traced"
                                                     : "done";
      if (asked.train_step >= 0) text += fmt::format(", after {} TRAIN steps", asked.train_step);
      return asked.why.empty() ? text : text + "; " + asked.why;
    }
    case Asked::State::kRefused: return "refused, in all ranks: " + asked.why;
    case Asked::State::kFailed: return "failed: " + asked.why;
  }
  return "";
}

Asked StateOf(const std::string& run, std::uint64_t number) {
  const auto records = store::ReadControl(run, 0, nullptr);
  if (records.ok()) {
    for (Asked& asked : actions::RequestsIn(*records)) {
      if (asked.number == number) return std::move(asked);
    }
  }
  return {};
}

/// Prints each new state until the answer is there, or time is up.
Asked Follow(const AskOptions& options, std::uint64_t number) {
  Interruptible();
  const std::int64_t until = Env::Real().NowMonotonicNs() + static_cast<std::int64_t>(options.wait_s * 1e9);
  std::string said;
  Asked asked;
  const auto over = [&] {
    asked = StateOf(options.run, number);
    const std::string text = Told(asked);
    if (asked.number != 0 && text != said && !options.json) {
      fmt::print(stderr, "luff: request {}: {}\n", number, Escaped(text));
      said = text;
    }
    return asked.answered() || g_interrupted != 0 || Env::Real().NowMonotonicNs() >= until;
  };
  while (!over()) {
    if (const Status done = actions::Coordinate(options.run, number, over, keys::GateOfRun(options.run));
        !done.ok() && done.code() != StatusCode::kAlreadyExists)
      ExitWithError(done);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // a supervisor answers
  }
  return asked;
}

/// Waits until every rank that goes on training has made the trace, or told why not; prints where they are.
/// One that is missing when time is up has neither a file nor a reason. `all`: whether there are all files.
Json WaitForTraces(const AskOptions& options, std::int64_t train_step, bool* all) {
  const std::int64_t until = Env::Real().NowMonotonicNs() + static_cast<std::int64_t>(options.wait_s * 1e9);
  std::map<std::uint32_t, profile::TraceFile> made;
  const auto trial = OpenOrExit(options);
  std::vector<std::uint32_t> waiting;
  for (;;) {
    waiting.clear();
    const auto news = trial->RefreshAll();
    static_cast<void>(news);  // what cannot be read now is read later
    for (const query::WorkerInfo& worker : trial->workers()) {
      if (made.contains(worker.worker)) continue;
      for (profile::TraceFile& file : profile::TracesOf(*trial, worker.worker)) {
        if (file.first_step >= train_step) made.emplace(worker.worker, std::move(file));
      }
      if (!made.contains(worker.worker) && worker.alive && !worker.ended) waiting.push_back(worker.worker);
    }
    if (waiting.empty() || g_interrupted != 0 || Env::Real().NowMonotonicNs() >= until) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  *all = waiting.empty();
  Json traces = Json::array();
  for (const auto& [worker, file] : made) {
    *all = *all && file.refused.empty();
    const std::string path = fmt::format("{}/w{:04}/{}", options.run, worker, file.file);
    if (!options.json)
      fmt::print(stderr, "luff: worker {}: {}\n", worker,
                 Escaped(file.refused.empty() ? path : "no trace: " + file.refused));
    traces.push_back({{"worker", worker},
                      {"file", file.refused.empty() ? Json(path) : Json(nullptr)},
                      {"refused", file.refused.empty() ? Json(nullptr) : Json(file.refused)}});
  }
  for (const std::uint32_t worker : waiting)
    traces.push_back({{"worker", worker}, {"file", nullptr}, {"refused", nullptr}});
  if (!options.json) {
    if (!waiting.empty())
      fmt::print(stderr, "luff: not all traces are made yet; `luff profile` tells of them\n");
    else if (!made.empty())
      fmt::print(stderr, "luff: `luff profile {}` sums them up\n", Escaped(options.run));
  }
  return traces;
}

std::string ToldOf(const Asked& asked, std::uint64_t object) {
  if (asked.state != Asked::State::kAsked || asked.number != 0) return Told(asked);
  return fmt::format("lies in the bucket as number {}; waiting for whoever watches the job", object);
}

/// What has become of a request in a bucket, as a copy of the run says: a record of the log if the job took
/// it, a line of its audit if not.
Asked StateInCopy(const std::string& copy, const std::string& signature, std::uint64_t object) {
  if (const auto records = store::ReadControl(copy, 0, nullptr); records.ok()) {
    for (Asked& asked : actions::RequestsIn(*records)) {
      if (asked.signature == signature) return std::move(asked);
    }
  }
  Asked asked;
  const std::string name = fmt::format("request {} of the bucket", object);
  for (const KeptAction& one : ActionsOfRun(copy).actions) {
    if (one.action != name || one.state != "refused") continue;
    asked.state = Asked::State::kRefused;
    asked.why = one.detail;
  }
  return asked;
}

/// The highest number of an object that the job has seen, taken or refused: the bucket may have been cleaned.
std::uint64_t LastObjectIn(const std::string& copy) {
  constexpr std::string_view kBegin = "request ", kEnd = " of the bucket";
  std::uint64_t last = 0;
  if (const auto records = store::ReadControl(copy, 0, nullptr); records.ok()) {
    for (const Asked& asked : actions::RequestsIn(*records)) last = std::max(last, asked.object);
  }
  for (const KeptAction& one : ActionsOfRun(copy).actions) {
    std::string_view name = one.action;
    if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) continue;
    name.remove_prefix(kBegin.size());
    name.remove_suffix(kEnd.size());
    std::uint64_t number = 0;
    const auto [at, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc() && at == name.data() + name.size()) last = std::max(last, number);
  }
  return last;
}

/// Puts an object below `requests` of the run in the bucket. Returns its number.
std::uint64_t PutOrExit(const std::string& url, const std::string& object, std::uint64_t after) {
  auto command = PythonCommand("request");
  if (!command.ok())
    ExitWithError(command.status().WithContext("requests are put into a bucket by Luff's Python package"));
  command->insert(command->end(), {"--after", std::to_string(after), "--", url});
  const OwnedFd text(memfd_create("luff-request", MFD_CLOEXEC)),
      answer(memfd_create("luff-answer", MFD_CLOEXEC));
  if (!text.valid() || !answer.valid() ||
      pwrite(text.get(), object.data(), object.size(), 0) != static_cast<ssize_t>(object.size()))
    ExitWithError(IoError("no memory for the request"));
  ProcessOptions process;
  process.argv = std::move(command).value();
  process.stdin_fd = text.get();
  process.stdout_fd = answer.get();
  process.dies_with_parent = true;
  const pid_t child = ValueOrExit(StartProcess(process));
  const ExitState state = DecodeStatus(WaitFor(child));
  char said[4096];
  const ssize_t got = pread(answer.get(), said, sizeof(said), 0);
  std::string words(said, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  while (words.ends_with('\n')) words.pop_back();
  std::uint64_t number = 0;
  const auto [at, error] = std::from_chars(words.data(), words.data() + words.size(), number);
  if (state.code == 0 && error == std::errc() && number != 0) return number;
  ExitWithError(Status(StatusCode::kUnavailable,
                       words.empty() ? "the process that puts requests ended without a word" : words));
}

/// A worker that is silent may come again: only its word says that it has ended.
bool HasEnded(const query::Trial& trial) {
  const auto workers = trial.workers();
  return !workers.empty() && std::ranges::all_of(workers, &query::WorkerInfo::ended);
}

/// Asks through the bucket, and follows the answer in the copy of the run.
void AskInBucket(const AskOptions& options, std::string_view action, const std::string& arguments) {
  const auto trial = OpenOrExit(options);  // while it is open, the copy is brought up to date
  const keys::SecretKey key = KeyOrExit(options.key);
  if (HasEnded(*trial))
    ExitWithError(FailedPrecondition("the job has ended, so nobody could do it: " + options.url));
  ExitUnlessAllowed(key, options.run, action);
  auto record = ValueOrExit(actions::RequestRecord(action, arguments, options.reason, actions::Author()));
  if (const Status done = keys::SignRecord(key, RunIdOrExit(options.run), kSignedForNs, &record); !done.ok())
    ExitWithError(done);
  const std::uint64_t object = PutOrExit(options.url, keys::ObjectText(record), LastObjectIn(options.run));
  Interruptible();
  const std::int64_t until =
      Env::Real().NowMonotonicNs() + static_cast<std::int64_t>(options.no_wait ? 0 : options.wait_s * 1e9);
  std::string said;
  Asked asked;
  std::int64_t ended_ns = Env::Real().NowMonotonicNs();
  for (;;) {
    asked = StateInCopy(options.run, record.signature, object);
    if (const std::string text = ToldOf(asked, object); text != said && !options.json) {
      fmt::print(stderr, "luff: request: {}\n", Escaped(text));
      said = text;
    }
    if (asked.answered() || g_interrupted != 0 || Env::Real().NowMonotonicNs() >= until) break;
    const Result<bool> news = trial->Refresh();
    static_cast<void>(news);  // what cannot be read now is read later
    const std::int64_t now = Env::Real().NowMonotonicNs();
    if (!HasEnded(*trial)) ended_ns = now;
    if (now - ended_ns > kLastAnswersNs) break;  // nobody answers any more
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
  }
  if (options.json) {
    PrintJson({{"object", object},
               {"request", asked.number},
               {"action", action},
               {"state", actions::StateName(asked.state)},
               {"train_step", asked.train_step},
               {"why", asked.why}});
  } else if (!asked.answered() && !options.no_wait) {
    fmt::print(stderr, "luff: the request has no answer yet; `luff show {}` tells what becomes of it\n",
               Escaped(options.url));
  }
  ExitWith(asked.state == Asked::State::kDone || options.no_wait ? kExitOk : kExitFindings);
}

void AskFor(const AskOptions& options, std::string_view action, const std::string& arguments) {
  if (!options.url.empty()) return AskInBucket(options, action, arguments);
  (void)OpenOrExit(options);
  if (!actions::IsTraining(options.run)) {
    ExitWithError(
        FailedPrecondition("no process trains into this run now, so nobody could do it: " + options.run));
  }
  const std::uint64_t number =
      ValueOrExit(actions::Ask(options.run, action, arguments, options.reason, actions::Author(),
                               SignerOrExit(options.key, options.run, action)));
  const bool watched = store::SupervisorLock::IsTaken(options.run);
  if (options.no_wait && !watched)
    fmt::print(stderr,
               "luff: nobody watches this job, so --no-wait is ignored: this process answers itself\n");
  Asked asked = options.no_wait && watched ? StateOf(options.run, number) : Follow(options, number);
  const bool traced = action == "trace" && asked.state == Asked::State::kDone;
  bool all_traces = true;
  const Json traces = traced ? WaitForTraces(options, asked.train_step, &all_traces) : Json();
  if (options.json) {
    Json answer{{"request", number},
                {"action", action},
                {"state", actions::StateName(asked.state)},
                {"train_step", asked.train_step},
                {"why", asked.why}};
    if (traced) answer["traces"] = traces;
    PrintJson(answer);
  } else if (options.no_wait && watched) {
    fmt::print(stderr, "luff: request {}: {}\n", number, Told(asked));
  } else if (!asked.answered()) {
    fmt::print(stderr, "luff: request {} has no answer yet; `luff show` tells what becomes of it\n", number);
  }
  const bool done = asked.state == Asked::State::kDone && all_traces;
  ExitWith(done || options.no_wait ? kExitOk : kExitFindings);
}

/// Tells of what nothing that the run has recorded so far is called. A tensor that was never captured may
/// have no name yet, so the request is made all the same.
void TellOfNoMatch(const CaptureOptions& options) {
  const auto trial = OpenOrExit(options);
  std::vector<std::string> names;
  for (std::size_t n = 0; n < trial->tensor_count(); ++n)
    names.push_back(trial->tensor(static_cast<query::TensorId>(n)).name);
  const auto tell = [&](const std::string& word) {
    fmt::print(stderr, "luff: no tensor of the run is called '{}'{}; it is recorded if it comes\n",
               Escaped(word), Escaped(NearestText(word, names)));
  };
  for (const std::string& word : options.include) {
    const auto regex = Regex::Compile(word);
    if (!regex.ok()) ExitWithError(regex.status().WithContext("--include"));
    if (std::ranges::none_of(names, [&](const std::string& name) { return regex->Search(name); })) tell(word);
  }
  for (const std::string& word : options.tensors) {
    if (std::ranges::find(names, word) == names.end()) tell(word);
  }
}

void Capture(const CaptureOptions& options) {
  if (options.include.empty() && options.tensors.empty() && options.roles.empty())
    ExitWithError(InvalidArgument("what is to be recorded? Give --include, --tensor or --role"));
  Json collection{{"name", options.name}, {"forms", options.forms}};
  if (!options.include.empty()) collection["include"] = options.include;
  if (!options.tensors.empty()) collection["tensor_names"] = options.tensors;
  if (!options.roles.empty()) collection["roles"] = options.roles;
  if (options.max_mib > 0) collection["max_bytes"] = options.max_mib << 20;
  collection["save"] = {{"save_interval", options.every}};
  Json arguments{{"collections", Json::array({collection})}};
  // The workers refuse what is wrong without a reason: the mistake is told here.
  if (const auto parsed = capture::ParseConfigUntrusted(JsonText(arguments)); !parsed.ok())
    ExitWithError(parsed.status());
  if (options.for_steps > 0) arguments["for_steps"] = options.for_steps;
  TellOfNoMatch(options);
  AskFor(options, "capture", JsonText(arguments));
}

void AddAskOptions(CLI::App* verb, AskOptions* options, const char* help) {
  verb->add_option("RUN", options->run, help)->required();
  AddKeyOption(verb, &options->key);
  verb->add_option("--reason", options->reason, "Why; stands in the run's records");
  verb->add_option("--wait-s", options->wait_s, "How long to wait for the answer")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  verb->add_flag("--no-wait", options->no_wait, "Only ask; whoever watches the job does the rest");
  verb->add_flag("--json", options->json, "The answer as JSON");
}

/// Finds the run of `luff request`: a directory, or a copy of what is in a bucket.
void FindOrExit(AskOptions* options, std::string_view verb, bool bucket) {
  if (!bucket && IsUrl(options->run))
    ExitWithError(InvalidArgument(fmt::format(
        "luff {0} asks the job on its own host; through its bucket: luff request {0} {1} --key FILE", verb,
        options->run)));
  if (!bucket) return FindOwnRunOrExit(&options->run);
  if (IsUrl(options->run)) options->url = options->run;
  FindRunOrExit(&options->run);
}

constexpr const char* kStopHelp =
    "The training runs its checkpoint call-backs and raises StopTraining at a step that all ranks agree "
    "on.\n"
    "Exit code 0: they did; 1: refused, or no answer; 2: no such run, or nobody trains.";

/// `bucket`: the verb is one of `luff request`, and also takes URLs.
void AddStopTo(CLI::App& app, bool bucket) {
  CLI::App* verb = app.add_subcommand("stop", "Stop a running job: all ranks leave after the same step");
  auto options = std::make_shared<AskOptions>();
  AddAskOptions(verb, options.get(), bucket ? kRunHelp : kOwnRunHelp);
  verb->footer(kStopHelp);
  verb->callback([options, bucket] {
    FindOrExit(options.get(), "stop", bucket);
    AskFor(*options, "stop", "");
  });
}

void AddCaptureTo(CLI::App& app, bool bucket) {
  CLI::App* verb =
      app.add_subcommand("capture", "Record more of a running job, from a step that all ranks agree on");
  auto options = std::make_shared<CaptureOptions>();
  AddAskOptions(verb, options.get(), bucket ? kRunHelp : kOwnRunHelp);
  verb->add_option("--include", options->include, "Tensors whose names match this regex; may be repeated")
      ->allow_extra_args(false);
  verb->add_option("--tensor", options->tensors, "A tensor by its exact name; may be repeated")
      ->allow_extra_args(false);
  verb->add_option("--role", options->roles, "weight, gradient, activation, ...; may be repeated")
      ->allow_extra_args(false);
  verb->add_option("--forms", options->forms, "What to record: summary,histogram,raw,...")
      ->delimiter(',')
      ->capture_default_str();
  verb->add_option("--every", options->every, "Every how many TRAIN steps")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000}))
      ->capture_default_str();
  verb->add_option("--for-steps", options->for_steps, "For how many TRAIN steps; then it ends by itself")
      ->required()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000}));
  verb->add_option("--max-mib", options->max_mib, "At most so much of raw values; 0: no limit of its own")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30));
  verb->add_option("--name", options->name, "Of the new collection")->capture_default_str();
  verb->footer("What the job records already goes on. Results of the training stay the same, bit by bit.");
  verb->callback([options, bucket] {
    FindOrExit(options.get(), "capture", bucket);
    Capture(*options);
  });
}

void AddTraceTo(CLI::App& app, bool bucket) {
  CLI::App* verb = app.add_subcommand(
      "trace", "Trace the operators of a few steps of a running job, the same steps in all ranks");
  auto options = std::make_shared<TraceOptions>();
  AddAskOptions(verb, options.get(), bucket ? kRunHelp : kOwnRunHelp);
  verb->add_option("--steps", options->steps, "How many TRAIN steps")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{10}))
      ->capture_default_str();
  verb->add_flag("--stacks", options->stacks, "With functions of Python; the traced steps take longer");
  verb->footer(
      "The profiler of PyTorch, TensorFlow or JAX writes a file for each rank into RUN/wNNNN/traces, which\n"
      "`luff profile RUN` sums up; ui.perfetto.dev opens that of PyTorch. Results of the training stay the "
      "same, bit by bit.\n"
      "Exit code 0: done; 1: refused, no answer, or a trace is missing; 2: no such run, or nobody trains.");
  verb->callback([options, bucket] {
    FindOrExit(options.get(), "trace", bucket);
    Json arguments{{"steps", options->steps}};
    if (options->stacks) arguments["stacks"] = true;
    AskFor(*options, "trace", JsonText(arguments));
  });
}

void AddCorrectionsTo(CLI::App& app) {
  auto lower = std::make_shared<NumberOptions>(), skip = std::make_shared<NumberOptions>(),
       back = std::make_shared<NumberOptions>();
  CLI::App* verb =
      app.add_subcommand("lower_lr", "Multiply the learning rates, if the training has opted in");
  AddAskOptions(verb, lower.get(), kRunHelp);
  verb->add_option("--factor", lower->factor, "Between 0 and 1")->required();
  verb->callback([lower] {
    FindOrExit(lower.get(), "lower_lr", true);
    AskFor(*lower, "lower_lr", JsonText(Json{{"factor", lower->factor}}));
  });
  verb = app.add_subcommand("skip_batch", "Skip a batch, if the training has opted in");
  AddAskOptions(verb, skip.get(), kRunHelp);
  verb->callback([skip] {
    FindOrExit(skip.get(), "skip_batch", true);
    AskFor(*skip, "skip_batch", "");
  });
  verb = app.add_subcommand("rollback", "Go back to a checkpoint, if the training has opted in");
  AddAskOptions(verb, back.get(), kRunHelp);
  verb->add_option("--step", back->step, "The TRAIN step at which the trouble began, from 0")->required();
  verb->callback([back] {
    FindOrExit(back.get(), "rollback", true);
    AskFor(*back, "rollback", JsonText(Json{{"step", back->step}}));
  });
}

}  // namespace

void AddStop(CLI::App& app) { AddStopTo(app, false); }
void AddCapture(CLI::App& app) { AddCaptureTo(app, false); }
void AddTrace(CLI::App& app) { AddTraceTo(app, false); }

void AddRequest(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("request", "Ask a running job for something, also through its bucket");
  verb->require_subcommand(1);
  AddStopTo(*verb, true);
  AddCorrectionsTo(*verb);
  AddCaptureTo(*verb, true);
  AddTraceTo(*verb, true);
  verb->footer(
      "A job takes requests from a bucket only if they are signed by one of its keys ([control] keys of its "
      "luff.toml).\n"
      "Exit code 0: done; 1: refused, or no answer; 2: no such run, or the job would refuse it.");
}

}  // namespace luff::cli
