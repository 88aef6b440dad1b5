// luff._core: output to files and terminals (base/text_escape.h, base/output_file.h).
#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

#include "base/output_file.h"
#include "base/text_escape.h"
#include "errors.h"
#include "text.h"

namespace nb = nanobind;

namespace luff::python {
namespace {

std::string_view View(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

}  // namespace

void InitOutput(nb::module_& m);
void InitOutput(nb::module_& m) {
  m.def("escaped", &Escaped, nb::arg("text"), "Text for a terminal: what steers one becomes \\xNN.");
  m.def("valid_text", &ValidUtf8, nb::arg("text"), "Text whose bytes that were no UTF-8 have become \\xNN.");
  m.def(
      "write_output",
      [](const std::string& path, const nb::bytes& bytes, bool replace) {
        auto file = Unwrap(OutputFile::Create(path, replace ? Existing::kReplace : Existing::kRefuse));
        ThrowIfError(file->Append(View(bytes)));
        ThrowIfError(file->Commit());
      },
      nb::arg("path"), nb::arg("content"), nb::arg("replace"),
      "Write a file whole; links are not followed, a file that is there is kept unless `replace`.");
  nb::class_<OutputFolder>(m, "OutputFolder",
                           "A directory that is filled with files; below it no link is followed.")
      .def(
          "__init__",
          [](OutputFolder* folder, const std::string& path) {
            new (folder) OutputFolder(Unwrap(OutputFolder::Open(path)));
          },
          nb::arg("path"))
      .def(
          "write",
          [](const OutputFolder& folder, const std::string& name, const nb::bytes& bytes) {
            ThrowIfError(folder.Write(name, View(bytes)));
          },
          nb::arg("name"), nb::arg("content"), "Write a file whole, in place of one of this name.")
      .def(
          "remove",
          [](const OutputFolder& folder, const std::string& name) { ThrowIfError(folder.Remove(name)); },
          nb::arg("name"), "Remove a file.");
}

}  // namespace luff::python
