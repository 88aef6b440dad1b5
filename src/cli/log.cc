#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <string>

#include <fmt/chrono.h>

#include "base/format.h"
#include "cli/log_keeper.h"
#include "cli/reading.h"
#include "cli/verbs.h"
#include "luff/base/regex.h"
#include "server/job_log.h"

/// `luff log RUN`: what the job has printed.
namespace luff::cli {
namespace {

struct LogOptions : ReadOptions {
  std::uint64_t bytes = kLogBytes, tail = 0;
  std::string find, stream;
  pid_t keep = 0;
  server::LogPlace begin{};
  bool times = false, follow = false;
};

constexpr std::uint64_t kPage = 1 << 20;

class Printer {
 public:
  explicit Printer(const LogOptions& options) : options_(options) {
    if (!options.find.empty()) find_ = ValueOrExit(Regex::Compile(options.find));
  }
  void Print(const server::LogLine& line) const {
    if (!options_.stream.empty() && (line.stream == 0) != (options_.stream == "out")) return;
    if (find_ && !find_->Search(line.text)) return;
    if (options_.json) {
      PrintJson({{"stream", line.stream == 0 ? "out" : "err"},
                 {"offset", line.offset},
                 {"unix_ns", line.unix_ns},
                 {"text", line.text}},
                -1);
      return;
    }
    if (options_.times && line.unix_ns != 0) {
      const auto second = static_cast<std::time_t>(line.unix_ns / 1'000'000'000);
      fmt::print("{:%Y-%m-%d %H:%M:%S}  ", fmt::localtime(second));
    } else if (options_.times) {
      fmt::print("{:21}", "");
    }
    fmt::print("{}\n", line.text);
  }

 private:
  const LogOptions& options_;
  std::optional<Regex> find_;
};

void Show(const LogOptions& options) {
  const Printer printer(options);
  std::optional<server::LogPlace> place = server::LogPlace{};
  if (options.tail > 0) place.reset();
  for (;;) {
    const server::LogPage page =
        ValueOrExit(server::ReadLog(options.run, place, false, place ? kPage : options.tail));
    bool moved = false;
    for (const server::LogLine& line : page.lines) {
      if (line.whole || !options.follow) printer.Print(line);
    }
    for (std::size_t i = 0; i < 2; ++i) moved = moved || !place || page.next[i] != (*place)[i];
    place = page.next;
    if (moved && page.next != page.size) continue;
    std::fflush(stdout);
    if (!options.follow) ExitWith(kExitOk);
    const auto trial = query::Trial::Open(options.run);
    if (trial.ok() && (*trial)->outcome().state != "running" && !moved) {
      for (const server::LogLine& line : page.lines) {
        if (!line.whole) printer.Print(line);  // nobody will end it
      }
      ExitWith(kExitOk);
    }
    usleep(250'000);
  }
}

}  // namespace

void AddLog(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("log", "What a job has printed (luff run --log)");
  auto options = std::make_shared<LogOptions>();
  verb->add_option("RUN", options->run, kOwnRunHelp)->required();
  verb->add_option("--tail", options->tail, "Only the last so many bytes of each stream: 4KB, 1MB")
      ->transform(SizeValue(true));
  verb->add_option("--find", options->find, "Only lines that match this regular expression");
  verb->add_option("--stream", options->stream, "Only this one: out or err")
      ->check(CLI::IsMember({"out", "err"}));
  verb->add_flag("--times", options->times, "With the time at which each line was seen");
  verb->add_flag("--follow", options->follow, "Go on until the job has ended");
  verb->add_flag("--json", options->json, "One JSON object a line");
  verb->add_option("--keep", options->keep, "Started by luff run --log")->group("");
  verb->add_option("--log-bytes", options->bytes, "With --keep")->group("");
  verb->add_option("--begin", options->begin, "With --keep, for each stream")->group("");
  verb->footer(
      "Lines of both streams by the time at which they were seen, without what controls a terminal.");
  verb->callback([options] {
    if (options->keep > 0) {
      const Status kept = KeepLog(options->run, options->keep, options->bytes, options->begin);
      if (!kept.ok()) ExitWithError(kept);
      ExitWith(kExitOk);
    }
    FindOwnRunOrExit(&options->run);
    Show(*options);
  });
}

}  // namespace luff::cli
