#include "server/service.h"

#include <algorithm>
#include <exception>
#include <new>

#include "base/format.h"
#include "luff/base/env.h"
#include "server/assets.h"
#include "server/metrics.h"
#include "server/run_api.h"

namespace luff::server {
namespace {

Response NoRoute() {
  return Problem(404, "Not found", "there is no such route; docs/spec/http-api.md lists them");
}

Response PageFile(const Request& request) {
  const Asset* asset = FindAsset(request.path == "/" ? "/index.html" : request.path);
  if (asset == nullptr || asset->path == kReportAsset) {
    if (request.path != "/") return NoRoute();
    return Problem(404, "No page", "this build of luff has no page, because it was made without Node",
                   "Install luff from its wheel, or build it where Node is; the routes below /api/v1 work.");
  }
  if (!request.accepts_gzip)
    return Problem(406, "Not acceptable", "the page is compressed", "Send Accept-Encoding: gzip.");
  Response response{.type = std::string(asset->type), .body = std::string(asset->gzipped), .gzipped = true};
  if (request.path.starts_with("/assets/"))  // their names hold a hash of what they contain
    response.headers.emplace_back("Cache-Control", "private, max-age=31536000, immutable");
  return response;
}

}  // namespace

Response Service::OfRun(const Request& request, std::string_view rest,
                        const std::optional<Visitor>& visitor) {
  const std::size_t slash = rest.find('/');
  const std::string_view id = rest.substr(0, slash);
  const std::string_view what = slash == std::string_view::npos ? "" : rest.substr(slash + 1);
  const RunRoute route = FindRunRoute(what);
  const bool acts = request.method == "POST" && (what == "requests" || what == "marks" || what == "labels");
  if (route == nullptr && !acts) return NoRoute();
  if (request.method != "GET" && !acts) return Problem(405, "Not allowed", "read it with GET");
  auto listed = list_.Find(id);
  if (!listed) {  // it may have begun a moment ago
    if (const auto changed = list_.Refresh(); !changed.ok()) return ProblemOf(changed.status());
    listed = list_.Find(id);
  }
  if (!listed) {
    return Problem(404, "No such run", "no run of this id is below the directories that are served",
                   "GET /api/v1/runs lists them.");
  }
  if (acts) return acting_.Post(*listed, what, request, visitor.value_or(Visitor{Role::kMetrics, ""}));
  Response response;
  const Status used = runs_.Use(*listed, [&](OpenRun& run) -> Status {
    LUFF_ASSIGN_OR_RETURN(response, route(*listed, run, request));
    return Status::Ok();
  });
  return used.ok() ? std::move(response) : ProblemOf(used);
}

Response Service::Stream(const Request& request) {
  Response response{.type = "text/event-stream", .is_stream = true};
  std::string_view ids = request.Parameter("runs");
  while (!ids.empty()) {
    const std::string_view id = ids.substr(0, ids.find(','));
    ids.remove_prefix(std::min(ids.size(), id.size() + 1));
    if (!list_.Find(id)) (void)list_.Refresh().ok();
    if (!list_.Find(id)) return Problem(404, "No such run", "no run of this id is served");
    if (response.live.size() == Live::kMaxWatched) {
      return Problem(400, "Too many runs", fmt::format("a stream may watch {} runs", Live::kMaxWatched));
    }
    response.live.emplace_back(id);
  }
  return response;
}

Response Service::Route(const Request& request, const std::optional<Visitor>& visitor) {
  const std::string_view path = request.path;
  if (path == "/healthz") return {.type = "text/plain", .body = "ok\n"};
  if (path == "/metrics") {
    if (const auto changed = list_.Refresh(); !changed.ok()) return ProblemOf(changed.status());
    return {.type = "text/plain; version=0.0.4; charset=utf-8",
            .body = Metrics(list_.All(), runs_.size(), Env::Real().NowUnixNs())};
  }
  if (!path.starts_with(kApi)) return PageFile(request);
  const std::string_view rest = path.substr(kApi.size());
  if (rest == "session") return guard_.Session(request, Env::Real().NowMonotonicNs(), visitor);
  if (rest.starts_with("runs/")) return OfRun(request, rest.substr(5), visitor);
  const bool compares = rest == "compare" || rest == "compare/tensors" || rest == "compare/map";
  if (rest != "runs" && rest != "live" && rest != "fields" && !compares) return NoRoute();
  if (request.method != "GET") return Problem(405, "Not allowed", "read it with GET");
  if (rest == "live") return Stream(request);
  if (compares) return compare_.Answer(rest.substr(std::min<std::size_t>(rest.size(), 8)), request);
  if (rest == "fields") return list_.Fields();
  return list_.List(request);
}

Response Service::Answer(const Request& request) noexcept {
  try {
    std::optional<Visitor> visitor;
    if (auto refused = guard_.Check(request, Env::Real().NowMonotonicNs(), &visitor))
      return *std::move(refused);
    return Route(request, visitor);
  } catch (const std::bad_alloc&) {
    return {.status = 503, .type = "text/plain", .body = "no memory\n"};
  } catch (const std::exception&) {
    return {.status = 500, .type = "text/plain", .body = "internal error\n"};
  }
}

}  // namespace luff::server
