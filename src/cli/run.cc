#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <fmt/chrono.h>

#include "base/format.h"
#include "base/json.h"
#include "base/output_file.h"
#include "base/python_child.h"
#include "catalog/catalog.h"
#include "catalog/labels.h"
#include "cli/config_file.h"
#include "cli/job_file.h"
#include "cli/json.h"
#include "cli/log_keeper.h"
#include "cli/reading.h"
#include "cli/serve.h"
#include "cli/supervise.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "cli/verdict.h"
#include "cli/write_report.h"
#include "keys/host_seal.h"
#include "luff/base/env.h"
#include "luff/capture/config.h"
#include "luff/query/trial.h"
#include "luff/store/owner.h"

namespace luff::cli {
namespace {

namespace fs = std::filesystem;

struct RunOptions {
  std::string run, rules_text, set_text, on_finding, stop_on, findings, config, compat;
  std::string tensorboard, smdebug, report, metrics, metrics_token, sync;
  std::string sweep, trial, job;
  bool resume = false, resume_or_new = false, serve = false, otlp = false, log = false;
  std::optional<std::uint64_t> log_bytes, keep_local;
  std::vector<std::string> tags, params, command;
};

// The job's name for people, taken from its script.
std::string JobName(const std::vector<std::string>& command) {
  std::string name = fs::path(command.front()).filename().string();
  for (std::size_t i = 1; i < command.size(); ++i) {
    if (command[i - 1] == "-m") {
      name = command[i];
      break;
    }
    const std::string extension = fs::path(command[i]).extension().string();
    if (extension == ".py" || extension == ".sh") {
      name = fs::path(command[i]).stem().string();
      break;
    }
  }
  std::string clean;
  for (const char c : name)
    clean += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' ? c : '-';
  return clean.substr(0, 40);
}

// An absolute path without a slash at its end, as tab completion makes it: other names are made beside it.
std::string Absolute(const std::string& given) {
  std::string path = fs::absolute(given).lexically_normal().string();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// Reserves the run directory. Creates a new one empty, so that two jobs can never share it.
Result<std::string> ReserveRun(const RunOptions& wanted) {
  Env& env = Env::Real();
  if (!wanted.run.empty()) {
    const std::string path = Absolute(wanted.run);
    if (env.Exists(path)) {
      const Result<std::vector<std::string>> names = env.List(path);
      if (!names.ok()) return names.status().WithContext("--run names something that is no directory");
      const bool is_run = env.Exists(path + "/run.json");
      if (wanted.resume && is_run) {
        const auto opened = query::Trial::Open(path);  // reports a damaged or newer run before the job begins
        if (!opened.ok()) return opened.status().WithContext("--resume cannot go on with this run");
        return path;
      }
      if (is_run) {
        return AlreadyExists(
            "--run names a run that exists already; give --resume to go on with it, or another directory: " +
            path);
      }
      const bool used = std::any_of(names->begin(), names->end(), [](const std::string& name) {
        return name != "supervisor" && name != "log";
      });
      if (used) {
        return FailedPrecondition("--run names a directory that is not empty and no run; give another one: " +
                                  path);
      }
      if (wanted.resume) return FailedPrecondition("--resume was given, but there is no run yet: " + path);
      return path;
    }
    if (wanted.resume) return NotFound("--resume was given, but there is no such run: " + path);
    const fs::path parent = fs::path(path).parent_path();
    Status made;
    if (!env.Exists(parent.string())) made = env.MakeDirectories(parent.string());
    if (made.ok()) made = env.MakeDirectory(path);
    if (!made.ok())
      return made.WithContext(
          "--run names a directory that cannot be made; give one in a place you may write to");
    return path;
  }
  if (wanted.resume) return InvalidArgument("--resume needs --run DIR");
  const std::string home = catalog::Home();
  if (home.empty()) {
    return InvalidArgument(
        "neither LUFF_HOME nor HOME is set, so there is no place for the run; give --run DIR");
  }
  const std::string folder = home + "/runs";
  if (const Status made = env.MakeDirectories(folder); !made.ok())
    return made.WithContext("no run can be made there; give --run DIR, or set LUFF_HOME");
  const auto now = static_cast<std::time_t>(env.NowUnixNs() / 1'000'000'000);
  const std::string stem =
      fmt::format("{}/{:%Y%m%d-%H%M%S}-{}", folder, fmt::localtime(now), JobName(wanted.command));
  for (int number = 1; number < 10000; ++number) {
    const std::string path = number == 1 ? stem : fmt::format("{}-{}", stem, number);
    const Status made = env.MakeDirectory(path);
    if (made.ok()) return path;
    if (made.code() != StatusCode::kAlreadyExists) return made;
  }
  return ResourceExhausted("ten thousand runs began in this second: " + folder);
}

// Makes this process the only one that commands the job, and checks that no worker of an earlier part still
// uses the run.
Status TakeCommand(SuperviseOptions* options) {
  LUFF_RETURN_IF_ERROR(TakeRun(options));
  if (!options->resume) return Status::Ok();
  LUFF_ASSIGN_OR_RETURN(const auto trial, query::Trial::Open(options->run));
  for (const query::WorkerInfo& worker : trial->workers()) {
    if (!worker.alive || store::IsAbandoned(options->run, worker.worker)) continue;
    const std::int64_t silent_ns = Env::Real().NowUnixNs() - worker.heartbeat_unix_ns;
    return AlreadyExists(
        fmt::format("found a run in which worker {} is still at work (heard of {} s ago), expected one that "
                    "nobody writes into; end that job, or wait a minute if its machine is gone: {}",
                    worker.worker, std::max<std::int64_t>(silent_ns, 0) / 1'000'000'000, options->run));
  }
  return Status::Ok();
}

// Prints where a training's report is, or why there is none. Does not change the job's exit code.
void TellReport(const std::string& run, std::string path, std::size_t training) {
  if (training > 1)
    path = (fs::path(path).replace_extension() += fmt::format("-{}", training)) += fs::path(path).extension();
  const auto trial = query::Trial::Open(run);
  if (!trial.ok()) return;  // nothing was recorded, which the verdict reports
  // A script may run again.
  const Status written = WriteReport(run, path, Existing::kReplace);
  fmt::print(stderr, "luff: {}{}\n", written.ok() ? "report: " : "",
             Escaped(written.ok() ? path : std::string(written.message())));
}

// The action of --stop-on: a stop for findings of the named rules, whatever their severity.
Result<actions::ActionSpec> StopOn(const std::string& names, const std::vector<rules::Choice>& choices) {
  actions::ActionSpec stop;
  stop.name = "--stop-on";
  stop.kind = actions::ActionKind::kStop;
  stop.limit = 0;
  stop.dry_run = false;
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    std::string name = names.substr(begin, end - begin);
    begin = end + 1;
    const auto chosen = [&] {
      return std::any_of(choices.begin(), choices.end(),
                         [&](const auto& one) { return one.spec->name == name; });
    };
    if (!chosen()) {
      LUFF_ASSIGN_OR_RETURN(const rules::RuleSpec* rule, rules::FindRule(name));
      name = rule->name;  // it may have been an older name
      if (!chosen()) return InvalidArgument(fmt::format("{} is not among the rules of --rules", name));
    }
    stop.rules.push_back(std::move(name));
  }
  return stop;
}

// Starts the server of --serve: a process of its own, which ends with this one and is no part of the job.
void StartServer(const std::string& run) {
  const std::string home = catalog::Home();
  const std::string runs = home + "/runs";
  ProcessOptions process;
  // Runs of the usual place are shown together; another one alone.
  const bool usual = !home.empty() && run.starts_with(runs + "/");
  process.argv = {"/proc/self/exe",  "serve", "--beside-job", run.substr(run.rfind('/') + 1), "--",
                  usual ? runs : run};
  process.new_session = true;  // Ctrl-C is meant for the training
  process.stdout_fd = STDERR_FILENO;
  process.dies_with_parent = true;
  if (const Result<pid_t> started = StartProcess(process); !started.ok())
    PrintError(started.status().WithContext("--serve"));
}

/// Starts the process of --metrics, which answers scrapers while the job runs; it is no part of the job.
void StartMetrics(const std::string& run, const RunOptions& wanted) {
  ProcessOptions process;
  process.argv = {"/proc/self/exe", "metrics", "--beside-job", "--listen", wanted.metrics};
  if (!wanted.metrics_token.empty()) {
    process.argv.emplace_back("--metrics-token");
    process.argv.push_back(wanted.metrics_token);
  }
  process.argv.emplace_back("--");
  process.argv.push_back(run);
  process.new_session = true;  // Ctrl-C is meant for the training
  process.stdout_fd = STDERR_FILENO;
  process.dies_with_parent = true;
  if (const Result<pid_t> started = StartProcess(process); !started.ok())
    PrintError(started.status().WithContext("--metrics"));
}

/// The document `trial` (docs/spec/evidence.md) of what --sweep, --trial and --param say; "" if they say
/// nothing.
Result<std::string> TrialJson(const RunOptions& wanted) {
  constexpr std::size_t kMaxText = 1000, kMaxParams = 1000;  // as luff.trial_run has them
  if (wanted.sweep.empty() && wanted.trial.empty() && wanted.params.empty()) return std::string();
  for (const auto& [option, text] :
       {std::pair("--sweep", &wanted.sweep), std::pair("--trial", &wanted.trial)}) {
    if (text->size() > kMaxText)
      return InvalidArgument(
          fmt::format("{} has {} bytes, expected at most {}", option, text->size(), kMaxText));
  }
  if (wanted.params.size() > kMaxParams)
    return InvalidArgument(
        fmt::format("--param was given {} times, expected at most {}", wanted.params.size(), kMaxParams));
  Json params = Json::object();
  for (const std::string& param : wanted.params) {
    const std::size_t equals = param.find('=');
    if (equals == std::string::npos || equals == 0 || param.size() > kMaxText)
      return InvalidArgument(
          fmt::format("--param is '{}', expected NAME=VALUE, e.g. lr=0.1", Escaped(param.substr(0, 80))));
    const std::string name = param.substr(0, equals);
    if (params.contains(name)) return InvalidArgument(fmt::format("--param gives '{}' twice", Escaped(name)));
    std::visit([&](const auto& value) { params[name] = value; },
               catalog::ParameterOf(param.substr(equals + 1)));
  }
  const std::string name = wanted.trial.empty() ? JobName(wanted.command) : wanted.trial;
  return JsonText(Json{{"name", name}, {"sweep", wanted.sweep}, {"params", std::move(params)}});
}

/// What is wrong with options that need each other, or that another process takes, before anything begins.
Status CheckTogether(const RunOptions& wanted) {
  constexpr std::uint64_t kLeast = 1'000'000;
  if (wanted.log_bytes && !wanted.log)
    return InvalidArgument("--log-bytes says how much --log keeps; give --log, too");
  if (wanted.log_bytes && *wanted.log_bytes < kLeast)
    return InvalidArgument(fmt::format("--log-bytes is {} bytes, expected at least 1MB", *wanted.log_bytes));
  if (!wanted.metrics_token.empty() && wanted.metrics.empty())
    return InvalidArgument("--metrics-token is the token of --metrics; give --metrics ADDRESS:PORT, too");
  if (wanted.resume_or_new && wanted.run.empty())
    return InvalidArgument("--resume-or-new needs --run DIR: the run that it goes on with, or makes");
  if (wanted.metrics.empty()) return Status::Ok();
  return server::CheckAddress(ListenAtOrExit(wanted.metrics, "--metrics")).WithContext("--metrics");
}

/// The hosts with which actions are agreed upon: those that are given the same --job.
Status ReadHosts(const RunOptions& wanted, const FileConfig& file, SuperviseOptions* options) {
  constexpr std::size_t kMaxName = 1000;
  if (wanted.job.empty()) return Status::Ok();
  if (file.host_key.empty()) {
    return InvalidArgument(
        "--job names the job that this host is one of, and nothing says by which key the hosts know each "
        "other; write "
        "host_key = \"FILE\" below [control] of --config (`luff keys new hosts.key --may host`)");
  }
  if (wanted.job.find('\n') != std::string::npos)  // what parts the job of a second training
    return InvalidArgument("--job has a line feed; a name is one line");
  if (wanted.job.size() > kMaxName)
    return InvalidArgument(
        fmt::format("--job has {} bytes, expected at most {}", wanted.job.size(), kMaxName));
  if (wanted.sync.empty())
    return InvalidArgument("the hosts of --job talk to each other through a bucket; give --sync URL, too");
  auto key = keys::SecretKey::Read((fs::path(wanted.config).parent_path() / file.host_key).string());
  if (!key.ok()) return key.status().WithContext("host_key of [control]");
  options->host_key = std::make_shared<const keys::SecretKey>(*std::move(key));
  LUFF_RETURN_IF_ERROR(
      keys::KeySeal::Check(*options->host_key, file.keys, Env::Real().NowUnixNs() / 1'000'000'000));
  options->hosts_job = wanted.job;
  return Status::Ok();
}

/// Secrets come from the environment: what a variable lacks now, no delivery finds later.
void TellOfMissingVariables(const std::vector<actions::ActionSpec>& specs) {
  for (const actions::ActionSpec& spec : specs) {
    const Json settings = TryParseOrderedJson(spec.settings_json);
    for (const char* key : {"url_env", "secret_env", "password_env"}) {
      const std::string variable = TextMember(settings, key);
      if (variable.empty() || std::getenv(variable.c_str()) != nullptr) continue;
      fmt::print(stderr, "luff: action '{}' cannot deliver anything: the variable {} ({}) is not set\n",
                 Escaped(spec.name), Escaped(variable), key);
    }
  }
}

/// What is written at the end, "" if it is not wanted.
struct AtTheEnd {
  std::string report;           // file of the report
  std::string profiler_rules;   // rules of SageMaker's profiler
  std::string profiler_report;  // directory of what they report
};
Result<SuperviseOptions> Prepare(RunOptions wanted, AtTheEnd* end) {
  LUFF_RETURN_IF_ERROR(CheckTogether(wanted));
  if (wanted.resume_or_new && Env::Real().Exists(Absolute(wanted.run) + "/run.json")) wanted.resume = true;
  if (!wanted.compat.empty()) {
    if (wanted.compat != "smdebug")
      return InvalidArgument(fmt::format("--compat is '{}'; there is smdebug", wanted.compat));
    setenv("LUFF_COMPAT", "smdebug", 1);  // read by luff/_bootstrap in the processes that are started
    if (IsJobFile(wanted.config)) setenv("SMDEBUG_CONFIG_FILE_PATH", fs::absolute(wanted.config).c_str(), 0);
  }
  FileConfig file;
  if (!wanted.config.empty()) {
    LUFF_ASSIGN_OR_RETURN(file, ReadConfigFile(wanted.config));
  }
  SuperviseOptions options;
  const std::string set = !wanted.set_text.empty() ? wanted.set_text : file.parameters.value_or("luff");
  LUFF_ASSIGN_OR_RETURN(options.set, rules::ParseParameterSet(set));
  std::string rules_text = !wanted.rules_text.empty() ? wanted.rules_text : file.rules.value_or("");
  const bool later = rules::TakeLater(&rules_text);
  LUFF_ASSIGN_OR_RETURN(const auto recorded_for, rules::ParseChoices(rules_text, options.set));
  if (later && (!wanted.stop_on.empty() || wanted.on_finding == "stop")) {
    return InvalidArgument(
        fmt::format("{} with --rules later: no rule is judged here that could stop the job; give `luff "
                    "watch` --on-finding stop",
                    wanted.stop_on.empty() ? "--on-finding stop" : "--stop-on"));
  }
  if (later)
    options.recorded_for = recorded_for.size();
  else
    options.choices = recorded_for;
  const std::string on_finding =
      !wanted.on_finding.empty() ? wanted.on_finding : file.on_finding.value_or("warn");
  if (on_finding != "warn" && on_finding != "stop") {
    return InvalidArgument(
        fmt::format("'{}' is no answer to a finding; there are warn and stop", on_finding));
  }
  options.stop_on_finding = on_finding == "stop";
  options.stop = file.stop;
  options.actions = file.actions;
  options.keys = file.keys;
  LUFF_RETURN_IF_ERROR(ReadHosts(wanted, file, &options));
  TellOfMissingVariables(options.actions);
  if (!wanted.stop_on.empty()) {
    Result<actions::ActionSpec> stop = StopOn(wanted.stop_on, options.choices);
    if (!stop.ok()) return stop.status().WithContext("--stop-on");
    options.actions.insert(options.actions.begin(), std::move(*stop));
  }
  options.job = JobName(wanted.command);
  options.capture_json = file.capture_json;
  options.command = wanted.command;
  options.resume = wanted.resume;
  options.tags = wanted.tags;
  LUFF_ASSIGN_OR_RETURN(options.trial_json, TrialJson(wanted));
  for (const std::string& tag : wanted.tags) {
    if (const Status good = catalog::CheckTag(tag); !good.ok()) return good.WithContext("--tag");
  }
  LUFF_ASSIGN_OR_RETURN(const std::string config,
                        rules::CaptureConfigFor(recorded_for, options.capture_json));
  if (const auto tried = capture::ParseConfigUntrusted(config); !tried.ok())
    return tried.status().WithContext("the rules' needs and [capture] together");
  options.sample = capture::ParseConfigUntrusted(config)->profile != capture::Profile::kOff;
  options.capture_json = config;
  const Result<std::string> package = FindPackage();
  if (!package.ok()) return package.status().WithContext("Luff cannot attach to a training");
  options.bootstrap = package.value() + "/_bootstrap";  // first on PYTHONPATH, for Python's start-up
  if (std::any_of(options.actions.begin(), options.actions.end(),
                  [](const actions::ActionSpec& spec) { return actions::OnlyTells(spec.kind); })) {
    LUFF_ASSIGN_OR_RETURN(options.notifier, FindNotifier());
  }
  if (!wanted.findings.empty()) {
    options.findings_file = fs::absolute(wanted.findings).string();
    if (const Status begun = BeginLines(options.findings_file); !begun.ok())
      return begun.WithContext("--findings cannot be written, give a file in a directory that exists");
  }
  const std::pair<const char*, const std::string&> outputs[] = {
      {"tensorboard", !wanted.tensorboard.empty() ? wanted.tensorboard : file.tensorboard},
      {"smdebug", !wanted.smdebug.empty() ? wanted.smdebug : file.smdebug}};
  for (const auto& [format, directory] : outputs) {
    if (directory.empty()) continue;
    options.outputs.push_back({format, Absolute(directory)});
    LUFF_RETURN_IF_ERROR(CheckLiveOutput(options.outputs.back(), wanted.resume));
  }
  if (wanted.log) options.log_bytes = std::max<std::uint64_t>(wanted.log_bytes.value_or(kLogBytes), 1 << 20);
  if (wanted.otlp) options.outputs.push_back({kOtlp, ""});
  if (!wanted.sync.empty()) {
    options.outputs.push_back({kSync, wanted.sync, file.bucket.environment,
                               file.bucket.environment.empty() ? "" : Absolute(wanted.config),
                               wanted.keep_local, wanted.job});
    LUFF_RETURN_IF_ERROR(CheckLiveOutput(options.outputs.back(), wanted.resume));
  } else if (wanted.keep_local) {
    return InvalidArgument("--keep-local removes what was uploaded; it needs --sync URL");
  }
  if (const std::string& wish = !wanted.report.empty() ? wanted.report : file.report; !wish.empty()) {
    end->report = fs::absolute(wish).lexically_normal().string();
    // SageMaker makes the directory of a job's report.
    if (wanted.report.empty() && IsJobFile(wanted.config))
      fs::create_directories(fs::path(end->report).parent_path());
    if (const Status folder = CheckFolderOf(end->report); !folder.ok())
      return folder.WithContext("the report cannot be written");
  }
  end->profiler_rules = file.profiler_rules;
  if (!file.profiler_report.empty()) end->profiler_report = Absolute(file.profiler_report);
  const bool existed = !wanted.run.empty() && Env::Real().Exists(wanted.run);
  LUFF_ASSIGN_OR_RETURN(options.run, ReserveRun(wanted));  // last: earlier errors leave nothing behind
  if (const Status taken = TakeCommand(&options); !taken.ok()) {
    if (!existed) RemoveUnusedRun(options);
    return taken.WithContext("--run");
  }
  return options;
}

}  // namespace

void AddRun(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("run", "Run a training command, watch it, report what is wrong");
  static RunOptions wanted;
  verb->add_option("--run", wanted.run, "Run directory; default: $LUFF_HOME/runs/..., or ~/.luff/runs/...");
  verb->add_flag("--resume", wanted.resume, "Continue an existing run");
  verb->add_flag("--resume-or-new", wanted.resume_or_new,
                 "Continue the run of --run if there is one, else begin it: for jobs that are started again");
  verb->add_option("--sweep", wanted.sweep, "The sweep that the run is a trial of (luff compare --sweep)");
  verb->add_option("--trial", wanted.trial, "What the trial is called; default: the script's name");
  verb->add_option("--param", wanted.params, "NAME=VALUE, what tells the trial from others; may be repeated")
      ->allow_extra_args(false);
  verb->add_option(
      "--rules", wanted.rules_text,
      "NAME[:parameter=value...],... or none; default: all (`luff rules`); later: record what they "
      "look at, judge nothing here (`luff check`, `luff watch`)");
  verb->add_option("--parameters", wanted.set_text, "Parameter set: luff (default) or original");
  verb->add_option("--on-finding", wanted.on_finding,
                   "warn (default), or stop: a finding of severity stop ends the job");
  verb->add_option("--stop-on", wanted.stop_on,
                   "NAME,...: any finding of these rules ends the job, e.g. Overfit,Overtraining");
  verb->add_option("--findings", wanted.findings, "Also write findings to this file, as JSON lines");
  verb->add_option("--tensorboard", wanted.tensorboard, "Also write for TensorBoard into this directory");
  verb->add_option("--smdebug", wanted.smdebug, "Also write in smdebug's format into this directory");
  verb->add_option("--report", wanted.report,
                   "At the end, also write the report (`luff report`) into this file");
  verb->add_flag("--serve", wanted.serve, "Show the run in a browser while it trains (`luff serve`)");
  verb->add_flag(
      "--log", wanted.log,
      "Keep what the command prints in the run (`luff log`): its streams are files then, no terminal");
  verb->add_option("--log-bytes", wanted.log_bytes,
                   "Keep so much of each stream, the newest: 64MB, 256MB (default)")
      ->transform(SizeValue(true));
  verb->add_option("--metrics", wanted.metrics,
                   "Answer Prometheus at this ADDRESS:PORT while the job runs (`luff metrics`)");
  verb->add_option(
      "--metrics-token", wanted.metrics_token,
      "File with the token that it must send, made if absent; default: $LUFF_HOME/metrics.token");
  verb->add_flag("--otlp", wanted.otlp,
                 "Push metrics to an OpenTelemetry collector (pip install 'luff[otlp]')");
  verb->add_option("--sync", wanted.sync,
                   "Upload the run into a bucket while it trains: s3://BUCKET/PREFIX, gs://..., az://... or "
                   "file:///FOLDER (`luff sync`)");
  verb->add_option("--job", wanted.job,
                   "The job that this host is one of, the same on each and no other job's: stops, "
                   "corrections, captures and "
                   "traces are agreed upon through the bucket of --sync");
  verb->add_option("--keep-local", wanted.keep_local, kKeepLocalHelp)->transform(SizeValue(true));
  verb->add_option("--tag", wanted.tags, "A word to find the run by (luff runs --tag); may be repeated")
      ->allow_extra_args(false);
  verb->add_option("--config", wanted.config, "Configuration file (TOML, or the JSON of a SageMaker job)");
  verb->add_option("--compat", wanted.compat, "smdebug: `import smdebug` finds Luff's package of its API");
  verb->add_option("COMMAND", wanted.command, "After --: the command and its arguments")->required();
  verb->positionals_at_end();
  verb->footer(
      "Exit code: the command's own (128 + N when signal N ended it), 76 when a finding or `luff stop` "
      "stopped it,\n"
      "2 wrong usage, 126 the command cannot be run, 127 there is no such command.");
  verb->callback([] {
    try {
      AtTheEnd end;
      const Result<SuperviseOptions> options = Prepare(wanted, &end);
      if (!options.ok()) {
        PrintError(options.status());
        ExitWith(kExitUsage);
      }
      if (wanted.serve) StartServer(options->run);  // first: the job's children are those that come after it
      if (!wanted.metrics.empty()) StartMetrics(options->run, wanted);
      const Supervised done = Supervise(options.value());
      for (std::size_t i = 0; i < done.runs.size(); ++i) {
        if (!end.report.empty()) TellReport(done.runs[i], end.report, i + 1);
        if (end.profiler_rules.empty()) continue;
        TellProfilerRules(
            done.runs[i], end.profiler_rules,
            end.profiler_report + (i == 0 || end.profiler_report.empty() ? "" : fmt::format("-{}", i + 1)));
      }
      ExitWith(done.code);
    } catch (const fs::filesystem_error& error) {
      PrintError(IoError(error.what()));
      ExitWith(kExitUsage);
    }
  });
}

}  // namespace luff::cli
