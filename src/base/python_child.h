#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"

/// Python that Luff starts for itself: rules, pictures, tables, job files, messages. Never the training.
///
/// It is started isolated (`-I`): it imports what is installed for the interpreter, and Luff's package;
/// nothing of the working directory, of PYTHONPATH or of the user's own site, which may be a stranger's or
/// hold a stranger's.
namespace luff {

/// The interpreter, absolute: LUFF_PYTHON (a name is looked for in the absolute folders of PATH), else
/// `python` or `python3` beside this program. kNotFound.
[[nodiscard]] Result<std::string> FindPython();
/// Luff's Python package, absolute: where LUFF_BOOTSTRAP lies, else what was installed with this program.
/// kNotFound.
[[nodiscard]] Result<std::string> FindPackage();
/// The command that runs `luff._verbs.VERB`; arguments follow. kNotFound.
[[nodiscard]] Result<std::vector<std::string>> PythonCommand(std::string_view verb);
/// The command that runs a script on the standard library alone, for which any Python will do. kNotFound.
[[nodiscard]] Result<std::vector<std::string>> PlainPythonCommand(const std::string& script);

}  // namespace luff
