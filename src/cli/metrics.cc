#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/format.h"
#include "base/interrupted.h"
#include "base/output_file.h"
#include "base/private_file.h"
#include "base/python_child.h"
#include "catalog/catalog.h"
#include "cli/metrics_token.h"
#include "cli/reading.h"
#include "cli/serve.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/base/env.h"
#include "luff/base/process.h"
#include "luff/store/owner.h"
#include "server/metrics.h"
#include "server/net.h"
#include "server/service.h"

/// `luff metrics`: what machines are told of one run.
namespace luff::cli {
namespace {

namespace fs = std::filesystem;

struct MetricsVerb {
  std::string run, out, format = "prometheus", tensors, public_url, listen, token_file;
  double every_s = 15;
  bool files = false, otlp = false, follow = false, beside_job = false;
};

/// The folder with alert rules and dashboards: beside the program's own, or in the sources.
std::string FilesOrExit() {
  std::error_code error;
  const fs::path own = fs::read_symlink("/proc/self/exe", error);
  for (fs::path folder = own.parent_path(); !folder.empty(); folder = folder.parent_path()) {
    if (fs::is_directory(folder / "share/luff/prometheus", error)) return (folder / "share/luff").string();
    if (folder == folder.parent_path()) break;
  }
  ExitWithError(NotFound("share/luff, which is installed with Luff, is not there; install the wheel again"));
}

server::MetricsOptions OptionsOrExit(const MetricsVerb& verb) {
  server::MetricsOptions options;
  options.public_url = verb.public_url;
  if (!verb.tensors.empty()) {
    auto regex = Regex::Compile(verb.tensors);
    if (!regex.ok()) ExitWithError(regex.status().WithContext("--metrics-tensors"));
    options.tensors = *std::move(regex);
  }
  return options;
}

/// The samples of a run now, whatever has become of it.
class OneRun {
 public:
  OneRun(const std::string& run, server::MetricsOptions options) : run_(run), options_(std::move(options)) {}

  Status Put(std::int64_t now_unix_ns, server::Exposition* to) {
    LUFF_ASSIGN_OR_RETURN(const server::ListedRun listed, server::DescribeRun(run_));
    if (metrics_ == nullptr) {
      LUFF_ASSIGN_OR_RETURN(metrics_, server::RunMetrics::Open(listed.path));
    }
    metrics_->Put(listed, listed.name, server::PageOf(options_.public_url, listed.id), options_.tensors,
                  now_unix_ns, to);
    return Status::Ok();
  }

 private:
  const std::string run_;
  const server::MetricsOptions options_;
  std::unique_ptr<server::RunMetrics> metrics_;
};

Status WriteOnce(OneRun& run, const MetricsVerb& verb) {
  server::Exposition exposition;
  const std::int64_t now = Env::Real().NowUnixNs();
  LUFF_RETURN_IF_ERROR(run.Put(now, &exposition));
  const std::string text = verb.format == "json"          ? exposition.Json(now) + "\n"
                           : verb.format == "openmetrics" ? exposition.OpenMetrics()
                                                          : exposition.Prometheus();
  if (verb.out.empty() || verb.out == "-") {
    fmt::print("{}", text);
    return std::fflush(stdout) == 0 ? Status::Ok() : IoError("standard output cannot be written");
  }
  LUFF_ASSIGN_OR_RETURN(const auto file, OutputFile::Create(verb.out, Existing::kReplace));
  LUFF_RETURN_IF_ERROR(file->Append(text));
  return file->Commit();
}

/// Waits. Returns false once the job is over: nobody holds the other end of standard input.
bool WaitForJob(double seconds) {
  pollfd fd{STDIN_FILENO, POLLIN, 0};
  if (poll(&fd, 1, static_cast<int>(seconds * 1000)) <= 0) return true;
  char byte;
  return Uninterrupted([&] { return read(STDIN_FILENO, &byte, 1); }) > 0;
}

bool HasEnded(const std::string& run) {
  const auto trial = query::Trial::Open(run);
  return trial.ok() && (*trial)->outcome().state != "running";
}

/// Hands samples to a process that pushes them; never waits for it.
class Pusher {
 public:
  Status Start(const MetricsVerb& verb) {
    LUFF_ASSIGN_OR_RETURN(std::vector<std::string> argv, PythonCommand("otlp"));
    if (verb.beside_job) argv.emplace_back("--beside-job");
    int to[2];
    if (pipe2(to, O_CLOEXEC) != 0) return IoError("a pipe cannot be made");
    ProcessOptions process;
    process.argv = std::move(argv);
    process.stdin_fd = to[0];
    process.stdout_fd = STDERR_FILENO;
    auto started = StartProcess(process);
    close(to[0]);
    if (!started.ok()) return close(to[1]), started.status();
    pid_ = *started;
    to_ = to[1];
    fcntl(to_, F_SETFL, O_NONBLOCK);
    fcntl(to_, F_SETPIPE_SZ, 1 << 20);
    signal(SIGPIPE, SIG_IGN);
    return Status::Ok();
  }
  /// Drops the sample, and counts it, while the last one is not taken. Returns false if the process is gone.
  bool Push(server::Exposition& exposition, std::int64_t unix_ns) {
    if (!Flush()) return false;
    if (!waiting_.empty()) return ++dropped_, true;
    exposition.Put(server::Metric::kPushDropped, {}, static_cast<double>(dropped_));
    waiting_ = exposition.Json(unix_ns) + "\n";
    return Flush();
  }
  /// Lets the process send what it has; returns its exit code.
  int End() {
    close(to_);
    return DecodeStatus(WaitFor(pid_)).code;
  }

 private:
  bool Flush() {
    while (!waiting_.empty()) {
      const ssize_t written = Uninterrupted([&] { return write(to_, waiting_.data(), waiting_.size()); });
      if (written < 0) return errno == EAGAIN;
      waiting_.erase(0, static_cast<std::size_t>(written));
    }
    return true;
  }
  pid_t pid_ = -1;
  int to_ = -1;
  std::string waiting_;
  std::uint64_t dropped_ = 0;
};

[[noreturn]] void Push(OneRun& run, const MetricsVerb& verb) {
  Pusher pusher;
  if (const Status started = pusher.Start(verb); !started.ok()) ExitWithError(started);
  bool lives = true, reached = true;
  do {
    if (verb.beside_job)
      lives = WaitForJob(verb.every_s);
    else if (verb.follow && !(lives = !HasEnded(verb.run)))
      lives = false;
    const std::int64_t now = Env::Real().NowUnixNs();
    server::Exposition exposition;
    const Status read = run.Put(now, &exposition);
    if (!read.ok() && !verb.beside_job) ExitWithError(read);  // a job's run begins with its first step
    if (read.ok()) reached = pusher.Push(exposition, now);
    if (lives && verb.follow && !verb.beside_job) usleep(static_cast<useconds_t>(verb.every_s * 1e6));
  } while (reached && lives && (verb.follow || verb.beside_job));
  ExitWith(pusher.End());
}

}  // namespace

std::string MetricsTokenOrExit(std::string path) {
  if (path.empty()) {
    const std::string home = catalog::Home();
    if (home.empty())
      ExitWithError(InvalidArgument("neither LUFF_HOME nor HOME is set; name a file with --metrics-token"));
    if (const Status made = Env::Real().MakeDirectories(home); !made.ok()) ExitWithError(made);
    path = home + "/metrics.token";
  }
  const Status made = WriteNewFile(Env::Real(), path, server::NewToken() + "\n");
  if (!made.ok() && made.code() != StatusCode::kAlreadyExists) ExitWithError(made);
  std::string token = ValueOrExit(ReadPrivate(path, 4096));
  while (!token.empty() && static_cast<unsigned char>(token.back()) <= ' ') token.pop_back();
  if (token.size() < 32) {
    ExitWithError(InvalidArgument(
        fmt::format("the token has {} letters, expected at least 32; remove the file, and luff makes a new "
                    "one: {}",
                    token.size(), path)));
  }
  fmt::print(stderr, "luff: the token for scrapers is in {}\n", Escaped(path));
  return token;
}

namespace {

[[noreturn]] void Listen(const MetricsVerb& verb) {
  const server::ListenAt at = ListenAtOrExit(verb.listen, verb.beside_job ? "--metrics" : "--listen");
  server::Secrets secrets;
  secrets.Add(MetricsTokenOrExit(verb.token_file), server::Role::kMetrics);
  const auto listener = ValueOrExit(server::Listener::Open(at));
  server::Service service(PlaceAt(at, listener->port()), &secrets, {.roots = {verb.run}});
  service.metrics().Configure(OptionsOrExit(verb));
  if (at.path.empty())
    fmt::print(stderr, "luff: metrics: {}/metrics\n", OriginOf(at, listener->port()));
  else
    fmt::print(stderr, "luff: metrics: unix:{}, path /metrics\n", Escaped(at.path));
  (void)listener->Serve(&service);
  ExitWith(kExitOk);
}

void Do(MetricsVerb verb) {
  if (verb.files) {
    fmt::print("{}\n", FilesOrExit());
    ExitWith(kExitOk);
  }
  if (verb.run.empty()) ExitWithError(InvalidArgument("which run? `luff runs` lists them"));
  if (verb.follow && !verb.otlp && (verb.out.empty() || verb.out == "-") && verb.format != "json")
    ExitWithError(
        InvalidArgument("--follow writes a file again and again: name it with -o, or push with --otlp"));
  if (!verb.beside_job) FindRunOrExit(&verb.run);
  verb.run = fs::absolute(verb.run).lexically_normal().string();
  if (!verb.listen.empty()) Listen(verb);
  OneRun run(verb.run, OptionsOrExit(verb));
  if (verb.otlp) Push(run, verb);
  for (bool ended = false;; usleep(static_cast<useconds_t>(verb.every_s * 1e6))) {
    ended = !verb.follow || HasEnded(verb.run);
    if (const Status written = WriteOnce(run, verb); !written.ok()) ExitWithError(written);
    if (ended) ExitWith(kExitOk);
  }
}

}  // namespace

void AddMetrics(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("metrics", "What Prometheus and OpenTelemetry are told of a run");
  auto options = std::make_shared<MetricsVerb>();
  verb->add_option("RUN", options->run, kRunHelp);
  verb->add_option("-o,--out", options->out,
                   "File, replaced as a whole: FOLDER/NAME.prom for node_exporter's textfile collector");
  verb->add_option("--format", options->format, "prometheus (default), openmetrics or json")
      ->check(CLI::IsMember({"prometheus", "openmetrics", "json"}));
  verb->add_flag("--follow", options->follow, "Again and again, until the run has ended");
  verb->add_option("--every", options->every_s, "With --follow, --otlp: seconds between samples, default 15")
      ->check(CLI::Range(0.05, 86400.0));
  verb->add_option("--listen", options->listen, "ADDRESS:PORT of this machine, where Prometheus may ask");
  verb->add_option("--metrics-token", options->token_file,
                   "--listen: file with the token that it must send, made if absent; default: "
                   "$LUFF_HOME/metrics.token");
  verb->add_flag(
      "--otlp", options->otlp,
      "Push to an OpenTelemetry collector (pip install 'luff[otlp]'; OTEL_EXPORTER_OTLP_ENDPOINT)");
  verb->add_option("--metrics-tensors", options->tensors,
                   "Regular expression: at most 20 tensors that get series of their own");
  verb->add_option("--public-url", options->public_url, "Where people find luff serve, for links to the run");
  verb->add_flag("--files", options->files,
                 "Print the folder with alert rules, scrape configuration and dashboards");
  verb->add_flag("--beside-job", options->beside_job, "Started by luff run")->group("");
  verb->footer("Prints the metrics of docs/spec/metrics.md once, unless asked for more.");
  verb->callback([options] { Do(*options); });
}

}  // namespace luff::cli
