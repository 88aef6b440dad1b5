#include "server/service.h"

#include <algorithm>
#include <exception>
#include <new>

#include "base/format.h"
#include "luff/base/env.h"
#include "luff/base/version.h"
#include "luff/base/work_bound.h"
#include "server/assets.h"
#include "server/metrics.h"

namespace luff::server {
namespace {

constexpr std::string_view kRuns = "runs/", kCompare = "compare";

Response NotAllowed(Role least, const Visitor& visitor) {
  return Problem(
      403, "Not allowed",
      fmt::format("this needs the role {}, and yours is {}", RoleName(least), RoleName(visitor.role())),
      "Ask for a token of that role: luff serve token add NAME --role ROLE.");
}

Response NoRoute() {
  return Problem(404, "Not found", "there is no such route; docs/spec/http-api.md lists them");
}

Response NoRun() {
  return Problem(404, "No such run", "no run of this id is below the directories that are served",
                 "GET /api/v1/runs lists them.");
}

Response PageFile(const Request& request, const std::string& base) {
  const Asset* asset = FindAsset(request.path == "/" ? "/index.html" : request.path);
  if (asset == nullptr || asset->path == kReportAsset) {
    if (request.path.empty()) {  // the page's own addresses begin at its directory
      return {.status = 308, .headers = {{"Location", base + "/"}}};
    }
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

/// What to do about a run that does not open.
Response CannotOpen(const Status& why, const ListedRun& run) {
  const std::string verify =
      fmt::format("luff verify {} names every damaged place, and what is left.", run.path);
  switch (why.code()) {
    case StatusCode::kNotFound:
    case StatusCode::kFailedPrecondition:
      return Problem(404, "Gone", "the run was removed or moved: " + run.path,
                     "Go back to the list of runs, or put the directory back.");
    case StatusCode::kUnsupportedVersion:
      return Problem(422, "Newer than this server", why.message(),
                     "A newer Luff has written the run. Update the one that serves it: pip install -U luff.");
    case StatusCode::kCorruption: return Problem(422, "Damaged", why.message(), verify);
    case StatusCode::kCancelled:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kResourceExhausted: return ProblemOf(why);
    default:
      return Problem(422, "Cannot be read", why.message(),
                     "Let the user who runs luff serve read the directory and all in it, or see " + verify);
  }
}

}  // namespace

std::optional<ListedRun> Service::FindRun(std::string_view id, const Visitor& visitor) {
  auto listed = list_.Find(id);
  if (!listed) {  // it may have begun a moment ago
    (void)list_.Refresh().ok();
    listed = list_.Find(id);
  }
  return listed && visitor.May(Role::kViewer, listed->path) ? listed : std::nullopt;
}

Response Service::OfRun(const Request& request, const Route& route, const Visitor& visitor) {
  const Role least = route.values ? std::max(route.role, values_) : route.role;
  const std::string_view rest = std::string_view(request.path).substr(kApi.size() + kRuns.size());
  const std::string_view id = rest.substr(0, rest.find('/'));
  const auto listed = FindRun(id, visitor);
  if (!listed) {
    return NoRun();
  }
  if (!visitor.May(least, listed->path)) return NotAllowed(least, visitor.At(listed->path));
  if (route.answer == nullptr) return acting_.Post(*listed, rest.substr(id.size() + 1), request, visitor);
  Response response;
  bool opened = false;
  const Status used = runs_.Use(*listed, [&](OpenRun& run) -> Status {
    opened = true;
    LUFF_ASSIGN_OR_RETURN(response, route.answer(*listed, run, request));
    return WorkBound::GoOn();  // what was left out for lack of time must not look like all there is
  });
  if (used.ok()) return response;
  return opened ? ProblemOf(used) : CannotOpen(used, *listed);
}

/// Who asks; with a parameter `run`: what the visitor may do there.
Response Service::Session(const Request& request, std::optional<Visitor> visitor) {
  const std::string_view id = request.Parameter("run");
  if (request.method == "GET" && visitor && !id.empty()) {
    const auto listed = FindRun(id, *visitor);
    if (!listed) return NoRun();
    visitor = visitor->At(listed->path);
  }
  return guard_.Session(request, Env::Real().NowMonotonicNs(), visitor);
}

Response Service::Stream(const Request& request, const Visitor& visitor) {
  Response response{
      .type = "text/event-stream", .is_stream = true, .viewer = visitor.name};  // "": by the link
  std::string_view ids = request.Parameter("runs");
  while (!ids.empty()) {
    const std::string_view id = ids.substr(0, ids.find(','));
    ids.remove_prefix(std::min(ids.size(), id.size() + 1));
    if (!FindRun(id, visitor)) return NoRun();
    if (response.live.size() == Live::kMaxWatched) {
      return Problem(400, "Too many runs", fmt::format("a stream may watch {} runs", Live::kMaxWatched));
    }
    response.live.emplace_back(id);
  }
  return response;
}

Response Service::MetricsOf(const Request& request, const Visitor& visitor) {
  if (const auto changed = list_.Refresh(); !changed.ok()) return ProblemOf(changed.status());
  std::vector<ListedRun> runs = list_.All();
  std::erase_if(runs, [&](const ListedRun& run) { return !visitor.May(Role::kMetrics, run.path); });
  Exposition exposition;
  metrics_.Put(runs, Env::Real().NowUnixNs(), &exposition);
  exposition.Put(Metric::kServeInfo, {{"version", std::string(Version())}}, 1);
  exposition.Put(Metric::kServeRuns, {}, static_cast<double>(runs.size()));
  exposition.Put(Metric::kServeOpenRuns, {}, static_cast<double>(runs_.size()));
  exposition.Put(Metric::kServeStreams, {}, static_cast<double>(live_.streams()));
  counts_.Put(&exposition);
  const bool open = PrefersOpenMetrics(request.accept);
  return {.type = std::string(open ? kOpenMetricsType : kPrometheusType),
          .body = open ? exposition.OpenMetrics() : exposition.Prometheus()};
}

Response Service::Dispatch(const Request& request, const std::optional<Visitor>& visitor) {
  const std::string_view path = request.path;
  if (path == "/healthz") return {.type = "text/plain", .body = "ok\n"};
  if (!path.starts_with(kApi) && path != "/metrics") return PageFile(request, place().base);
  const std::string_view rest = path == "/metrics" ? path : path.substr(kApi.size());
  const Route* route = FindRoute(request.method, rest);
  if (route == nullptr)
    return HasRoute(rest) ? Problem(405, "Not allowed", "this route has another method") : NoRoute();
  if (rest == "session") return Session(request, visitor);
  if (!visitor) return NoRoute();  // the guard lets nobody else pass
  if (visitor->role() < route->role) return NotAllowed(route->role, *visitor);
  if (rest == "openapi.json") return {.body = std::string(OpenApiText())};
  if (rest == "/metrics") return MetricsOf(request, *visitor);
  if (rest == "live") return Stream(request, *visitor);
  if (rest == "fields") return list_.Fields(*visitor);
  if (rest.starts_with(kCompare)) {
    return compare_.Answer(rest.substr(std::min(rest.size(), kCompare.size() + 1)), request,
                           [&](std::string_view id) { return FindRun(id, *visitor); });
  }
  return rest == "runs" ? list_.List(request, *visitor) : OfRun(request, *route, *visitor);
}

Response Service::Answer(const Request& request) noexcept {
  const std::int64_t begin = Env::Real().NowMonotonicNs();
  Response response = AnswerUncounted(request);
  counts_.Count(response.status, Env::Real().NowMonotonicNs() - begin);
  return response;
}

Response Service::AnswerUncounted(const Request& request) noexcept {
  try {
    const std::int64_t now = Env::Real().NowMonotonicNs();
    (void)secrets_->Refresh(now).ok();  // a file that cannot be read: its tokens are refused
    std::optional<Visitor> visitor;
    auto refused = guard_.Check(request, now, &visitor);
    const WorkBound::Check go_on = [&] { return request.work->Check(); };
    std::optional<WorkBound> bound;
    if (request.work != nullptr) bound.emplace(&go_on);
    Response response = refused ? *std::move(refused) : Dispatch(request, visitor);
    const Route* route = request.path.starts_with(kApi)
                             ? FindRoute(request.method, std::string_view(request.path).substr(kApi.size()))
                             : nullptr;
    audit_.Answered(request, response, visitor ? &*visitor : nullptr, route != nullptr && route->values);
    return response;
  } catch (const std::bad_alloc&) {
    return {.status = 503, .type = "text/plain", .body = "no memory\n"};
  } catch (const std::exception&) {
    return {.status = 500, .type = "text/plain", .body = "internal error\n"};
  }
}

void Service::Look() noexcept {
  try {
    (void)secrets_->Refresh(Env::Real().NowMonotonicNs()).ok();
    live_.Look();
  } catch (const std::exception&) {
    return;  // no memory: the next look may find some
  }
}

bool Service::MayStill(const Request& request, const std::vector<std::string>& runs) noexcept {
  try {
    std::optional<Visitor> visitor;
    if (guard_.Check(request, Env::Real().NowMonotonicNs(), &visitor)) return false;
    return std::ranges::all_of(runs, [&](const std::string& id) {
      const auto listed = list_.Find(id);
      return !listed || visitor->May(Role::kViewer, listed->path);
    });
  } catch (const std::exception&) {
    return false;  // no memory
  }
}

}  // namespace luff::server
