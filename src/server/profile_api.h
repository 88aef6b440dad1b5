#pragma once
#include "server/run_api.h"

/// Where the time of a run went.
namespace luff::server {

/// runs/RUN/profile: one document
[[nodiscard]] Result<Response> ProfileRoute(const ListedRun& listed, OpenRun& run, const Request& request);
/// runs/RUN/profile/steps: phases and machines over steps, as numbers
[[nodiscard]] Result<Response> ProfileStepsRoute(const ListedRun& listed, OpenRun& run,
                                                 const Request& request);

}  // namespace luff::server
