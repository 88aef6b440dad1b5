#include <cstdio>
#include <exception>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/verbs.h"
#include "luff/base/version.h"

int main(int argc, char** argv) {
  using namespace luff::cli;  // NOLINT: the verbs
  CLI::App app{
      "Watches a model train: records tensors, checks them with rules, says what is wrong, stops bad jobs.",
      "luff"};
  app.set_version_flag("--version", fmt::format("luff {}", luff::Version()));
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  try {
    AddRun(app);
    AddCheck(app);
    AddRules(app);
    AddShow(app);
    AddTensors(app);
    AddValue(app);
    AddSummary(app);
    AddTail(app);
    AddPlot(app);
    AddVerify(app);
    AddEvaluate(app);
    app.parse(argc, argv);
  } catch (const Exit& exit) {
    std::fflush(stdout);
    return exit.code;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  } catch (const std::exception& error) {
    fmt::print(stderr, "luff: internal error: {}\n", error.what());
    return 70;
  }
  return kExitOk;
}
