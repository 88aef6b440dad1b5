#pragma once
#include <nlohmann/json_fwd.hpp>

#include "server/message.h"
#include "server/open_runs.h"
#include "server/run_list.h"

/// The answers of the routes below GET runs/RUN, each about one run that is open.
namespace luff::server {

using RunRoute = Result<Response> (*)(const ListedRun& listed, OpenRun& run, const Request& request);

/// The route of what follows runs/RUN/ in the path ("" for the document); nullptr if there is none.
[[nodiscard]] RunRoute FindRunRoute(std::string_view rest);

/// Counts of a run's steps by mode, as documents and events hold them: {"TRAIN": {"count": 3, "first": 0,
/// "last": 2}}.
[[nodiscard]] nlohmann::ordered_json ModesOf(const query::Trial& trial);

}  // namespace luff::server
