#include "server/run_api.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "base/json_nonfinite.h"
#include "luff/query/capture_cost.h"
#include "luff/query/ranks.h"
#include "luff/rules/kept_findings.h"
#include "server/acting.h"
#include "server/boosting.h"
#include "server/columns.h"
#include "server/finding_steps.h"
#include "server/hide_secrets.h"
#include "server/histogram.h"
#include "server/histograms_api.h"
#include "server/label_api.h"
#include "server/log_api.h"
#include "server/norms_api.h"
#include "server/profile_api.h"
#include "server/ranks_api.h"
#include "server/samples.h"
#include "server/spans_api.h"
#include "server/tensor_api.h"

namespace luff::server {
namespace {

using Json = nlohmann::ordered_json;
using query::Mode;
using query::Trial;

constexpr std::size_t kMaxSteps = 100'000, kMaxGaps = 100, kMaxLosses = 64;

Response JsonResponse(Json json) {
  NameNonFinite(&json);
  return {.body = JsonText(json)};
}

Response Numbers(const Payload& payload) {
  return {.type = "application/vnd.safetensors", .body = payload.Bytes()};
}

const char* RoleText(query::Role role) {
  const auto number = static_cast<std::size_t>(role);
  return format::kRoleNames[number < format::kRoleNames.size() ? number : 0];
}

/// Tensors that are losses, the ones with the most training steps first; then scalars that are called like
/// one.
Json LossesOf(const Trial& trial) {
  struct Loss {
    query::TensorId id;
    Mode mode;
    std::size_t steps;
  };
  std::vector<Loss> losses;
  std::size_t looked = 0;
  for (query::TensorId id = 0; id < trial.tensor_count() && looked < kMaxLosses; ++id) {
    if (trial.tensor(id).role != query::Role::kLoss) continue;
    ++looked;
    for (const Mode mode : {Mode::kTrain, Mode::kEval}) {
      const auto steps = trial.TensorSteps(id, mode);
      if (steps.ok() && !steps->empty()) losses.push_back({id, mode, steps->size()});
    }
  }
  std::ranges::stable_sort(losses, [](const Loss& a, const Loss& b) {
    return std::pair(a.mode, b.steps) < std::pair(b.mode, a.steps);
  });
  Json list = Json::array();
  for (const Loss& loss : losses) {
    list.push_back(
        {{"tensor", loss.id}, {"name", trial.tensor(loss.id).name}, {"mode", query::ModeName(loss.mode)}});
  }
  return list;
}

Json GapsOf(const Trial& trial) {
  auto gaps = trial.Gaps();
  std::ranges::stable_sort(gaps, std::greater<>(), &query::GapInfo::count);
  Json list = Json::array();
  for (std::size_t i = 0; i < std::min(gaps.size(), kMaxGaps); ++i) {
    const query::GapInfo& gap = gaps[i];
    list.push_back({{"reason", gap.reason},
                    {"tensor", gap.tensor},
                    {"collection", gap.collection},
                    {"forms", gap.forms},
                    {"count", gap.count},
                    {"first_step", gap.first_step},
                    {"last_step", gap.last_step}});
  }
  return list;
}

Result<Response> Document(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)request;
  const Trial& trial = run.trial();
  Json json{{"id", listed.id}, {"card", TryParseOrderedJson(listed.card)}};
  if (json["card"].is_object()) json["card"]["place"] = listed.name;
  const auto outcome = trial.outcome();
  json["outcome"] = {{"state", outcome.state}, {"why", outcome.why}};
  json["workers"] = Json::array();
  for (const query::WorkerInfo& worker : trial.workers()) {
    json["workers"].push_back({{"worker", worker.worker},
                               {"alive", worker.alive},
                               {"ended", worker.ended},
                               {"first_step", worker.first_global_step},
                               {"last_step", worker.last_global_step},
                               {"heartbeat_unix_ns", worker.heartbeat_unix_ns}});
  }
  json["ranks"] = query::RanksOf(trial);
  const std::size_t count = trial.step_count();
  json["steps"] = {{"count", count},
                   {"first", count == 0 ? 0 : trial.step_at(0).global_step},
                   {"last", count == 0 ? -1 : trial.step_at(count - 1).global_step},
                   {"modes", ModesOf(trial)}};
  json["tensors"] = trial.tensor_count();
  for (const char* name : {"model", "environment"}) {
    const Json document = TryParseOrderedJson(trial.Document(name));
    json[name] = document.is_discarded() ? Json() : document;
  }
  for (const char* name : {"card", "environment"}) HideSecrets(&json[name]);
  if (const auto cost = query::CaptureCostOf(trial))
    json["cost"] = {{"steps", cost->steps}, {"spent_s", cost->spent_s}, {"time_s", cost->time_s}};
  json["boosting"] = IsBoosted(trial);
  json["gaps"] = GapsOf(trial);
  json["problems"] = trial.Problems();
  json["losses"] = LossesOf(trial);
  json["statistics"] = Json::array();
  json["heat"] = Json::array();
  for (const NamedStatistic& one : kStatistics) {
    if (one.curve) json["statistics"].push_back(one.name);
    if (one.heat()) json["heat"].push_back(one.name);
  }
  return JsonResponse(std::move(json));
}

Result<Response> Tensors(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)listed, (void)request;
  Json list = Json::array();
  for (query::TensorId id = 0; id < run.trial().tensor_count(); ++id) {
    const query::TensorInfo& info = run.trial().tensor(id);
    list.push_back({{"id", id},
                    {"name", info.name},
                    {"role", RoleText(info.role)},
                    {"module", info.module_path},
                    {"type", info.module_type},
                    {"collections", info.collections}});
  }
  return JsonResponse({{"tensors", std::move(list)}});
}

Result<Response> Steps(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)listed;
  const Trial& trial = run.trial();
  LUFF_ASSIGN_OR_RETURN(const auto from, NumberIn<std::size_t>(request, "from", 0));
  std::vector<std::int64_t> global, mode_step, update, wall, duration;
  std::vector<std::uint8_t> mode;
  for (std::size_t n = from; n < trial.step_count() && global.size() < kMaxSteps; ++n) {
    const query::StepInfo info = trial.step_at(n);
    global.push_back(info.global_step);
    mode_step.push_back(info.mode_step);
    update.push_back(info.update);
    wall.push_back(info.wall_unix_ns);
    duration.push_back(info.duration_ns);
    mode.push_back(static_cast<std::uint8_t>(info.mode));
  }
  Payload payload;
  payload.Add("global_step", global);
  payload.Add("mode_step", mode_step);
  payload.Add("update", update);
  payload.Add("wall_unix_ns", wall);
  payload.Add("duration_ns", duration);
  payload.Add("mode", mode);
  return Numbers(payload);
}

Result<Response> Columns(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)listed;
  LUFF_ASSIGN_OR_RETURN(const CurvesQuestion asked, CurvesAsked(request));
  CurveQuestion one = asked.each;
  LUFF_ASSIGN_OR_RETURN(one.points, NumberIn<std::size_t>(request, "points", 1024));
  if (one.points == 0 || one.points > kMaxPoints)
    return InvalidArgument(fmt::format("points is {}, expected 1 to {}", one.points, kMaxPoints));
  Payload payload;
  for (const query::TensorId tensor : asked.tensors) {
    one.tensor = tensor;
    LUFF_RETURN_IF_ERROR(AddCurve(run.trial(), one, &payload).status());
  }
  return Numbers(payload);
}

/// The heat map that a request asks for, with what is new taken in.
Result<HeatMap*> HeatFor(OpenRun& run, std::string_view name, const Request& request) {
  const auto statistic = FindStatistic(name.empty() ? "l2" : name);
  if (!statistic || !statistic->heat())
    return NotFound("there is no heat map of such a statistic; the run's document names them (heat)");
  LUFF_ASSIGN_OR_RETURN(const auto mode, ModeIn(request));
  if (mode == Mode::kGlobal) return InvalidArgument("a heat map is of TRAIN, EVAL or PREDICT");
  LUFF_RETURN_IF_ERROR(run.ReadOverview(mode.value_or(Mode::kTrain)).status());
  return &run.Heat(*statistic, mode.value_or(Mode::kTrain));
}

bool Complete(OpenRun& run, const HeatMap& map) { return map.overview().Covers(run.trial()); }

Result<Response> Heat(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)listed;
  LUFF_ASSIGN_OR_RETURN(const HeatMap* map, HeatFor(run, request.Parameter("stat"), request));
  Json levels = Json::array();
  for (const HeatMap::Level& level : map->Levels())
    levels.push_back({{"bucket_steps", level.bucket_steps}, {"columns", level.columns}});
  constexpr const char* kScales[] = {"ratio", "share", "offset"};
  return JsonResponse({{"stat", map->statistic().name},
                       {"scale", kScales[static_cast<std::size_t>(map->statistic().scale)]},
                       {"rows", map->rows()},
                       {"levels", std::move(levels)},
                       {"complete", Complete(run, *map)},
                       {"version", map->version()}});
}

/// heat/STAT/LEVEL/X/Y
Result<Response> Tile(const ListedRun& listed, OpenRun& run, const Request& request) {
  const std::string_view rest = std::string_view(request.path).substr(request.path.find("/heat/") + 6);
  const std::size_t slash = rest.find('/');
  const auto numbers = NumbersIn<std::size_t>(
      slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1), '/');
  if (!numbers.ok() || numbers->size() != 3) return NotFound("a tile is heat/STATISTIC/LEVEL/X/Y");
  LUFF_ASSIGN_OR_RETURN(HeatMap * map, HeatFor(run, rest.substr(0, slash), request));
  const auto& [level, x, y] = std::tie((*numbers)[0], (*numbers)[1], (*numbers)[2]);
  const auto levels = map->Levels();
  if (level >= levels.size() || x >= Overview::kMaxColumns || y >= Overview::kMaxTensors ||
      x * HeatMap::kTile >= levels[level].columns || y * HeatMap::kTile >= map->rows())
    return NotFound("there is no such tile; heat names the levels");
  Response response{.type = "application/octet-stream"};
  const std::string tag = fmt::format("\"{}-{}\"", listed.id.substr(0, 8), map->version());
  response.headers.emplace_back("ETag", tag);
  if (request.if_none_match == tag)
    response.status = 304;
  else
    response.body = map->Tile(level, x, y);
  return response;
}

constexpr std::size_t kMaxOverviewRows = 64;

/// The numbers behind a heat map.
Result<Response> OverviewRows(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)listed;
  LUFF_ASSIGN_OR_RETURN(const auto tensors, NumbersIn<query::TensorId>(request.Parameter("tensor"), ','));
  if (tensors.empty() || tensors.size() > kMaxOverviewRows)
    return InvalidArgument(fmt::format("expected 1 to {} tensors: tensor=3,7", kMaxOverviewRows));
  LUFF_ASSIGN_OR_RETURN(const HeatMap* map, HeatFor(run, request.Parameter("stat"), request));
  LUFF_ASSIGN_OR_RETURN(const auto level, NumberIn<std::size_t>(request, "level", 0));
  const bool means = request.Parameter("mean") == "1";
  const auto levels = map->Levels();
  if (level >= std::max<std::size_t>(levels.size(), 1))
    return NotFound("there is no such level; heat names them");
  Payload payload;
  payload.Tell("stat", std::string(map->statistic().name));
  payload.Tell("bucket_steps", fmt::format("{}", levels.empty() ? 1 : levels[level].bucket_steps));
  payload.Tell("complete", Complete(run, *map) ? "1" : "0");
  for (const query::TensorId tensor : tensors) {
    if (tensor >= run.trial().tensor_count()) return NotFound("there is no such tensor");
    const HeatMap::Row row = tensor < map->rows() ? map->RowOf(level, tensor) : HeatMap::Row();
    payload.Add(fmt::format("{}.lo", tensor), row.lo);
    payload.Add(fmt::format("{}.hi", tensor), row.hi);
    payload.Add(fmt::format("{}.flags", tensor), row.flags);
    if (!means) continue;
    const std::int64_t bucket = levels.empty() ? 1 : levels[level].bucket_steps;
    LUFF_ASSIGN_OR_RETURN(const auto mean, MeansOf(run.trial(), tensor, map->statistic().statistic,
                                                   map->overview().mode(), bucket, row.lo.size()));
    payload.Add(fmt::format("{}.mean", tensor), mean);
  }
  return Numbers(payload);
}

/// Adds a member whose value is a number, or the text for one that is not finite.
void PutNumber(std::string_view name, double value, std::string* to) {
  if (std::isfinite(value))
    fmt::format_to(std::back_inserter(*to), R"(,"{}":{})", name, value);
  else
    fmt::format_to(std::back_inserter(*to), R"(,"{}":"{}")", name,
                   std::isnan(value) ? "NaN"
                   : value > 0       ? "Infinity"
                                     : "-Infinity");
}

Result<Response> At(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)listed;
  const Trial& trial = run.trial();
  const std::string_view text = std::string_view(request.path).substr(request.path.rfind('/') + 1);
  LUFF_ASSIGN_OR_RETURN(const auto step, WholeNumber<std::int64_t>(text, "the step"));
  LUFF_ASSIGN_OR_RETURN(const query::StepInfo found, trial.FindStep(step, Mode::kGlobal));
  std::size_t n = trial.step_count();
  while (n > 0 && trial.step_at(n - 1).global_step != step) --n;  // a later one supersedes
  if (n == 0) return NotFound("the step is not complete");
  Trial::StepRows rows;
  LUFF_RETURN_IF_ERROR(trial.ReadStepRows(n - 1, &rows));
  const Json json{{"global_step", found.global_step},
                  {"mode", query::ModeName(found.mode)},
                  {"mode_step", found.mode_step},
                  {"update", found.update},
                  {"wall_unix_ns", found.wall_unix_ns}};
  // Thousands of rows: written directly, since building them as a tree takes four times as long.
  std::string rows_text;
  for (const Trial::SummaryEntry& entry : rows.summaries) {
    const Summary& s = entry.summary;
    rows_text += rows_text.empty() ? "" : ",";
    fmt::format_to(std::back_inserter(rows_text),
                   R"({{"tensor":{},"worker":{},"dtype":"{}","count":{},"zero":{},"nan":{},"inf":{})",
                   entry.tensor, entry.worker, DTypeName(entry.dtype), s.count, s.zero_count, s.nan_count,
                   s.inf_count);
    PutNumber("min", s.min(entry.dtype), &rows_text);
    PutNumber("max", s.max(entry.dtype), &rows_text);
    PutNumber("mean", s.mean(), &rows_text);
    PutNumber("std", s.std(), &rows_text);
    PutNumber("l2", s.l2(), &rows_text);
    PutNumber("abs_mean", s.abs_mean(), &rows_text);
    rows_text += "}";
  }
  std::string scalars_text;
  for (const Trial::ScalarEntry& entry : rows.scalars) {
    scalars_text += scalars_text.empty() ? "" : ",";
    fmt::format_to(std::back_inserter(scalars_text), R"({{"tensor":{},"worker":{})", entry.tensor,
                   entry.worker);
    PutNumber("value", entry.value, &scalars_text);
    scalars_text += "}";
  }
  return Response{.body = fmt::format(R"({{"step":{},"rows":[{}],"scalars":[{}]}})", JsonText(json),
                                      rows_text, scalars_text)};
}

constexpr std::size_t kBins = 64;

Result<Response> Histogram(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)listed;
  const Trial& trial = run.trial();
  LUFF_ASSIGN_OR_RETURN(const auto id, NumberIn<query::TensorId>(request, "tensor", UINT32_MAX));
  if (id >= trial.tensor_count()) return NotFound("there is no such tensor");
  LUFF_ASSIGN_OR_RETURN(const auto step, NumberIn<std::int64_t>(request, "step", -1));
  LUFF_ASSIGN_OR_RETURN(const SparseHistogram bins, trial.Histogram(id, step, Mode::kGlobal));
  Json json{{"low", nullptr}, {"high", nullptr}, {"counts", Json::array()}};
  if (const auto equal = InEqualBins(bins, kBins)) {
    json["low"] = equal->low;
    json["high"] = equal->high;
    json["counts"] = equal->counts;
  }
  if (const auto summary = trial.ReadSummary(id, step, Mode::kGlobal); summary.ok()) {
    json["nan"] = summary->nan_count;
    json["inf"] = summary->inf_count;
  }
  return JsonResponse(std::move(json));
}

Result<Response> Findings(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)request;
  const rules::KeptFindings kept = rules::FindingsOfRun(listed.path);
  std::string list;  // each is JSON already
  for (const rules::Finding* finding : rules::InGroups(kept.findings)) {
    std::string json = rules::ToJson(*finding, finding->healed ? "healed" : "new");
    const FindingSteps steps = GlobalStepsOf(run.trial(), *finding);
    json.insert(json.rfind('}'),
                fmt::format(R"(,"global_since":{},"global_last":{})", steps.since, steps.last));
    list += (list.empty() ? "" : ",") + json;
  }
  const rules::Lead lead = rules::LeadOf(kept.findings);
  const Json first = lead.finding == nullptr || lead.finding->healed
                         ? Json()
                         : Json{{"finding", lead.finding->id}, {"stops", lead.stops}};
  return Response{.body = fmt::format(R"({{"findings":[{}],"lead":{},"problems":{}}})", list, JsonText(first),
                                      JsonText(Json(kept.problems)))};
}

Result<Response> Boosting(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)listed, (void)request;
  return JsonResponse(BoostingOf(run.trial()));
}

}  // namespace

nlohmann::ordered_json ModesOf(const Trial& trial) {
  Json modes = Json::object();
  for (const Mode mode : {Mode::kTrain, Mode::kEval, Mode::kPredict}) {
    const auto steps = trial.Steps(mode);
    if (steps.empty()) continue;
    modes[std::string(query::ModeName(mode))] = {
        {"count", steps.size()}, {"first", steps.front()}, {"last", steps.back()}};
  }
  return modes;
}

std::span<const Route> Routes() noexcept {
  constexpr bool kValues = true;
  // Every route of the server but the page's own files and /healthz, which everybody may see.
  static constexpr Route kRoutes[] = {
      {"GET", "/metrics", Role::kMetrics},
      {"GET", "session", Role::kMetrics},
      {"POST", "session", Role::kMetrics},  // how a visitor begins: without a role
      {"DELETE", "session", Role::kMetrics},
      {"GET", "openapi.json", Role::kMetrics},
      {"GET", "live", Role::kViewer},
      {"GET", "runs", Role::kViewer},
      {"GET", "fields", Role::kViewer},
      {"GET", "compare", Role::kViewer},
      {"GET", "compare/tensors", Role::kViewer},
      {"GET", "compare/map", Role::kViewer},
      {"GET", "runs/*", Role::kViewer, !kValues, Document},
      {"GET", "runs/*/tensors", Role::kViewer, !kValues, Tensors},
      {"GET", "runs/*/tensors/*", Role::kViewer, !kValues, TensorRoute},
      {"GET", "runs/*/steps", Role::kViewer, !kValues, Steps},
      {"GET", "runs/*/spans", Role::kViewer, !kValues, SpansRoute},
      {"GET", "runs/*/columns", Role::kViewer, !kValues, Columns},
      {"GET", "runs/*/rows", Role::kViewer, !kValues, RowsRoute},
      {"GET", "runs/*/heat", Role::kViewer, !kValues, Heat},
      {"GET", "runs/*/heat/*/*/*/*", Role::kViewer, !kValues, Tile},
      {"GET", "runs/*/at/*", Role::kViewer, !kValues, At},
      {"GET", "runs/*/overview", Role::kViewer, !kValues, OverviewRows},
      {"GET", "runs/*/norms", Role::kViewer, !kValues, NormsRoute},
      {"GET", "runs/*/histogram", Role::kViewer, !kValues, Histogram},
      {"GET", "runs/*/histograms", Role::kViewer, !kValues, HistogramsRoute},
      {"GET", "runs/*/ranks", Role::kViewer, !kValues, RanksRoute},
      {"GET", "runs/*/profile", Role::kViewer, !kValues, ProfileRoute},
      {"GET", "runs/*/profile/steps", Role::kViewer, !kValues, ProfileStepsRoute},
      {"GET", "runs/*/pages", Role::kViewer, !kValues, PagesRoute},
      {"GET", "runs/*/findings", Role::kViewer, !kValues, Findings},
      {"GET", "runs/*/requests", Role::kViewer, !kValues, RequestsOf},
      {"POST", "runs/*/requests", Role::kOperator},
      {"POST", "runs/*/marks", Role::kOperator},
      {"GET", "runs/*/boosting", Role::kViewer, kValues, Boosting},
      {"GET", "runs/*/labels", Role::kViewer, !kValues, LabelsOf},
      {"POST", "runs/*/labels", Role::kOperator},
      {"GET", "runs/*/samples", Role::kViewer, kValues, SamplesOf},
      {"GET", "runs/*/confusion", Role::kViewer, kValues, ConfusionOf},
      {"GET", "runs/*/log", Role::kViewer, kValues, LogOf},
  };
  return kRoutes;
}

namespace {

bool Matches(std::string_view pattern, std::string_view path) noexcept {
  for (;;) {
    const std::string_view wanted = pattern.substr(0, pattern.find('/'));
    const std::string_view part = path.substr(0, path.find('/'));
    if (wanted == "*" ? part.empty() : wanted != part) return false;
    const bool last = wanted.size() == pattern.size();
    if (last || part.size() == path.size()) return last && part.size() == path.size();
    pattern.remove_prefix(wanted.size() + 1);
    path.remove_prefix(part.size() + 1);
  }
}

}  // namespace

const Route* FindRoute(std::string_view method, std::string_view path) noexcept {
  if (method == "HEAD") method = "GET";
  for (const Route& route : Routes()) {
    if (route.method == method && Matches(route.path, path)) return &route;
  }
  return nullptr;
}

bool HasRoute(std::string_view path) noexcept {
  return std::ranges::any_of(Routes(), [&](const Route& route) { return Matches(route.path, path); });
}

}  // namespace luff::server
