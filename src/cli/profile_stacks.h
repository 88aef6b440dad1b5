#pragma once
#include "luff/profile/stack_report.h"

/// What `luff profile` shows of stacks.
namespace luff::cli {

/// Prints where workers stand; nothing if none does.
void PrintStalls(const profile::StackReport& report);
/// Prints the lines that long waits are spent in.
void PrintLines(const profile::StackReport& report);

}  // namespace luff::cli
