#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "cli/config_file.h"
#include "cli/reading.h"
#include "cli/verbs.h"
#include "keys/host_seal.h"

namespace luff::cli {
namespace {

struct SyncOptions {
  std::string run, url, config, job;
  double flush_s = 2, drain_s = 120, max_mbps = 0;
  int host = 0;
  std::size_t training = 1;
  std::optional<std::uint64_t> keep_local;
};

}  // namespace

void AddSync(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("sync", "Upload a run into a bucket, live or finished");
  auto options = std::make_shared<SyncOptions>();
  verb->add_option("RUN", options->run, kOwnRunHelp)->required();
  verb->add_option("URL", options->url, "s3://BUCKET/PREFIX, gs://..., az://... or file:///FOLDER")
      ->required();
  verb->add_option("--flush", options->flush_s, "Seconds between uploads of what is new")
      ->capture_default_str();
  verb->add_option("--drain", options->drain_s, "Most seconds for the rest, once the job has ended")
      ->capture_default_str();
  verb->add_option("--max-mbps", options->max_mbps, "Most megabits a second; default: no limit");
  verb->add_option("--host", options->host, "Number of this host, where several upload one run")
      ->capture_default_str();
  verb->add_option("--config", options->config, "luff.toml, whose [bucket] says how the upload is encrypted");
  verb->add_option("--job", options->job,
                   "Of a run whose `luff run --job NAME` has lost its upload: the hosts talk again");
  verb->add_option("--training", options->training,
                   "With --job: which of the job's trainings the run is, from 1")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1'000'000}));
  verb->add_option("--keep-local", options->keep_local, kKeepLocalHelp)->transform(SizeValue(true));
  verb->footer(
      "Prints the URL of the run, which every verb that reads a run takes. Follows a run that is being "
      "written "
      "to its end.\n"
      "Exit code: 0 all is in the bucket; 2 wrong usage; 4 another uploader has taken the run over; 5 "
      "refused (no "
      "right,\n"
      "no such bucket); 6 the time was over before all was there: the same command goes on.");
  verb->callback([options] {
    FindOwnRunOrExit(&options->run);
    std::vector<std::string> words = {
        fmt::format("--flush={}", options->flush_s), fmt::format("--drain={}", options->drain_s),
        fmt::format("--max-mbps={}", options->max_mbps), fmt::format("--host={}", options->host)};
    if (!options->config.empty()) {
      const BucketConfig bucket = ValueOrExit(ReadConfigFile(options->config)).bucket;
      if (const Status can = CheckEncryptionBy(bucket.environment, options->url); !can.ok())
        ExitWithError(can);
      for (const auto& [name, value] : bucket.environment) setenv(name.c_str(), value.c_str(), 1);
      words.push_back("--config=" + options->config);
    }
    if (!options->job.empty()) words.push_back("--job=" + keys::JobIdOf(options->job, options->training));
    if (options->keep_local) words.push_back(fmt::format("--keep-local={}", *options->keep_local));
    words.insert(words.end(), {"--", options->run, options->url});
    BecomePython("sync", std::move(words), "runs are uploaded by Luff's Python package");
  });
}

}  // namespace luff::cli
