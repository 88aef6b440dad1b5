#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "luff/profile/trace_report.h"

/// What `luff profile` shows of traces.
namespace luff::cli {

/// Prints the last trace in short, and those that were refused. `run`: its path.
void PrintTraces(const profile::TraceReport& report, const std::string& run);

/// Says below a finding, after `indent` blanks, which traces it has caused: of many ranks the first two.
void PrintTraced(const std::vector<std::string>& files, std::size_t indent);

}  // namespace luff::cli
