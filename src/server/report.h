#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "luff/base/result.h"

/// A run as one HTML file: the page of `luff serve` with what its routes answer (docs/spec/report.md).
namespace luff::server {

inline constexpr std::size_t kReportBytes = 25'000'000;

/// The page that reports begin with. Errors: kFailedPrecondition if this program was built without it.
[[nodiscard]] Result<std::string> ReportTemplate();

struct ReportOptions {
  std::size_t max_bytes = kReportBytes;
  bool samples = true;  // whether rows of the inputs, outputs and targets may be in it
};

/// Returns the file, at most `max_bytes` long: `page`, with the run in place of kReportPlace. What does not
/// fit is left out, and the file says so. Errors: kResourceExhausted if verdict and names alone do not fit;
/// those of reading the run.
[[nodiscard]] Result<std::string> MakeReport(const std::string& run, std::string_view page,
                                             const ReportOptions& options = {});
/// Where the page has its run.
inline constexpr std::string_view kReportPlace = "<!--luff-archive-->";

}  // namespace luff::server
