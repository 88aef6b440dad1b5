#pragma once
#include <string>
#include <string_view>

#include "luff/capture/python_layout.h"

/// The Python interpreter of this process, if there is one.
namespace luff::capture {

/// To be called once, before the first session begins. `package`: the folder of Luff's own Python package.
void SetPython(const LuffPythonLayout& layout, std::string package);
/// Null in a process without Python. The same for ever after SetPython().
[[nodiscard]] const LuffPythonLayout* PythonHere() noexcept;
/// True if a file belongs to neither Python, nor an installed package, nor Luff: it is the training's own.
[[nodiscard]] bool IsOwnFile(std::string_view file) noexcept;

}  // namespace luff::capture
