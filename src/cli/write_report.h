#pragma once
#include <cstddef>
#include <string>

#include "base/output_file.h"
#include "luff/base/status.h"

namespace luff::cli {

/// Writes the report of a run as one HTML file of at most `max_bytes`; "-" is standard output. Errors: those
/// of server::ReportTemplate, server::MakeReport and OutputFile.
[[nodiscard]] Status WriteReport(const std::string& run, const std::string& out, Existing existing,
                                 std::size_t max_bytes);

}  // namespace luff::cli
