// luff._core: what the training thread is doing. Called several times a step, so nothing here can fail.
#include <nanobind/nanobind.h>

#include <cstdint>

#include "luff/capture/module_timer.h"
#include "luff/capture/phases.h"
#include "text.h"

namespace nb = nanobind;

namespace luff::python {
namespace {

constexpr long kOldest = 2;  // generation

/// A call-back of Python's collector, for collections of everything; the others take microseconds.
void Collecting(nb::handle phase, nb::handle info) noexcept {
  PyObject* const generation =
      PyDict_Check(info.ptr()) ? PyDict_GetItemString(info.ptr(), "generation") : nullptr;
  if (generation == nullptr || !PyLong_Check(generation)) return;
  const long number = PyLong_AsLong(generation);
  if (number == -1) PyErr_Clear();
  if (number < kOldest) return;
  if (!PyUnicode_Check(phase.ptr()) || PyUnicode_GetLength(phase.ptr()) == 0) return;
  const bool begins = PyUnicode_CompareWithASCIIString(phase.ptr(), "start") == 0;
  (begins ? capture::EnterPhase : capture::LeavePhase)(format::Phase::kGc);
}

}  // namespace

void InitPhases(nb::module_& m);
void InitPhases(nb::module_& m) {
  m.def(
      "enter_phase", [](std::uint8_t phase) { capture::EnterPhase(static_cast<format::Phase>(phase)); },
      nb::arg("phase"), "The calling thread is in this phase until `leave_phase`.");
  m.def(
      "enter_wait",
      [](std::uint32_t loader, std::uint32_t worker, std::uint32_t ready) {
        capture::EnterWait({loader, worker, ready});
      },
      nb::arg("loader"), nb::arg("worker"), nb::arg("ready"),
      "It waits for a batch: number of the loader, of the worker that makes it, and of the batches that are "
      "ready; "
      "2**32 - 1 in each: not known. Left by `leave_phase(DATA_WAIT)`.");
  m.def(
      "leave_phase", [](std::uint8_t phase) { capture::LeavePhase(static_cast<format::Phase>(phase)); },
      nb::arg("phase"), "It is no longer.");
  nb::class_<capture::ModuleTimer>(m, "ModuleTimer",
                                   "How long the calls of modules take in one step. No call raises.")
      .def(nb::init<>())
      .def("begin", &capture::ModuleTimer::Begin, "A step begins.")
      .def("enter", &capture::ModuleTimer::Enter, nb::arg("module"),
           "A call of a module begins; its time begins with `resume`. Returns the number of the call.")
      .def("leave", &capture::ModuleTimer::Leave, nb::arg("call"),
           "It has ended; the time of the call around it goes on with `resume`.")
      .def("pause", &capture::ModuleTimer::Pause, "From here to `resume` time belongs to no module.")
      .def("resume", &capture::ModuleTimer::Resume, "The time of the innermost call goes on.")
      .def("stamp", &capture::ModuleTimer::StampOf, nb::arg("call"), nb::arg("leaves"),
           "What a node of the graph says to `at`: a backward pass comes to this call, or leaves it.")
      .def(
          "at", [](capture::ModuleTimer& timer, std::uint64_t stamp, nb::handle) { timer.At(stamp); },
          nb::arg("stamp"), nb::arg("gradients") = nb::none(),
          "A backward pass has come to a node with this stamp.")
      .def("backward_begins", &capture::ModuleTimer::BackwardBegins, "Stamps count from here on.")
      .def("backward_ends", &capture::ModuleTimer::BackwardEnds, "They count no more.")
      .def("tell", &capture::ModuleTimer::Tell, nb::arg("flag"),
           "Something cannot be seen: 1: modules inside a graph; 2: a backward pass computes activations "
           "again.");
  m.def("forget_phases", &capture::ForgetPhases, "In a forked child: forget what the parent was doing.");
  m.def("collecting", &Collecting, nb::arg("phase"), nb::arg("info"), "A call-back for `gc.callbacks`.");
}

}  // namespace luff::python
