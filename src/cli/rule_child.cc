#include "cli/verbs.h"
#include "rules/own/plugin_child.h"

namespace luff::cli {

void AddRuleChild(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("_rule-child", "The process of one rule of a shared library");
  verb->group("");  // hidden
  verb->callback([] { ExitWith(rules::ServePluginRule()); });
}

}  // namespace luff::cli
