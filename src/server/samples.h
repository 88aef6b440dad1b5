#pragma once
#include <cstddef>
#include <optional>
#include <vector>

#include "server/message.h"
#include "server/run_api.h"

/// What a training was fed at a step, and how it fared: samples of inputs, outputs and targets
/// (docs/spec/evidence.md).
namespace luff::server {

/// Steps with samples, ascending, each as Trial::step_at counts; of one mode, or of all.
[[nodiscard]] std::vector<std::size_t> SampledSteps(const query::Trial& trial,
                                                    std::optional<query::Mode> mode);

/// GET runs/RUN/samples?step=&mode=: the samples of the nearest step that has some (docs/spec/http-api.md,
/// section 9).
[[nodiscard]] Result<Response> SamplesOf(const ListedRun& listed, OpenRun& run, const Request& request);
/// GET runs/RUN/confusion?loss=&mode=&from=&to=: right and predicted classes, and the samples behind each
/// pair.
[[nodiscard]] Result<Response> ConfusionOf(const ListedRun& listed, OpenRun& run, const Request& request);

}  // namespace luff::server
