// luff._core: Luff's own regular expressions, whose matching is bounded.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <string>
#include <vector>

#include "errors.h"
#include "luff/base/regex.h"
#include "text.h"

namespace nb = nanobind;

namespace luff::python {

void InitRegex(nb::module_& m);
void InitRegex(nb::module_& m) {
  m.def(
      "search",
      [](const std::string& pattern, const std::vector<std::string>& texts) {
        const Regex regex = Unwrap(Regex::Compile(pattern));
        std::vector<std::size_t> found;
        for (std::size_t i = 0; i < texts.size(); ++i) {
          if (regex.Search(texts[i])) found.push_back(i);
        }
        return found;
      },
      nb::arg("pattern"), nb::arg("texts"),
      "Places of the texts in which an expression of Python's dialect matches. Its matching is bounded: "
      "beyond the "
      "bound it counts as no match.");
}

}  // namespace luff::python
