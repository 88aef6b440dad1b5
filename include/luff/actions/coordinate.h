#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "luff/actions/gate.h"
#include "luff/base/status.h"

namespace luff::actions {

/// Answers one request of a run that has no supervisor: takes the supervisor's lock, proposes to the workers,
/// and writes the reply. Returns when it is there, when no worker records any more (the reply then says so),
/// or as soon as `leave` is true. Calls `leave` every 20 ms; sends no signals. Errors: kAlreadyExists if a
/// supervisor has the lock, who answers; those of opening the run. `gate`: of the run, as RunnerOptions has
/// it.
[[nodiscard]] Status Coordinate(const std::string& run, std::uint64_t request,
                                const std::function<bool()>& leave, std::shared_ptr<Gate> gate);

/// True if a process that records into the run lives.
[[nodiscard]] bool IsTraining(const std::string& run);

}  // namespace luff::actions
