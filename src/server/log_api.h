#pragma once
#include "luff/base/result.h"
#include "server/message.h"
#include "server/open_runs.h"
#include "server/run_list.h"

namespace luff::server {

/// GET runs/ID/log: what the job has printed (docs/spec/http-api.md).
[[nodiscard]] Result<Response> LogOf(const ListedRun& listed, OpenRun& run, const Request& request);

}  // namespace luff::server
