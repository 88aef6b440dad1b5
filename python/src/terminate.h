#pragma once
#include <nanobind/nanobind.h>

#include "luff/capture/session.h"

/// SIGTERM in a training process: what was recorded reaches the run, and the process dies of the signal as it
/// would without Luff, 0.5 s later at most (docs/adr/0014-signals-and-job-control.md).
///
/// A handler stands only while a session is open and nobody else has one: not Python, which shows the
/// default. It runs Python's part (`on_terminate`) in the main thread if that comes to Python code in time,
/// and ends the sessions from a thread of its own where it does not. Forked children have the default back.
namespace luff::python {

void EndAtTerminate(capture::Session* session) noexcept;
/// The session has been closed, or is about to go.
void ForgetAtTerminate(capture::Session* session) noexcept;

void InitTerminate(nanobind::module_& m);

}  // namespace luff::python
