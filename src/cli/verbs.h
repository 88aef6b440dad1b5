#pragma once
#include <CLI/CLI.hpp>

/// One function per verb file. Each adds its subcommand and a callback that ends with ExitWith.
namespace luff::cli {

/// Thrown by a verb's callback to end the program; main turns it into the exit code.
struct Exit {
  int code;
};
[[noreturn]] inline void ExitWith(int code) { throw Exit{code}; }

// Exit codes of luff itself. Otherwise `luff run` returns the training's own.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFindings = 1;      // luff check: findings, none of severity stop; damage
inline constexpr int kExitUsage = 2;         // wrong usage, or the named path is not a run
inline constexpr int kExitStopFindings = 3;  // luff check: a finding of severity stop
inline constexpr int kExitAgain = 6;         // the bucket did not answer: the same command may work later
inline constexpr int kExitStopped = 76;      // luff run: stopped by a finding

void AddRun(CLI::App& app);
void AddEvaluate(CLI::App& app);
void AddRuleChild(CLI::App& app);
void AddSample(CLI::App& app);
void AddWatch(CLI::App& app);
void AddCard(CLI::App& app);
void AddHeir(CLI::App& app);
void AddCheck(CLI::App& app);
void AddCompare(CLI::App& app);
void AddRequest(CLI::App& app);
void AddRules(CLI::App& app);
void AddRuns(CLI::App& app);
void AddServe(CLI::App& app);
void AddMetrics(CLI::App& app);
void AddKeys(CLI::App& app);
void AddLog(CLI::App& app);
void AddStop(CLI::App& app);
void AddCapture(CLI::App& app);
void AddTrace(CLI::App& app);
void AddMark(CLI::App& app);
void AddLabel(CLI::App& app);
void AddTag(CLI::App& app);
void AddShow(CLI::App& app);
void AddTensors(CLI::App& app);
void AddValue(CLI::App& app);
void AddSummary(CLI::App& app);
void AddSync(CLI::App& app);
void AddTail(CLI::App& app);
void AddPlot(CLI::App& app);
void AddProfile(CLI::App& app);
void AddVerify(CLI::App& app);
void AddExplain(CLI::App& app);
void AddReport(CLI::App& app);
void AddPrune(CLI::App& app);
void AddExport(CLI::App& app);

}  // namespace luff::cli
