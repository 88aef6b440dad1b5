#pragma once
#include <cstdint>

/// Whose numbers file descriptors are. Linux keeps a table of them for each process, and on request for a
/// thread.
namespace luff {

/// Gives the calling thread a table of its own, where 0, 1 and 2 lead to /dev/null and nothing else is open.
/// From then on no other thread can close or replace what this one opens, no child inherits it, and it takes
/// none of the process's numbers; nor can this thread reach the files of the others. False where the kernel
/// refuses: then the thread goes on with the table of the process. For a thread that lives for nothing else,
/// before it opens a file.
bool TakeOwnFileTable() noexcept;

/// The table of the calling thread: 0 that of the process, else a number that no other thread ever has.
[[nodiscard]] std::uint64_t CurrentFileTable() noexcept;

}  // namespace luff
