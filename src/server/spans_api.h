#pragma once
#include "server/payload.h"
#include "server/run_api.h"

/// What the steps of a run are called: docs/spec/http-api.md, section 3.
namespace luff::server {

inline constexpr std::size_t kMaxSpans = 100'000;  // of an answer

/// Steps of one mode whose global and mode steps follow each other, from a position in the step table on:
/// `first`, `mode`, `mode_step`, `count`; `next` in the texts is the position behind them. Steps that were
/// recorded again are left out.
void AddSpans(const query::Trial& trial, std::size_t from, std::size_t most, Payload* payload);
/// runs/RUN/spans
[[nodiscard]] Result<Response> SpansRoute(const ListedRun& listed, OpenRun& run, const Request& request);

}  // namespace luff::server
