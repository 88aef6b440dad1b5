#pragma once
#include <nanobind/nanobind.h>

#include "luff/capture/session.h"

/// SIGTERM in a training process: recorded data reaches the run, and the process dies of the signal as it
/// would without Luff, at most 0.5 s later (docs/adr/0014-signals-and-job-control.md).
///
/// The handler is installed only while a session is open and SIGTERM has its default action; Python still
/// shows that default. Python's part (`on_terminate`) runs in the main thread if that reaches Python code in
/// time; then Luff's own thread ends the sessions that are still open. Forked children get the default action
/// back.
namespace luff::python {

void EndAtTerminate(capture::Session* session) noexcept;
/// Call it when the session is closed, or about to be destroyed.
void ForgetAtTerminate(capture::Session* session) noexcept;

void InitTerminate(nanobind::module_& m);

}  // namespace luff::python
