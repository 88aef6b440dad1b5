#include "cli/job_file.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/format.h"
#include "base/interrupted.h"
#include "base/python_child.h"
#include "cli/terminal.h"
#include "luff/base/env.h"
#include "luff/base/process.h"

namespace luff::cli {
namespace {

constexpr std::size_t kMostBytes = 1 << 20;
constexpr std::int64_t kMostNs = 60'000'000'000, kMostOfRulesNs = 600'000'000'000;

/// A memory file that a child process writes.
class Sink {
 public:
  explicit Sink(const char* name) : fd_(memfd_create(name, MFD_CLOEXEC)) {}
  ~Sink() {
    if (fd_ >= 0) close(fd_);
  }
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  int fd() const noexcept { return fd_; }

  std::string Text() const {
    std::string text(kMostBytes, '\0');
    std::size_t size = 0;
    while (size < text.size()) {
      const ssize_t got = Uninterrupted(
          [&] { return pread(fd_, text.data() + size, text.size() - size, static_cast<off_t>(size)); });
      if (got <= 0) break;
      size += static_cast<std::size_t>(got);
    }
    text.resize(size);
    return text;
  }

 private:
  int fd_;
};

/// Waits for the process and returns its exit code; kills it after a time.
int CodeOf(pid_t pid, std::int64_t most_ns) {
  Env& env = Env::Real();
  const std::int64_t end_ns = env.NowMonotonicNs() + most_ns;
  int status = 0;
  for (;;) {
    const pid_t done = Uninterrupted([&] { return waitpid(pid, &status, WNOHANG); });
    if (done == pid) return DecodeStatus(status).code;
    if (done < 0) return 1;
    if (env.NowMonotonicNs() > end_ns) SignalGroup(pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace

bool IsJobFile(std::string_view path) noexcept { return path.ends_with(".json"); }

Result<std::string> TranslateJobFile(const std::string& path) {
  const Sink out("luff-job"), told("luff-told");
  if (out.fd() < 0 || told.fd() < 0) return ResourceExhausted("no memory for a job's configuration");
  ProcessOptions options;
  constexpr const char* kNeeds = "a job's configuration in JSON needs Python with luff";
  Result<std::vector<std::string>> command = PythonCommand("sagemaker");
  if (!command.ok()) return command.status().WithContext(kNeeds);
  options.argv = std::move(command).value();
  options.argv.push_back(path);
  options.stdout_fd = out.fd();
  options.stderr_fd = told.fd();
  options.dies_with_parent = true;
  const Result<pid_t> started = StartProcess(options);
  if (!started.ok()) return started.status().WithContext(kNeeds);
  const int code = CodeOf(started.value(), kMostNs);
  std::string words = told.Text();
  if (code != 0) {
    while (!words.empty() && words.back() == '\n') words.pop_back();
    const std::size_t last = words.rfind('\n');  // the last line of a traceback
    if (last != std::string::npos) words = words.substr(last + 1);
    if (words.starts_with("luff: ")) words = words.substr(6);
    return InvalidArgument(words.empty() ? fmt::format("it cannot be translated: {}", path) : words);
  }
  for (std::size_t at = 0; at < words.size();) {
    const std::size_t end = std::min(words.find('\n', at), words.size());
    fmt::print(stderr, "{}\n", Escaped(std::string_view(words).substr(at, end - at)));
    at = end + 1;
  }
  return out.Text();
}

void TellProfilerRules(const std::string& run, const std::string& rules, const std::string& folder) {
  ProcessOptions options;
  Result<std::vector<std::string>> command = PythonCommand("profiler");
  if (!command.ok()) return PrintError(command.status().WithContext("the rules of the profiler"));
  options.argv = std::move(command).value();
  options.argv.insert(options.argv.end(), {"check", run, "--rules=" + rules});
  if (!folder.empty()) options.argv.push_back("--out=" + folder);
  options.stdout_fd = STDERR_FILENO;
  options.dies_with_parent = true;
  const Result<pid_t> started = StartProcess(options);
  if (!started.ok()) return PrintError(started.status().WithContext("the rules of the profiler"));
  CodeOf(started.value(), kMostOfRulesNs);
}

}  // namespace luff::cli
