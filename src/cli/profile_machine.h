#pragma once
#include "luff/profile/time_report.h"

namespace luff::cli {

/// Prints what the machines of a run did. `price_per_hour`: of a machine, in any currency; 0: not known.
void PrintMachines(const profile::Machines& machines, double price_per_hour);

}  // namespace luff::cli
