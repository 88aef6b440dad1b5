#include <cstdio>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/rules/choice.h"
#include "luff/rules/rule.h"

namespace luff::cli {
namespace {

using Json = nlohmann::ordered_json;

Json Describe(const rules::RuleSpec& rule) {
  Json parameters = Json::array();
  for (const rules::Parameter& p : rule.parameters) {
    parameters.push_back(
        {{"name", p.name}, {"luff", p.luff_default}, {"original", p.original_default}, {"meaning", p.doc}});
  }
  return {{"name", rule.name},
          {"version", rule.version},
          {"summary", rule.summary},
          {"page", rule.page},
          {"parameters", std::move(parameters)}};
}

void List(bool json) {
  if (json) {
    Json all = Json::array();
    for (const rules::RuleSpec& rule : rules::BuiltinRules()) all.push_back(Describe(rule));
    fmt::print("{}\n", all.dump(2));
    return;
  }
  for (const rules::RuleSpec& rule : rules::BuiltinRules())
    fmt::print("{:<20} {}\n", rule.name, rule.summary);
  fmt::print("\n`luff rules explain NAME` says more of one.\n");
}

void Explain(const std::string& name, bool json) {
  const Result<const rules::RuleSpec*> found = rules::FindRule(name);
  if (!found.ok()) {
    PrintError(found.status());
    ExitWith(kExitUsage);
  }
  const rules::RuleSpec& rule = *found.value();
  if (json) {
    fmt::print("{}\n", Describe(rule).dump(2));
    return;
  }
  fmt::print("{}: {}\n\nParameters (Luff's default, the original's default):\n", rule.name, rule.summary);
  for (const rules::Parameter& p : rule.parameters) {
    fmt::print("  {:<28} {:<10} {:<10} {}\n", p.name, p.luff_default, p.original_default, p.doc);
  }
  fmt::print("\nUse: luff run --rules {}{} -- python train.py\nPage: {}\n", rule.name,
             rule.parameters.empty()
                 ? ""
                 : fmt::format(":{}={}", rule.parameters.back().name, rule.parameters.back().luff_default),
             rule.page);
}

}  // namespace

void AddRules(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("rules", "List the built-in rules, or explain one");
  static bool json = false;
  static std::string name;
  verb->add_flag("--json", json, "Machine-readable");
  CLI::App* explain = verb->add_subcommand("explain", "Parameters and page of one rule");
  explain->add_option("NAME", name, "The rule")->required();
  explain->add_flag("--json", json, "Machine-readable");
  verb->callback([explain] {
    if (*explain) {
      Explain(name, json);
    } else {
      List(json);
    }
    ExitWith(kExitOk);
  });
}

}  // namespace luff::cli
