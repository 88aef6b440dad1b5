#pragma once
#include <span>
#include <string>
#include <vector>

#include "server/run_list.h"

/// Rows of the list of runs: what a table shows of a card, so that thousands fit into an answer.
namespace luff::server {

/// Members of a brief card but for `id`, `place` and `fields`, as JSON text without its braces.
[[nodiscard]] std::string BriefOf(const std::string& card);
/// One row. `fields`: texts that were asked for.
[[nodiscard]] std::string RowOf(const ListedRun& run, std::span<const std::string> fields);

}  // namespace luff::server
