#pragma once
#include <cstdint>

/// Descriptor tables. Linux keeps one for each process and, on request, one for a single thread.
namespace luff {

/// Gives the calling thread its own descriptor table, in which 0, 1 and 2 are /dev/null and nothing else is
/// open. From then on no other thread can close or replace what this one opens, no child inherits it, it
/// takes no descriptor numbers from the process, and this thread cannot reach the files of other threads.
/// Returns false if the kernel refuses; the thread then keeps using the process's table. Call it in a
/// dedicated thread, before it opens a file.
bool TakeOwnFileTable() noexcept;

/// Identifies the table of the calling thread: 0 is the process's, any other number is unique to one thread.
[[nodiscard]] std::uint64_t CurrentFileTable() noexcept;

}  // namespace luff
