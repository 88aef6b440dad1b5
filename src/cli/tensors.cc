#include "base/format.h"
#include "cli/reading.h"
#include "cli/tensor_names.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "rules/kit/need_names.h"

namespace luff::cli {
namespace {

struct TensorsOptions : ReadOptions {
  std::string regex, collection;
  std::optional<std::int64_t> step;
};

void List(const TensorsOptions& options) {
  const auto trial = OpenOrExit(options);
  auto names = ValueOrExit(
      trial->TensorNames({options.regex, options.collection, options.step, ModeOfRun(options, *trial)}));
  const bool by_name_only = options.collection.empty() && !options.step;
  if (names.empty() && !options.regex.empty() && by_name_only) names = NamesMeantBy(*trial, options.regex);
  if (names.empty() && !options.regex.empty() && by_name_only && !options.json)
    ExitWithError(FindMeant(*trial, options.regex).status());
  Json all = Json::array();
  for (const std::string& name : names) {
    const query::TensorInfo& info = trial->tensor(ValueOrExit(trial->FindTensor(name)));
    const std::string role_name = rules::RoleText(info.role);
    if (!options.json) {
      fmt::print("{:<18}{}{}\n", role_name, Escaped(name),
                 info.module_type.empty() ? "" : "  (" + Escaped(info.module_type) + ")");
      continue;
    }
    const auto steps = ValueOrExit(trial->TensorSteps(info.id, query::Mode::kGlobal));
    all.push_back({{"name", name},
                   {"role", role_name},
                   {"module", info.module_path},
                   {"module_type", info.module_type},
                   {"collections", info.collections},
                   {"steps", steps.size()},
                   {"first_step", steps.empty() ? Json(nullptr) : Json(steps.front())},
                   {"last_step", steps.empty() ? Json(nullptr) : Json(steps.back())}});
  }
  if (options.json) PrintJson(all);
  ExitWith(kExitOk);
}

}  // namespace

void AddTensors(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("tensors", "Names of tensors");
  auto options = std::make_shared<TensorsOptions>();
  AddRunOption(verb, options.get());
  verb->add_option("REGEX", options->regex,
                   "Searched anywhere in the name; or a role or collection, e.g. losses");
  verb->add_option("--collection", options->collection, "Only tensors of this collection");
  verb->add_option("--step", options->step, "Only tensors that have anything at this step");
  AddModeOption(verb, options.get());
  verb->callback([options] {
    FindRunOrExit(&options->run);
    List(*options);
  });
}

}  // namespace luff::cli
