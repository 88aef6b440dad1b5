// luff._core: a call in the main thread, between two bytecodes of whatever runs there.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace luff::python {
namespace {

/// Runs in the main thread. What it raises goes on from there, as if that line had raised it: an interrupt,
/// or what a signal handler of the training's raises meanwhile.
int Call(void* held) {
  auto* const function = static_cast<PyObject*>(held);
  PyObject* const result = PyObject_CallNoArgs(function);
  Py_DECREF(function);
  Py_XDECREF(result);
  return result == nullptr ? -1 : 0;
}

}  // namespace

void InitPending(nb::module_& m);
void InitPending(nb::module_& m) {
  m.def(
      "call_soon",
      [](nb::object function) {
        // It would run in the main interpreter, which must not touch objects of another one.
        if (PyInterpreterState_Get() != PyInterpreterState_Main()) return false;
        PyObject* const held = function.release().ptr();
        if (Py_AddPendingCall(&Call, held) == 0) return true;
        Py_DECREF(held);
        return false;
      },
      nb::arg("function"),
      "The main thread calls it when it next comes to Python code. False: it will not, too many others "
      "wait.");
}

}  // namespace luff::python
