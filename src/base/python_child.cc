#include "base/python_child.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/format.h"

namespace luff {
namespace {

namespace fs = std::filesystem;

bool Runs(const fs::path& path) {
  std::error_code error;
  return access(path.c_str(), X_OK) == 0 && !fs::is_directory(path, error);
}

std::string Absolute(const std::string& path) {
  std::error_code error;
  return fs::absolute(path, error).string();
}

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The folder of this program.
fs::path Beside() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

/// Finds a program by name in the absolute folders of PATH; "" if there is none. Skips relative folders,
/// which mean another place in each working directory.
std::string OnPath(const std::string& name) {
  const std::string path = Variable("PATH");
  for (std::size_t from = 0; from <= path.size();) {
    const std::size_t end = std::min(path.find(':', from), path.size());
    const fs::path one = fs::path(path.substr(from, end - from)) / name;
    if (one.is_absolute() && Runs(one)) return one.string();
    from = end + 1;
  }
  return "";
}

bool IsPackage(const fs::path& path) {
  return access((path / "_bootstrap" / "sitecustomize.py").c_str(), R_OK) == 0;
}

/// Finds the package below `prefix`. If several Python versions have one, prefers that of the Python beside
/// this program.
std::string PackageBelow(const fs::path& prefix) {
  std::error_code error;
  const std::string version = fs::canonical(Beside() / "python", error).filename().string();
  std::string found;
  for (const char* lib : {"lib", "lib64", "local/lib"}) {
    for (const auto& entry : fs::directory_iterator(prefix / lib, error)) {
      for (const char* packages : {"site-packages", "dist-packages"}) {
        const fs::path path = entry.path() / packages / "luff";
        if (!IsPackage(path)) continue;
        if (entry.path().filename() == version) return path.string();
        if (found.empty()) found = path.string();
      }
    }
  }
  return found;
}

}  // namespace

Result<std::string> FindPython() {
  if (const std::string given = Variable("LUFF_PYTHON"); !given.empty()) {
    const bool name = given.find('/') == std::string::npos;
    const std::string path = name ? OnPath(given) : Absolute(given);
    if (!path.empty() && Runs(path)) return path;
    return NotFound(fmt::format("LUFF_PYTHON names no program{}: {}",
                                name ? " of an absolute folder of PATH" : "", given));
  }
  for (const char* name : {"python", "python3"}) {
    if (const fs::path path = Beside() / name; Runs(path)) return path.string();
  }
  return NotFound("there is no Python beside the luff command; set LUFF_PYTHON to one that has luff: " +
                  (Beside() / "python").string());
}

Result<std::string> FindPackage() {
  if (const std::string given = Variable("LUFF_BOOTSTRAP"); !given.empty()) {
    const fs::path package = (fs::path(Absolute(given)) / "").lexically_normal().parent_path().parent_path();
    if (IsPackage(package)) return package.string();
    return NotFound("LUFF_BOOTSTRAP names a folder without sitecustomize.py: " + given);
  }
  const fs::path prefix = Beside().parent_path();
  if (const std::string found = PackageBelow(prefix); !found.empty()) return found;
  return NotFound(fmt::format(
      "Luff's Python package is not beside this program; install it with `pip install luff`, or set "
      "LUFF_BOOTSTRAP to luff/_bootstrap of an installed package; looked under {}/lib",
      prefix.string()));
}

Result<std::vector<std::string>> PythonCommand(std::string_view verb) {
  LUFF_ASSIGN_OR_RETURN(const std::string python, FindPython());
  std::vector<std::string> command = {python, "-I", "-u"};
  if (const Result<std::string> package = FindPackage(); package.ok()) {
    command.push_back(package.value() + "/_verbs/_start.py");
  } else {  // let the interpreter find it, e.g. in an editable installation
    command.insert(command.end(), {"-m", "luff._verbs._start"});
  }
  command.emplace_back(verb);
  return command;
}

Result<std::vector<std::string>> PlainPythonCommand(const std::string& script) {
  const Result<std::string> python = FindPython();
  const std::string path = python.ok() ? python.value() : OnPath("python3");
  if (path.empty())
    return NotFound("there is no Python beside the luff command and none on PATH; set LUFF_PYTHON");
  return std::vector<std::string>{path, "-I", "-S", script};
}

}  // namespace luff
