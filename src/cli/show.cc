#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "cli/reading.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

namespace luff::cli {
namespace {

namespace fs = std::filesystem;

/// Lines of rules/*/findings.jsonl.
std::uint64_t CountFindings(const std::string& run) {
  std::uint64_t count = 0;
  std::error_code error;
  for (fs::directory_iterator at(run + "/rules", error), end; !error && at != end; at.increment(error)) {
    std::ifstream file(at->path() / "findings.jsonl");
    for (std::string line; std::getline(file, line);) count += line.empty() ? 0 : 1;
  }
  return count;
}

std::pair<std::uint64_t, std::uint64_t> CountFiles(const std::string& run) {
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator at(run, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (!at->is_regular_file(ignored)) continue;
    ++files;
    const auto size = at->file_size(ignored);
    if (!ignored) bytes += size;
  }
  return {files, bytes};
}

Json Describe(const query::Trial& trial) {
  const auto outcome = trial.outcome();
  const auto [files, bytes] = CountFiles(trial.path());
  Json json;
  json["run"] = trial.path();
  json["outcome"] = outcome.state;
  json["why"] = outcome.why;
  json["created_unix_ns"] = trial.created_unix_ns();
  json["steps"] = trial.Steps(query::Mode::kGlobal).size();
  json["modes"] = Json::object();
  for (const query::Mode mode : {query::Mode::kTrain, query::Mode::kEval, query::Mode::kPredict}) {
    const auto steps = trial.Steps(mode);
    if (steps.empty()) continue;
    json["modes"][std::string(query::ModeName(mode))] = {
        {"steps", steps.size()}, {"first", steps.front()}, {"last", steps.back()}};
  }
  json["tensors"] = trial.tensor_count();
  json["collections"] = trial.CollectionNames();
  json["world_size"] = trial.world_size();
  json["workers"] = Json::array();
  for (const query::WorkerInfo& w : trial.workers()) {
    json["workers"].push_back({{"worker", w.worker},
                               {"alive", w.alive},
                               {"ended", w.ended},
                               {"last_step", w.last_global_step},
                               {"last_train_step", w.last_train_step},
                               {"heartbeat_unix_ns", w.heartbeat_unix_ns}});
  }
  json["findings"] = CountFindings(trial.path());
  json["gaps"] = Json::array();
  for (const query::GapInfo& g : trial.Gaps()) {
    json["gaps"].push_back({{"worker", g.worker},
                            {"tensor", g.tensor},
                            {"collection", g.collection},
                            {"reason", g.reason},
                            {"forms", g.forms},
                            {"count", g.count},
                            {"bytes", g.bytes},
                            {"first_step", g.first_step},
                            {"last_step", g.last_step}});
  }
  json["files"] = files;
  json["bytes"] = bytes;
  json["problems"] = trial.Problems();
  return json;
}

void Print(const query::Trial& trial, const Json& json) {
  const auto outcome = trial.outcome();
  fmt::print("{}\n  outcome   {}{}{}\n", Escaped(trial.path()), Escaped(outcome.state),
             outcome.why.empty() ? "" : ": ", Escaped(outcome.why));
  std::string modes;
  for (const auto& [mode, steps] : json["modes"].items()) {
    modes += fmt::format("{}{} {}", modes.empty() ? " (" : ", ", mode, steps["steps"].get<std::size_t>());
  }
  fmt::print("  steps     {}{}\n  tensors   {}\n", json["steps"].get<std::size_t>(),
             modes.empty() ? "" : modes + ")", trial.tensor_count());
  std::string collections;
  for (const std::string& name : trial.CollectionNames())
    collections += (collections.empty() ? "" : ", ") + Escaped(name);
  if (!collections.empty()) fmt::print("  collected {}\n", collections);
  for (const query::WorkerInfo& w : trial.workers()) {
    fmt::print("  worker {}  {}, last step {}\n", w.worker,
               w.ended   ? "ended"
               : w.alive ? "alive"
                         : "lost",
               w.last_global_step);
  }
  fmt::print("  findings  {}\n  size      {} in {} files\n", json["findings"].get<std::uint64_t>(),
             SizeText(json["bytes"].get<std::uint64_t>()), json["files"].get<std::uint64_t>());
  const auto gaps = trial.Gaps();
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    if (i == 10) {
      fmt::print("  gap       and {} more (--json)\n", gaps.size() - i);
      break;
    }
    const query::GapInfo& g = gaps[i];
    const std::string of = !g.tensor.empty()       ? " of " + Escaped(g.tensor)
                           : !g.collection.empty() ? " of " + Escaped(g.collection)
                                                   : "";
    fmt::print("  gap       {} times {}{}: {}, steps {} to {}\n", g.count, g.forms.empty() ? "rows" : g.forms,
               of, g.reason, g.first_step, g.last_step);
  }
  for (const std::string& problem : trial.Problems()) fmt::print("  damage    {}\n", Escaped(problem));
}

}  // namespace

void AddShow(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("show", "What a run holds and how it ended");
  auto options = std::make_shared<ReadOptions>();
  AddRunOption(verb, options.get());
  verb->callback([options] {
    const auto trial = OpenOrExit(*options);
    const Json json = Describe(*trial);
    if (options->json)
      PrintJson(json);
    else
      Print(*trial, json);
    ExitWith(kExitOk);
  });
}

}  // namespace luff::cli
