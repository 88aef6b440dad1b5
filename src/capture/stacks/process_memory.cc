#include "capture/stacks/process_memory.h"

#include <sys/uio.h>

#include <cerrno>

namespace luff::capture {

std::size_t ProcessMemory::Read(std::uint64_t address, std::span<std::byte> to) noexcept {
  if (address == 0 || to.empty()) return 0;
  iovec local{to.data(), to.size()};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address in a process, never followed here
  iovec remote{reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), to.size()};
  const ssize_t read = process_vm_readv(process_, &local, 1, &remote, 1, 0);
  if (read < 0 && (errno == EPERM || errno == ENOSYS || errno == EACCES)) refused_ = true;
  return read < 0 ? 0 : static_cast<std::size_t>(read);
}

}  // namespace luff::capture
