#pragma once
#include <string>

#include "luff/base/status.h"
#include "luff/query/trial.h"

namespace luff::cli {

/// Writes the report of a run, one HTML file that needs nothing else; "-" is standard output. Errors: kIo.
[[nodiscard]] Status WriteReport(const query::Trial& trial, const std::string& out);

}  // namespace luff::cli
