// luff._core: a thin, private binding without policy. One file and one Init function per area; the public
// Python modules in python/luff decide about defaults and names.
#include <nanobind/nanobind.h>

#include <string>

#include "luff/base/version.h"
#include "text.h"

namespace luff::python {

// One line per area, here and in the body below. CMakeLists.txt in this folder lists the files.
void InitErrors(nanobind::module_& m);
void InitOutput(nanobind::module_& m);
void InitPending(nanobind::module_& m);
void InitRegex(nanobind::module_& m);
#ifdef LUFF_CORE_CAPTURE
void InitPhases(nanobind::module_& m);
void InitSession(nanobind::module_& m);
void InitStacks(nanobind::module_& m);
void InitTerminate(nanobind::module_& m);
#endif
#ifdef LUFF_CORE_QUERY
void InitSamples(nanobind::module_& m);
void InitTrial(nanobind::module_& m);
#endif

}  // namespace luff::python

NB_MODULE(_core, m) {
  // A framework may keep objects that Luff has wrapped until the process ends; no warning should appear in
  // its output.
  nanobind::set_leak_warnings(false);
  m.doc() = "The C++ core of Luff. Private: use the modules of `luff`.";
  m.def("version", [] { return std::string(luff::Version()); }, "The version of this build.");
  luff::python::InitErrors(m);
  luff::python::InitOutput(m);
  luff::python::InitPending(m);
  luff::python::InitRegex(m);
#ifdef LUFF_CORE_CAPTURE
  luff::python::InitPhases(m);
  luff::python::InitSession(m);
  luff::python::InitStacks(m);
  luff::python::InitTerminate(m);
#endif
#ifdef LUFF_CORE_QUERY
  luff::python::InitSamples(m);
  luff::python::InitTrial(m);
#endif
}
