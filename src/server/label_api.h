#pragma once
#include "server/message.h"
#include "server/run_api.h"

/// What visitors say of a run: tags, a title, a note.
namespace luff::server {

/// GET runs/RUN/labels: `tags`, `title`, `note`, and `changes`, the newest first.
[[nodiscard]] Result<Response> LabelsOf(const ListedRun& listed, OpenRun& run, const Request& request);
/// POST runs/RUN/labels, of a visitor who may act.
[[nodiscard]] Response PostLabel(const ListedRun& listed, const Request& request, const std::string& author);

}  // namespace luff::server
