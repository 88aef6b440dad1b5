#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "luff/actions/coordinator.h"
#include "luff/base/status.h"

namespace luff::actions {

/// What the heir of a supervisor has to know: a process that obeys in its place what the hosts of the job
/// decide, if it dies after it may have consented (docs/spec/control.md, Several hosts).
struct Inheritance {
  std::string run;            // absolute
  std::string job, instance;  // of the supervisor, as HostLog has them
  Coordinator::Bequest bequest;
  StopSettings stop;
};

/// Goes on until the decision is carried out here, or all ranks of the run have left. `signal` sends a signal
/// to a rank's process; `say` prints a line. Errors: kAlreadyExists if the run has another supervisor; those
/// of opening the run; kNotFound if the bequest is not in its log.
[[nodiscard]] Status Inherit(const Inheritance& inheritance, std::unique_ptr<HostSeal> seal,
                             const std::function<void(std::uint64_t pid, int number)>& signal,
                             const std::function<void(const std::string& text)>& say);

}  // namespace luff::actions
