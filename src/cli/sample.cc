#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/profile/sampler.h"

namespace luff::cli {

void AddSample(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("_sample", "The process that measures the machine beside a run");
  verb->group("");  // hidden
  auto options = std::make_shared<profile::SamplerOptions>();
  auto until_closed = std::make_shared<bool>(false);
  verb->add_option("RUN", options->run_path, "Run directory")->required();
  verb->add_flag("--until-closed", *until_closed, "End when standard input does");
  verb->add_option("--hz", options->hz, "Samples a second");
  verb->add_option("--root", options->root, "Before /proc and /sys");
  verb->add_option("--ticks", options->ticks, "End after so many samples");
  verb->add_option("--wait", options->wait_s, "Seconds to wait for the run and its first writer");
  verb->callback([options, until_closed] {
    if (*until_closed) options->until_closed_fd = STDIN_FILENO;
    if (const char* nvml = std::getenv("LUFF_NVML"); nvml != nullptr) options->nvml = nvml;
    profile::BecomeSampler();
    const Status status = profile::RunSampler(*options);
    // A driver's thread may hang: nothing is waited for.
    _exit(status.ok() ? 0 : 1);
  });
}

}  // namespace luff::cli
