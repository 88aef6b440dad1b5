#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/format.h"
#include "base/nearest_names.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/base/process.h"
#include "luff/base/version.h"
#include "luff/query/trial.h"

namespace {

// Formats an error of CLI11, with the nearest known word for an unknown one, and where to find help.
std::string UsageError(const CLI::App* app, const CLI::Error& error) {
  const CLI::App* verb = app;
  if (const auto used = app->get_subcommands(); !used.empty()) verb = used.front();
  std::string text = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
      (verb == app && !app->remaining().empty())) {
    std::string word;
    for (const std::string& extra : app->remaining(true)) {
      if (word.empty() && extra != "--") word = extra;
    }
    const bool option = word.starts_with('-');
    std::vector<std::string> known;
    if (option) {
      for (const CLI::Option* o : verb->get_options()) {
        for (const std::string& name : o->get_lnames()) known.push_back("--" + name);
      }
    } else {
      for (const CLI::App* one :
           verb->get_subcommands([](const CLI::App* a) { return !a->get_group().empty(); }))
        known.push_back(one->get_name());
    }
    const std::string what = option ? "option" : verb == app ? "command" : "argument";
    text = fmt::format("unknown {} '{}'", what, luff::Escaped(word.substr(0, word.find('='))));
    if (what != "argument") text += luff::NearestText(word.substr(0, word.find('=')), known);
  }
  const std::string name = verb == app ? "luff" : "luff " + verb->get_name();
  return fmt::format("luff: {}; see `{} --help`\n", luff::EscapedLines(text), name);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace luff::cli;  // NOLINT: the verbs
  luff::HoldStandardStreams();
  luff::LoseWhatStderrCannotTake();
  CLI::App app{
      "Watches a model train: records tensors, checks them with rules, reports what is wrong, stops bad "
      "jobs.",
      "luff"};
  app.set_version_flag("--version", fmt::format("luff {}", luff::Version()));
  app.require_subcommand(1);
  app.failure_message(UsageError);
  try {
    AddRun(app);
    AddWatch(app);
    AddCheck(app);
    AddExplain(app);
    AddReport(app);
    AddRules(app);
    AddRuns(app);
    AddCompare(app);
    AddSync(app);
    AddPrune(app);
    AddServe(app);
    AddMetrics(app);
    AddLog(app);
    AddStop(app);
    AddCapture(app);
    AddTrace(app);
    AddRequest(app);
    AddKeys(app);
    AddMark(app);
    AddLabel(app);
    AddTag(app);
    AddShow(app);
    AddTensors(app);
    AddValue(app);
    AddSummary(app);
    AddTail(app);
    AddPlot(app);
    AddProfile(app);
    AddVerify(app);
    AddExport(app);
    AddEvaluate(app);
    AddRuleChild(app);
    AddSample(app);
    AddCard(app);
    AddHeir(app);
    app.parse(argc, argv);
  } catch (const Exit& exit) {
    std::fflush(stdout);
    return exit.code;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  } catch (const std::exception& error) {
    fmt::print(stderr, "luff: internal error: {}\n", luff::Escaped(error.what()));
    return 70;
  }
  return kExitOk;
}
