#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "luff/query/run_pieces.h"
#include "luff/query/trial.h"

namespace luff::query {

/// A run as it is now, read once from its first step to its last, for who writes all of it elsewhere. It
/// holds one segment at a time, and of each other one some 20 KB, but no table of the steps as a Trial, whose
/// steps can be looked up. **Thread-compatible.**
class RunStream {
 public:
  /// Errors: as Trial::Open. A directory of smdebug's is kFailedPrecondition: it has no phases.
  [[nodiscard]] static Result<std::unique_ptr<RunStream>> Open(const std::string& path);
  ~RunStream();

  [[nodiscard]] const std::string& path() const noexcept;
  /// As query::DocumentOf(); "" for a worker that is not in the run.
  [[nodiscard]] std::string Document(std::uint32_t worker, std::string_view name) const;

  using StepVisitor = std::function<void(const StepInfo&, std::uint32_t worker)>;
  /// Calls `phases` as VisitPhases() does: for the steps that are complete and not superseded, worker by
  /// worker, ascending. Before the phases of a segment come, `step` is called for each of its steps, also for
  /// those without phases. Numbers and times are the worker's own. Errors: those of reading.
  [[nodiscard]] Status Visit(const PhasesVisitor& phases, const StepVisitor& step) const;

 private:
  class State;
  explicit RunStream(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace luff::query
