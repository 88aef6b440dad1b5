#pragma once
#include <cstddef>
#include <string>

/// Verbs over all runs of a directory.
namespace luff::cli {

/// The directory that a person means: `given`, or $LUFF_HOME/runs; absolute, without a slash at its end.
/// Exits with a message where neither is there to be known.
[[nodiscard]] std::string RunsFolderOrExit(const std::string& given);
/// File of the index; "" if there is no home.
[[nodiscard]] std::string IndexFile();
/// Tells on a terminal how many runs were read.
void PrintReading(std::size_t done, std::size_t all);

}  // namespace luff::cli
