#pragma once
#include <cstddef>
#include <string>

#include "base/output_file.h"
#include "luff/base/status.h"
#include "server/report.h"

namespace luff::cli {

/// Writes the report of a run as one HTML file; "-" is standard output. Errors: those
/// of server::ReportTemplate, server::MakeReport and OutputFile.
[[nodiscard]] Status WriteReport(const std::string& run, const std::string& out, Existing existing,
                                 const server::ReportOptions& options = {});

}  // namespace luff::cli
