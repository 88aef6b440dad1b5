// luff._core: says where this interpreter keeps its stacks, for the writer thread, which reads them without
// Python's lock.
#include "luff/capture/stacks.h"

#include <nanobind/nanobind.h>

#include <string>

#include "interpreter.h"
#include "text.h"

namespace nb = nanobind;

namespace luff::python {

void InitStacks(nb::module_& m);
void InitStacks(nb::module_& m) {
  m.def(
      "know_stacks",
      [](std::string package) {
        LuffPythonLayout layout;
        LuffDescribeInterpreter(&layout);
        capture::SetPython(layout, std::move(package));
      },
      nb::arg("package"),
      "Lets sessions read the stacks of this interpreter's threads. `package`: the folder of Luff's own "
      "package.");
}

}  // namespace luff::python
