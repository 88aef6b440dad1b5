#include "capture/stacks/process_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "base/interrupted.h"

namespace luff::capture {
namespace {

// Not process_vm_readv: a policy of seccomp that does not list it may end the process.
int OpenMemory(pid_t process) {
  // The number of a process may be another one where this /proc was mounted.
  const std::string path =
      process == getpid() ? "/proc/self/mem" : "/proc/" + std::to_string(process) + "/mem";
  return Uninterrupted([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC); });
}

}  // namespace

ProcessMemory::ProcessMemory(pid_t process) : file_(OpenMemory(process)) {}

std::size_t ProcessMemory::Read(std::uint64_t address, std::span<std::byte> to) noexcept {
  if (address == 0 || to.empty() || refused()) return 0;
  const ssize_t read =
      Uninterrupted([&] { return pread(file_.get(), to.data(), to.size(), static_cast<off_t>(address)); });
  return read < 0 ? 0 : static_cast<std::size_t>(read);
}

}  // namespace luff::capture
