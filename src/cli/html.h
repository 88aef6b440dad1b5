#pragma once
#include <string>

#include "base/output_file.h"
#include "luff/base/status.h"
#include "luff/query/trial.h"

namespace luff::cli {

/// Writes the report of a run as one self-contained HTML file; "-" is standard output. Errors: those of
/// OutputFile.
[[nodiscard]] Status WriteReport(const query::Trial& trial, const std::string& out, Existing existing);

}  // namespace luff::cli
