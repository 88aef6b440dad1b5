#include <algorithm>
#include <cstdio>
#include <map>

#include "base/format.h"
#include "cli/reading.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/format/names.h"
#include "luff/profile/input.h"

namespace luff::cli {
namespace {

struct TailOptions : ReadOptions {
  std::size_t count = 10;
  bool follow = true;
  bool phases = false;
};

/// Scalars by name, with the value of each worker that has one.
using Named = std::map<std::string, std::vector<std::pair<std::uint32_t, double>>>;

Json StepJson(const query::Trial::StepRows& rows, const Named& named) {
  Json scalars = Json::object();
  Json workers = Json::object();
  for (const auto& [name, values] : named) {
    scalars[name] = values.front().second;
    for (const auto& [worker, value] : values) workers[std::to_string(worker)][name] = value;
  }
  return {{"step", rows.info.global_step},          {"mode", query::ModeName(rows.info.mode)},
          {"mode_step", rows.info.mode_step},       {"update", rows.info.update},
          {"wall_unix_ns", rows.info.wall_unix_ns}, {"duration_ns", rows.info.duration_ns},
          {"summaries", rows.summaries.size()},     {"scalars", std::move(scalars)},
          {"scalars_by_worker", std::move(workers)}};
}

/// Seconds of each phase in which the first worker of a step was.
std::vector<std::pair<std::string, double>> PhasesOf(const query::Trial::StepRows& rows) {
  std::vector<std::pair<std::string, double>> named;
  if (rows.phases.empty()) return named;
  const query::StepPhases& phases = rows.phases.front();
  for (std::size_t i = 0; i < format::kPhaseCount; ++i) {
    if (phases.ns[i] != 0)
      named.emplace_back(format::PhaseName(static_cast<std::uint8_t>(i)),
                         static_cast<double>(phases.ns[i]) * 1e-9);
  }
  std::ranges::stable_sort(named, std::greater<>(), [](const auto& one) { return one.second; });
  return named;
}

/// Prints steps. Prints optimizer settings only when they change, since they are many and rarely change.
class Printer {
 public:
  Printer(const query::Trial& trial, bool json, bool phases) : trial_(trial), json_(json), phases_(phases) {}

  /// Takes the steps of the evaluation that step `n` goes on, so that its mean is of all of them.
  void Begin(std::size_t n) {
    std::size_t first = n;
    while (first > 0 && Goes(first - 1, n)) --first;
    for (; first < n; ++first)
      if (trial_.ReadStepRows(first, &rows_).ok()) Add();
  }

  void Print(std::size_t n) {
    const Status status = trial_.ReadStepRows(n, &rows_);
    if (!status.ok()) {
      PrintError(status);
      return;
    }
    if (rows_.info.mode != query::Mode::kEval || rows_.info.update != evaluated_.update) PrintMeans();
    Add();
    Named named;
    for (const auto& scalar : rows_.scalars)
      named[trial_.tensor(scalar.tensor).name].emplace_back(scalar.worker, scalar.value);
    if (json_) {
      Json step = StepJson(rows_, named);
      if (phases_) {
        step["phases"] = Json::object();
        for (const auto& [name, seconds] : PhasesOf(rows_)) step["phases"][name] = seconds;
      }
      return PrintJson(step, -1);
    }
    std::string text;
    if (phases_) {
      named.clear();
      for (const auto& [name, seconds] : PhasesOf(rows_))
        text += fmt::format("  {} {}", name, profile::TimeText(seconds));
      if (text.empty()) text = "  no phases";
    }
    for (const bool settings : {false, true}) {
      for (const auto& [name, values] : named) {
        if (settings != IsSetting(name)) continue;
        std::string shown;
        for (std::size_t i = 0; i < values.size(); ++i)
          shown += (i == 0 ? "" : ", ") + NumberText(values[i].second);
        if (settings) {
          const auto known = settings_.find(name);
          if (known != settings_.end() && known->second == shown) continue;
          settings_[name] = shown;
        }
        text += fmt::format("  {} {}", Escaped(name), shown);
      }
    }
    if (!header_)
      fmt::print("{:<7} {:>8} {:>8} {:>8} {:>8}\n", "mode", "step", "update", "of all", "seconds");
    header_ = true;
    fmt::print("{:<7} {:>8} {:>8} {:>8} {:>8.3f}{}\n", query::ModeName(rows_.info.mode), rows_.info.mode_step,
               rows_.info.update, rows_.info.global_step, static_cast<double>(rows_.info.duration_ns) * 1e-9,
               text);
  }

  /// Prints the means of an evaluation of several steps that has ended.
  void PrintMeans() {
    std::string text;
    for (const auto& [name, values] : losses_)
      if (values.size() > 1)
        text +=
            fmt::format("  {} {}", Escaped(name), NumberText(catalog::EvaluationsOf(values)[0].mean.value));
    if (!text.empty() && !json_ && !phases_)
      fmt::print("{:<7} {:>8} {:>8} {:>8} {:>8}{}  (mean of steps {} to {})\n", "EVAL", "mean",
                 evaluated_.update, "", "", text, first_, evaluated_.mode_step);
    losses_.clear();
  }

 private:
  /// Whether both are EVAL steps of one evaluation.
  [[nodiscard]] bool Goes(std::size_t one, std::size_t other) const {
    const query::StepInfo a = trial_.step_at(one);
    const query::StepInfo b = trial_.step_at(other);
    return a.mode == query::Mode::kEval && b.mode == query::Mode::kEval && a.update == b.update;
  }

  /// Adds the losses of an EVAL step, of the first worker that has them.
  void Add() {
    if (rows_.info.mode != query::Mode::kEval) return;
    if (losses_.empty()) first_ = rows_.info.mode_step;
    evaluated_ = rows_.info;
    for (const auto& scalar : rows_.scalars) {
      const query::TensorInfo& tensor = trial_.tensor(scalar.tensor);
      if (tensor.role != query::Role::kLoss) continue;
      std::vector<query::ScalarAt>& values = losses_[tensor.name];
      if (!values.empty() && values.back().mode_step == evaluated_.mode_step) continue;
      values.push_back(
          {evaluated_.global_step, evaluated_.mode_step, evaluated_.update, evaluated_.mode, scalar.value});
    }
  }

  [[nodiscard]] bool IsSetting(const std::string& name) const {
    const auto id = trial_.FindTensor(name);
    return id.ok() && trial_.tensor(*id).role == query::Role::kOptimizerSetting;
  }

  const query::Trial& trial_;
  const bool json_, phases_;
  bool header_ = false;
  query::Trial::StepRows rows_;
  std::map<std::string, std::string> settings_;
  query::StepInfo evaluated_;                                   // the last EVAL step
  std::int64_t first_ = 0;                                      // of its evaluation
  std::map<std::string, std::vector<query::ScalarAt>> losses_;  // of this evaluation
};

void Follow(const TailOptions& options) {
  const auto trial = OpenOrExit(options);
  std::size_t next = trial->step_count() > options.count ? trial->step_count() - options.count : 0;
  Printer printer(*trial, options.json, options.phases);
  if (next < trial->step_count()) printer.Begin(next);
  for (;;) {
    for (; next < trial->step_count(); ++next) printer.Print(next);
    std::fflush(stdout);
    if (!options.follow || trial->loaded_all_steps()) break;
    const auto news = trial->WaitForNews(std::chrono::seconds(1));
    if (!news.ok()) ExitWithError(news.status());
  }
  if (trial->loaded_all_steps()) printer.PrintMeans();
  if (!options.json && trial->loaded_all_steps()) fmt::print("{}\n", Escaped(trial->outcome().state));
  ExitWith(kExitOk);
}

}  // namespace

void AddTail(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("tail", "The latest steps, and new ones until the run ends");
  auto options = std::make_shared<TailOptions>();
  AddRunOption(verb, options.get());
  verb->add_option("-n,--steps", options->count, "Steps shown of what is there")->capture_default_str();
  verb->add_flag("--follow,!--no-follow", options->follow, "Wait for more (default)");
  verb->add_flag("--phases", options->phases, "Where the time of each step went, in place of its values");
  verb->callback([options] {
    FindRunOrExit(&options->run);
    Follow(*options);
  });
}

}  // namespace luff::cli
