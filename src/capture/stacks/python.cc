#include "luff/capture/stacks.h"

#include <atomic>
#include <utility>

namespace luff::capture {
namespace {

struct Python {
  LuffPythonLayout layout{};
  std::string package;
};
std::atomic<const Python*> g_python{nullptr};

}  // namespace

void SetPython(const LuffPythonLayout& layout, std::string package) {
  auto* made = new Python{layout, std::move(package)};
  // Kept for ever: a writer thread may read it while the process ends.
  const Python* nothing = nullptr;
  if (!g_python.compare_exchange_strong(nothing, made, std::memory_order_acq_rel)) delete made;
}

const LuffPythonLayout* PythonHere() noexcept {
  const Python* python = g_python.load(std::memory_order_acquire);
  return python == nullptr ? nullptr : &python->layout;
}

bool IsOwnFile(std::string_view file) noexcept {
  for (const std::string_view part :
       {"/site-packages/", "/dist-packages/", "/lib/python3.", "/lib64/python3."}) {
    if (file.find(part) != std::string_view::npos) return false;
  }
  if (file.empty() || file.starts_with("<frozen")) return false;
  const Python* python = g_python.load(std::memory_order_acquire);
  return python == nullptr || python->package.empty() || !file.starts_with(python->package);
}

}  // namespace luff::capture
