#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "luff/format/frames.h"
#include "luff/query/trial.h"

/// What run directories hold beyond what every trial shows: the steps of each worker, and histograms over
/// many steps. A trial over another kind of directory has none of it.
namespace luff::query {

/// A step as one worker passed it.
struct WorkerStep {
  std::size_t n = 0;  // position, see Trial::step_at()
  std::int64_t wall_unix_ns = 0, duration_ns = 0;
};
/// The complete steps of one worker, in the order in which it passed them; superseded ones are left out.
/// Errors: kNotFound for a worker that is not in the run.
[[nodiscard]] Result<std::vector<WorkerStep>> WorkerSteps(const Trial& trial, std::uint32_t worker);

using HistogramVisitor = std::function<void(const StepInfo&, const SparseHistogram&)>;
/// Calls `use` for each complete step from `from` to `to` (global steps) that holds a histogram of the
/// tensor, of the first worker that has it there; superseded steps are left out. kResourceExhausted when more
/// than `max_bytes` would have to be read: histograms of all tensors of a step lie together.
[[nodiscard]] Status VisitHistograms(const Trial& trial, TensorId id, std::int64_t from, std::int64_t to,
                                     std::uint64_t max_bytes, const HistogramVisitor& use);

/// A document of one worker: what Trial::Document() shows is that of the first one that has it. "" if absent.
[[nodiscard]] std::string DocumentOf(const Trial& trial, std::uint32_t worker, std::string_view name);

using PhasesVisitor = std::function<void(const StepInfo&, const StepPhases&)>;
/// Calls `use` for the phases of each complete step, worker by worker, ascending; superseded steps are left
/// out. Errors: those of reading.
[[nodiscard]] Status VisitPhases(const Trial& trial, const PhasesVisitor& use);

using ModulesVisitor =
    std::function<void(const StepInfo&, std::uint32_t worker, const format::ModuleTimesView&)>;
/// The same for the times of modules, in the steps that have some.
[[nodiscard]] Status VisitModules(const Trial& trial, const ModulesVisitor& use);

}  // namespace luff::query
