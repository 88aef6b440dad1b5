#include "base/format.h"
#include "cli/reading.h"
#include "cli/tensor_names.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

namespace luff::cli {
namespace {

struct SummaryOptions : ReadOptions {
  std::string name;
};

std::string StepTitle(query::Mode mode) {
  return mode == query::Mode::kGlobal ? "step" : fmt::format("{} step", query::ModeName(mode));
}

/// Steps are numbered as `mode` counts them.
void PrintColumns(const query::SummaryColumns& columns, query::Mode mode) {
  fmt::print("{:>12} {:>8} {:>12} {:>12} {:>12} {:>12} {:>12} {:>10} {:>8} {:>8}\n", StepTitle(mode),
             "update", "min", "max", "mean", "std", "l2", "zeros", "nan", "inf");
  const auto& step = StepAs(mode, columns);
  for (std::size_t i = 0; i < columns.count.size(); ++i) {
    const bool none = NothingFinite(columns, i);
    const auto text = [&](double value) { return none ? std::string("-") : NumberText(value); };
    fmt::print("{:>12} {:>8} {:>12} {:>12} {:>12} {:>12} {:>12} {:>10} {:>8} {:>8}\n", step[i],
               columns.update[i], text(columns.min[i]), text(columns.max[i]), text(columns.mean[i]),
               text(columns.std[i]), text(columns.l2[i]), columns.zero_count[i], columns.nan_count[i],
               columns.inf_count[i]);
  }
}

/// An evaluation of several steps is followed by its mean.
void PrintScalars(const std::vector<query::ScalarAt>& scalars, query::Mode mode) {
  const bool global = mode == query::Mode::kGlobal;
  fmt::print("{:>12} {:>8} {:>12}{}\n", StepTitle(mode), "update", "value", global ? "  mode" : "");
  const auto evaluations =
      mode == query::Mode::kEval ? catalog::EvaluationsOf(scalars) : std::vector<catalog::Evaluation>();
  auto next = evaluations.begin();
  for (const auto& scalar : scalars) {
    fmt::print("{:>12} {:>8} {:>12}{}{}\n", StepAs(mode, scalar), scalar.update, NumberText(scalar.value),
               global ? "  " : "", global ? query::ModeName(scalar.mode) : "");
    if (next == evaluations.end() || next->mean.mode_step != scalar.mode_step) continue;
    if (next->steps > 1)
      fmt::print("{:>12} {:>8} {:>12}  mean of {}\n", "", next->mean.update, NumberText(next->mean.value),
                 StepsText(*next));
    ++next;
  }
}

/// The newest evaluation of a scalar that is shown in another mode.
std::string NewestEvaluation(const query::Trial& trial, query::TensorId id, const SummaryOptions& options,
                             query::Mode mode) {
  if (mode == query::Mode::kEval || mode == query::Mode::kGlobal) return "";
  const auto scalars = trial.Scalars(id, query::Mode::kEval, options.worker);
  if (!scalars.ok() || scalars->empty()) return "";
  const catalog::Evaluation newest = catalog::EvaluationsOf(*scalars).back();
  return fmt::format("{} in the newest evaluation (EVAL {}, update {})", NumberText(newest.mean.value),
                     StepsText(newest), newest.mean.update);
}

void Show(const SummaryOptions& options) {
  const auto trial = OpenOrExit(options);
  const auto id = ValueOrExit(FindMeant(*trial, options.name));
  const query::Mode mode = ModeOfTensor(options, *trial, id);
  const std::string& name = trial->tensor(id).name;
  const auto columns = ValueOrExit(trial->Summaries(id, mode, options.worker));
  const auto scalars = ValueOrExit(trial->Scalars(id, mode, options.worker));
  if (options.json) {
    Json json{{"name", name}, {"mode", query::ModeName(mode)}};
    json["summaries"] = {{"step", columns.global_step},
                         {"mode_step", columns.mode_step},
                         {"update", columns.update},
                         {"count", columns.count},
                         {"min", columns.min},
                         {"max", columns.max},
                         {"mean", columns.mean},
                         {"std", columns.std},
                         {"sum", columns.sum},
                         {"abs_mean", columns.abs_mean},
                         {"l2", columns.l2},
                         {"zero_count", columns.zero_count},
                         {"nan_count", columns.nan_count},
                         {"inf_count", columns.inf_count}};
    Json steps = Json::array();
    Json mode_steps = Json::array();
    Json values = Json::array();
    for (const auto& scalar : scalars) {
      steps.push_back(scalar.global_step);
      mode_steps.push_back(scalar.mode_step);
      values.push_back(scalar.value);
    }
    json["scalars"] = {
        {"step", std::move(steps)}, {"mode_step", std::move(mode_steps)}, {"value", std::move(values)}};
    json["evaluations"] = Json::array();
    if (mode == query::Mode::kEval)
      for (const auto& one : catalog::EvaluationsOf(scalars))
        json["evaluations"].push_back(EvaluationJson(one));
    PrintJson(json, -1);
    ExitWith(kExitOk);
  }
  if (columns.count.empty() && scalars.empty()) {
    fmt::print("nothing was recorded of {} in mode {}\n", Escaped(name), query::ModeName(mode));
    ExitWith(kExitOk);
  }
  // A loss has both, and its scalars are enough.
  if (!scalars.empty())
    PrintScalars(scalars, mode);
  else
    PrintColumns(columns, mode);
  if (const std::string newest = NewestEvaluation(*trial, id, options, mode); !newest.empty())
    fmt::print("{}\n", newest);
  if (const std::string others = OtherModes(*trial, id, mode); !others.empty()) fmt::print("{}\n", others);
  ExitWith(kExitOk);
}

}  // namespace

void AddSummary(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("summary", "Statistics of one tensor over all steps");
  auto options = std::make_shared<SummaryOptions>();
  AddRunOption(verb, options.get());
  verb->add_option("NAME", options->name, "Name of the tensor or scalar")->required();
  AddModeOption(verb, options.get());
  verb->callback([options] {
    FindRunOrExit(&options->run, Rows::kAsked);
    Show(*options);
  });
}

}  // namespace luff::cli
