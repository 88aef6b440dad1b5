#include <cstdio>
#include <string>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "cli/reading.h"
#include "cli/rule_cost.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/rules/choice.h"
#include "luff/rules/rule.h"
#include "server/rule_pages.h"

namespace luff::cli {
namespace {

Json Describe(const rules::RuleSpec& rule) {
  Json parameters = Json::array();
  for (const rules::Parameter& p : rule.parameters) {
    parameters.push_back(
        {{"name", p.name}, {"luff", p.luff_default}, {"original", p.original_default}, {"meaning", p.doc}});
  }
  return {{"name", rule.name},       {"version", rule.version}, {"summary", rule.summary},
          {"aliases", rule.aliases}, {"page", rule.page},       {"parameters", std::move(parameters)}};
}

void List(bool json) {
  if (json) {
    Json all = Json::array();
    for (const rules::RuleSpec& rule : rules::BuiltinRules()) all.push_back(Describe(rule));
    PrintJson(all);
    return;
  }
  for (const rules::RuleSpec& rule : rules::BuiltinRules())
    fmt::print("{:<26} {}\n", rule.name, rule.summary);
  fmt::print("\n`luff rules explain NAME` says more of one, `luff rules --cost` what each needs captured.\n");
}

/// Prints what each rule needs, and, given a run with the sizes of tensors, what omitting the rule saves.
void Cost(const std::string& run, bool json) {
  std::unique_ptr<query::Trial> trial;
  std::unique_ptr<CostModel> model;
  if (!run.empty()) {
    ReadOptions options;
    options.run = run;
    FindRunOrExit(&options.run);
    trial = OpenOrExit(options);
    model = std::make_unique<CostModel>(*trial);
  }
  const std::vector<rules::Choice> choices =
      ValueOrExit(rules::ParseChoices("all", rules::ParameterSet::kLuff));
  const auto needs_without = [&](const rules::RuleSpec* left_out) {
    std::vector<rules::Need> needs = DefaultNeeds();
    for (const rules::Choice& choice : choices) {
      if (choice.spec == left_out) continue;
      for (rules::Need& need : choice.spec->needs(choice.parameters)) needs.push_back(std::move(need));
    }
    return needs;
  };
  const auto amount = [](double bytes) { return SizeText(static_cast<std::uint64_t>(bytes)); };
  Json all = Json::array();
  const CaptureCost whole = model ? model->CostOf(needs_without(nullptr)) : CaptureCost{};
  for (const rules::Choice& choice : choices) {
    const std::vector<rules::Need> needs = choice.spec->needs(choice.parameters);
    Json one{{"rule", choice.spec->name}, {"needs", Json::array()}};
    for (const rules::Need& need : needs) one["needs"].push_back(NeedText(need));
    std::string adds;
    if (model) {
      const CaptureCost without = model->CostOf(needs_without(choice.spec));
      one["adds_read_bytes_per_step"] = whole.read - without.read;
      one["adds_kept_bytes_per_step"] = whole.kept - without.kept;
      adds = fmt::format("  adds {} read, {} kept a step", amount(whole.read - without.read),
                         amount(whole.kept - without.kept));
    }
    all.push_back(std::move(one));
    if (json) continue;
    fmt::print("{}{}\n", choice.spec->name, adds);
    for (const rules::Need& need : needs) fmt::print("    {}\n", Wrapped(NeedText(need), 6, 100, 4));
    if (needs.empty()) fmt::print("    nothing beyond losses, events and what is always taken\n");
  }
  if (json) {
    PrintJson(all);
  } else if (model) {
    const CaptureCost none = model->CostOf(DefaultNeeds());
    fmt::print("\nwithout rules: {} read, {} kept a step; with all of them: {} read, {} kept\n",
               amount(none.read), amount(none.kept), amount(whole.read), amount(whole.kept));
  } else {
    fmt::print("\n`luff rules --cost --run RUN` prices them by the tensors of a run.\n");
  }
}

/// Prints the author's description of a user's own rule, and its parameters.
void PrintOwn(const rules::RuleSpec& rule) {
  fmt::print("{}: a rule of yours, {}\n\n", Escaped(rule.name), Escaped(rule.source));
  std::string_view text = rule.text.empty() ? rule.summary : rule.text;
  if (text.empty()) fmt::print("It has no docstring.\n");
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    fmt::print("{}\n", Escaped(text.substr(0, end)));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  fmt::print("\nParameters (default):\n");
  for (const rules::Parameter& p : rule.parameters)
    fmt::print("  {:<28} {:<10} {}\n", Escaped(p.name), Escaped(p.luff_default), Escaped(p.doc));
  if (rule.parameters.empty()) fmt::print("  none\n");
}

/// Returns the rule of that name; parameters may follow the name, as in `--rules`.
rules::Choice ChoiceOrExit(const std::string& name) {
  Result<std::vector<rules::Choice>> choices = rules::ParseChoices(name, rules::ParameterSet::kLuff);
  if (choices.ok() && choices.value().size() == 1) return std::move(choices.value().front());
  PrintError(choices.ok()
                 ? InvalidArgument("one rule can be explained at a time, or `luff rules` lists all: " +
                                   Escaped(name))
                 : choices.status());
  ExitWith(kExitUsage);
}

void Explain(const std::string& name, bool json) {
  const rules::Choice choice = ChoiceOrExit(name);
  const rules::RuleSpec& rule = *choice.spec;
  const bool own = !rule.source.empty();
  const std::vector<rules::Need> needs = rule.needs(choice.parameters);
  if (json) {
    Json described = Describe(rule);
    if (own) {
      described["source"] = rule.source;
      described["text"] = rule.text;
    }
    described["needs"] = Json::array();
    for (const rules::Need& need : needs) described["needs"].push_back(NeedText(need));
    PrintJson(described);
    return;
  }
  if (own) {
    PrintOwn(rule);
  } else {
    fmt::print("{}\nParameters (Luff's default, the original's default):\n", server::RulePage(rule.page));
    for (const rules::Parameter& p : rule.parameters)
      fmt::print("  {:<28} {:<10} {:<10} {}\n", p.name, p.luff_default, p.original_default, p.doc);
  }
  fmt::print("\nCaptured for it:\n");
  for (const rules::Need& need : needs) fmt::print("  {}\n", Escaped(NeedText(need)));
  if (needs.empty()) fmt::print("  nothing beyond losses, events and what is always taken\n");
  std::string use = own ? rule.source : rule.name;
  if (!rule.parameters.empty()) {
    const rules::Parameter& last = rule.parameters.back();
    use += fmt::format(":{}={}", last.name, last.luff_default.empty() ? "VALUE" : last.luff_default);
  }
  fmt::print("\nUse: luff run --rules {} -- python train.py\n", Escaped(use));
}

}  // namespace

void AddRules(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("rules", "List the built-in rules, or explain one");
  static bool json = false;
  static bool cost = false, capture = false;
  static std::string name, run, capture_rules = "all";
  verb->add_flag("--json", json, "Machine-readable");
  verb->add_flag("--cost", cost, "What each rule needs captured");
  verb->add_flag("--capture", capture, "The capture configuration that the rules together ask for, as JSON");
  verb->add_option("--rules", capture_rules, "With --capture: these rules instead of all");
  verb->add_option("--run", run, "With --cost: a run that gives the sizes of tensors");
  CLI::App* explain = verb->add_subcommand("explain", "Parameters and page of one rule");
  explain->add_option("NAME", name, "The rule; one of yours: path/to/file.py:Rule")->required();
  explain->add_flag("--json", json, "Machine-readable");
  verb->callback([explain] {
    if (*explain) {
      Explain(name, json);
    } else if (capture) {
      const auto choices = ValueOrExit(rules::ParseChoices(capture_rules, rules::ParameterSet::kLuff));
      fmt::print("{}\n", ValueOrExit(rules::CaptureConfigFor(choices)));
    } else if (cost) {
      Cost(run, json);
    } else {
      List(json);
    }
    ExitWith(kExitOk);
  });
}

}  // namespace luff::cli
