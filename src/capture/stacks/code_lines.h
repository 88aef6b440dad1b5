#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace luff::capture {

/// Which line an instruction is on, by a code object's table (Objects/locations.md of CPython from 3.11 on;
/// Objects/lnotab_notes.txt of 3.10). `version`: 0x030A is 3.10. `instruction`: counted in units of two
/// bytes, from the first. Returns -1 if the instruction has no line, or the table does not reach it.
[[nodiscard]] int LineOfUntrusted(std::span<const std::byte> table, int version, int first_line,
                                  std::int64_t instruction) noexcept;

}  // namespace luff::capture
