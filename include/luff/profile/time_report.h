#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "luff/profile/input.h"
#include "luff/profile/machine.h"
#include "luff/profile/module_table.h"
#include "luff/profile/phase_table.h"

/// Where the time of a run went, and what of it mending the input would save: what `luff profile`, the page
/// and reports say.
namespace luff::profile {

/// What to say first. How much is waited for data is what the table says; what mending it would save comes
/// from `means`: without the first 20 steps, first batches of epochs, the longest steps, and time without a
/// core.
struct TimeVerdict {
  std::string text;                 // one sentence
  std::optional<InputCause> cause;  // none: waits for data are no trouble, or there is too little to judge
  Means means;                      // of the steps that were judged
  double saving_s = 0;              // in all of them
};

/// Loaders of one kind in the TRAIN steps of the table: a script may make a new one for each epoch.
struct LoaderUse {
  Loader loader;            // the first of them
  std::size_t loaders = 1;  // alike in type, dataset and workers
  double waited_s = 0;
  std::uint64_t batches = 0, ready = 0;       // asked for, and there within 0.2 ms
  std::map<std::uint32_t, double> by_worker;  // seconds of waiting, where the worker is known
};

struct TimeReport {
  PhaseTable table;
  TimeVerdict verdict;
  std::vector<LoaderUse> loaders;
  ModuleTable modules;  // of the same worker
};
/// Two passes over the run. Errors: those of TableOf.
[[nodiscard]] Result<TimeReport> TimeReportOf(const query::Trial& trial, const Scope& scope);

/// Why a table has no step, as a sentence.
[[nodiscard]] std::string WhyNoSteps(const query::Trial& trial, const PhaseTable& table);
/// What phases and modules of a run do not tell, as sentences.
[[nodiscard]] std::vector<std::string> NotSeen(const query::Trial& trial, const TimeReport& report);

/// Of the time for which they are known, the shares in which the training thread ran and waited for a core;
/// it slept in the rest. What the kernel counts begins and ends between steps, so a thread that never sleeps
/// can seem to run longer than its steps took: that is cut off. 0 and 0 where nothing is known.
struct ThreadShares {
  double cpu = 0, queue = 0;
};
[[nodiscard]] ThreadShares ThreadSharesOf(const PhaseTable& table) noexcept;

/// The machines of a run.
struct Machines {
  std::vector<MachineUse> all;
  std::vector<double> unsampled_s;    // of each: for how long the run went on after its sampler had died
  std::vector<std::string> not_seen;  // what was not measured, and why, as sentences
};
/// In a span of time. A run without samples has no machines, and says why.
[[nodiscard]] Machines MachinesOf(const query::Trial& trial, const query::TimeSpan& span = {});

}  // namespace luff::profile
