#include <algorithm>
#include <csignal>
#include <map>
#include <thread>

#include "base/format.h"
#include "base/json.h"
#include "base/nearest_names.h"
#include "cli/json.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/actions/coordinate.h"
#include "luff/actions/requests.h"
#include "luff/base/env.h"
#include "luff/base/regex.h"
#include "luff/capture/config.h"
#include "luff/profile/kineto_trace.h"
#include "luff/store/owner.h"

/// `luff stop`, `luff capture` and `luff trace`: ask a running job for something, and follow what becomes of
/// it.
namespace luff::cli {
namespace {

using actions::Asked;

struct AskOptions : ReadOptions {
  std::string reason;
  double wait_s = 60;
  bool no_wait = false;
};

struct TraceOptions : AskOptions {
  std::int64_t steps = 3;
  bool stacks = false;
};

struct CaptureOptions : AskOptions {
  std::vector<std::string> include, tensors, roles, forms{"summary", "raw"};
  std::string name = "requested";
  std::int64_t every = 1, for_steps = 0, max_mib = 0;
};

volatile std::sig_atomic_t g_interrupted = 0;

void Interrupt(int) { g_interrupted = 1; }

std::string Told(const Asked& asked) {
  switch (asked.state) {
    case Asked::State::kAsked: return "asked; waiting for whoever watches the job";
    case Asked::State::kProposed:
      return fmt::format("proposed to all ranks, for after {} TRAIN steps", asked.train_step);
    case Asked::State::kCommitted: return fmt::format("all agreed on step {}", asked.train_step);
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
  signal(SIGINT, Interrupt);
  signal(SIGTERM, Interrupt);
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
    if (const Status done = actions::Coordinate(options.run, number, over);
        !done.ok() && done.code() != StatusCode::kAlreadyExists)
      ExitWithError(done);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // a supervisor answers
  }
  return asked;
}

/// Waits until every rank that goes on training has made the trace, or told why not; prints where they are.
Json WaitForTraces(const AskOptions& options, std::int64_t train_step) {
  const std::int64_t until = Env::Real().NowMonotonicNs() + static_cast<std::int64_t>(options.wait_s * 1e9);
  std::map<std::uint32_t, profile::TraceFile> made;
  const auto trial = OpenOrExit(options);
  bool waiting = true;
  while (waiting) {
    waiting = false;
    if (const auto news = trial->RefreshAll(); !news.ok()) ExitWithError(news.status());
    for (const query::WorkerInfo& worker : trial->workers()) {
      if (made.contains(worker.worker)) continue;
      for (profile::TraceFile& file : profile::TracesOf(*trial, worker.worker)) {
        if (file.first_step >= train_step) made.emplace(worker.worker, std::move(file));
      }
      waiting = waiting || (!made.contains(worker.worker) && worker.alive && !worker.ended);
    }
    if (g_interrupted != 0 || Env::Real().NowMonotonicNs() >= until) break;
    if (waiting) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  Json traces = Json::array();
  for (const auto& [worker, file] : made) {
    const std::string path = fmt::format("{}/w{:04}/{}", options.run, worker, file.file);
    if (!options.json)
      fmt::print(stderr, "luff: worker {}: {}\n", worker,
                 Escaped(file.refused.empty() ? path : "no trace: " + file.refused));
    traces.push_back({{"worker", worker},
                      {"file", file.refused.empty() ? Json(path) : Json(nullptr)},
                      {"refused", file.refused.empty() ? Json(nullptr) : Json(file.refused)}});
  }
  if (!options.json) {
    if (waiting) fmt::print(stderr, "luff: not all traces are made yet; `luff profile` tells of them\n");
    else if (!made.empty()) fmt::print(stderr, "luff: `luff profile {}` sums them up\n", Escaped(options.run));
  }
  return traces;
}

void AskFor(const AskOptions& options, std::string_view action, const std::string& arguments) {
  (void)OpenOrExit(options);
  if (!actions::IsTraining(options.run)) {
    ExitWithError(
        FailedPrecondition("no process trains into this run now, so nobody could do it: " + options.run));
  }
  const std::uint64_t number =
      ValueOrExit(actions::Ask(options.run, action, arguments, options.reason, actions::Author()));
  const bool watched = store::SupervisorLock::IsTaken(options.run);
  if (options.no_wait && !watched)
    fmt::print(stderr,
               "luff: nobody watches this job, so --no-wait is ignored: this process answers itself\n");
  Asked asked = options.no_wait && watched ? StateOf(options.run, number) : Follow(options, number);
  const bool traced = action == "trace" && asked.state == Asked::State::kDone;
  const Json traces = traced ? WaitForTraces(options, asked.train_step) : Json();
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
  ExitWith(asked.state == Asked::State::kDone || options.no_wait ? kExitOk : kExitFindings);
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

void AddAskOptions(CLI::App* verb, AskOptions* options) {
  verb->add_option("RUN", options->run, kOwnRunHelp)->required();
  verb->add_option("--reason", options->reason, "Why; stands in the run's records");
  verb->add_option("--wait-s", options->wait_s, "How long to wait for the answer")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  verb->add_flag("--no-wait", options->no_wait, "Only ask; whoever watches the job does the rest");
  verb->add_flag("--json", options->json, "The answer as JSON");
}

}  // namespace

void AddStop(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("stop", "Stop a running job: all ranks leave after the same step");
  auto options = std::make_shared<AskOptions>();
  AddAskOptions(verb, options.get());
  verb->footer(
      "The training runs its checkpoint call-backs and raises StopTraining at a step that all ranks agree "
      "on.\n"
      "Exit code 0: they did; 1: refused, or no answer; 2: no such run, or nobody trains.");
  verb->callback([options] {
    FindOwnRunOrExit(&options->run);
    AskFor(*options, "stop", "");
  });
}

void AddCapture(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("capture", "Record more of a running job, from a step that all ranks agree on");
  auto options = std::make_shared<CaptureOptions>();
  AddAskOptions(verb, options.get());
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
  verb->callback([options] {
    FindOwnRunOrExit(&options->run);
    Capture(*options);
  });
}

void AddTrace(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "trace", "Trace the operators of a few steps of a running job, the same steps in all ranks");
  auto options = std::make_shared<TraceOptions>();
  AddAskOptions(verb, options.get());
  verb->add_option("--steps", options->steps, "How many TRAIN steps")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{10}))
      ->capture_default_str();
  verb->add_flag("--stacks", options->stacks, "With functions of Python; the traced steps take longer");
  verb->footer(
      "The profiler of PyTorch writes a file for each rank, RUN/wNNNN/traces/*.json, which `luff profile "
      "RUN`\n"
      "sums up, and which ui.perfetto.dev opens. Results of the training stay the same, bit by bit.");
  verb->callback([options] {
    FindOwnRunOrExit(&options->run);
    Json arguments{{"steps", options->steps}};
    if (options->stacks) arguments["stacks"] = true;
    AskFor(*options, "trace", JsonText(arguments));
  });
}

}  // namespace luff::cli
