#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"

/// Python processes that Luff starts for itself: rules, pictures, tables, job files, messages. Never the
/// training.
///
/// They run isolated (`-I`): they import what is installed for the interpreter, and Luff's package, but
/// nothing from the working directory, PYTHONPATH or the user's site directory, where other people may have
/// put code.
namespace luff {

/// Absolute path of the interpreter: LUFF_PYTHON (a bare name is searched for in the absolute folders of
/// PATH), else `python` or `python3` beside this program. Error: kNotFound.
[[nodiscard]] Result<std::string> FindPython();
/// Absolute path of Luff's Python package: the one that contains LUFF_BOOTSTRAP, else the one installed with
/// this program. Error: kNotFound.
[[nodiscard]] Result<std::string> FindPackage();
/// The command that runs `luff._verbs.VERB`; the caller appends arguments. Error: kNotFound.
[[nodiscard]] Result<std::vector<std::string>> PythonCommand(std::string_view verb);
/// The command that runs a script that needs only the standard library, so that any Python will do. Error:
/// kNotFound.
[[nodiscard]] Result<std::vector<std::string>> PlainPythonCommand(const std::string& script);

}  // namespace luff
