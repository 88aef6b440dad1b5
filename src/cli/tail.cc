#include <cstdio>

#include <fmt/format.h>

#include "cli/reading.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

namespace luff::cli {
namespace {

struct TailOptions : ReadOptions {
  std::size_t count = 10;
  bool follow = true;
};

void PrintStep(const query::Trial& trial, std::size_t n, bool json) {
  query::Trial::StepRows rows;
  const Status status = trial.ReadStepRows(n, &rows);
  if (!status.ok()) {
    PrintError(status);
    return;
  }
  if (json) {
    Json scalars = Json::object();
    for (const auto& scalar : rows.scalars) scalars[trial.tensor(scalar.tensor).name] = scalar.value;
    PrintJson({{"step", rows.info.global_step},
               {"mode", query::ModeName(rows.info.mode)},
               {"mode_step", rows.info.mode_step},
               {"update", rows.info.update},
               {"summaries", rows.summaries.size()},
               {"scalars", std::move(scalars)}},
              -1);
    return;
  }
  std::string text;
  for (const auto& scalar : rows.scalars) {
    if (text.size() > 160) break;
    text += fmt::format("  {} {}", Escaped(trial.tensor(scalar.tensor).name), NumberText(scalar.value));
  }
  fmt::print("{:>8} {:<7} {:>8}  {} summaries{}\n", rows.info.global_step, query::ModeName(rows.info.mode),
             rows.info.mode_step, rows.summaries.size(), text);
}

void Follow(const TailOptions& options) {
  const auto trial = OpenOrExit(options);
  std::size_t next = trial->step_count() > options.count ? trial->step_count() - options.count : 0;
  for (;;) {
    for (; next < trial->step_count(); ++next) PrintStep(*trial, next, options.json);
    std::fflush(stdout);
    if (!options.follow || trial->loaded_all_steps()) break;
    const auto news = trial->WaitForNews(std::chrono::seconds(1));
    if (!news.ok()) ExitWithError(news.status());
  }
  if (!options.json && trial->loaded_all_steps()) fmt::print("{}\n", Escaped(trial->outcome().state));
  ExitWith(kExitOk);
}

}  // namespace

void AddTail(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("tail", "The latest steps, and those that come, until the run ends");
  auto options = std::make_shared<TailOptions>();
  AddRunOption(verb, options.get());
  verb->add_option("-n,--steps", options->count, "Steps shown of what is there")->capture_default_str();
  verb->add_flag("--follow,!--no-follow", options->follow, "Wait for more (default)");
  verb->callback([options] { Follow(*options); });
}

}  // namespace luff::cli
