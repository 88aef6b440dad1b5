#include "server/spans_api.h"

#include <cstdint>
#include <vector>

#include "base/format.h"

namespace luff::server {

void AddSpans(const query::Trial& trial, std::size_t from, std::size_t most, Payload* payload) {
  std::vector<std::int64_t> first, mode_step, count;
  std::vector<std::uint8_t> mode;
  std::size_t n = from;
  for (; n < trial.step_count(); ++n) {
    const query::StepInfo info = trial.step_at(n);
    if (info.superseded) continue;
    const auto of = static_cast<std::uint8_t>(info.mode);
    if (!first.empty() && mode.back() == of && info.global_step == first.back() + count.back() &&
        info.mode_step == mode_step.back() + count.back()) {
      ++count.back();
      continue;
    }
    if (first.size() == most) break;
    first.push_back(info.global_step);
    mode.push_back(of);
    mode_step.push_back(info.mode_step);
    count.push_back(1);
  }
  payload->Add("first", first);
  payload->Add("mode", mode);
  payload->Add("mode_step", mode_step);
  payload->Add("count", count);
  payload->Tell("next", fmt::format("{}", n));
}

Result<Response> SpansRoute(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)listed;
  LUFF_ASSIGN_OR_RETURN(const auto from, NumberIn<std::size_t>(request, "from", 0));
  Payload payload;
  AddSpans(run.trial(), from, kMaxSpans, &payload);
  return Response{.type = "application/vnd.safetensors", .body = payload.Bytes()};
}

}  // namespace luff::server
