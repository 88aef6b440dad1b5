#include "server/compare_api.h"

#include <algorithm>
#include <map>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "catalog/compare.h"
#include "luff/base/work_bound.h"
#include "luff/format/names.h"
#include "server/hide_secrets.h"
#include "server/payload.h"

namespace luff::server {
namespace {

using Json = nlohmann::ordered_json;
using catalog::Compared;

constexpr std::size_t kMaxColumns = 1024, kMaxTensors = 100'000;

/// The runs that `runs=ID,ID` names.
Result<std::vector<ListedRun>> RunsIn(const Request& request, const CompareApi::Find& find) {
  std::vector<ListedRun> runs;
  std::string_view ids = request.Parameter("runs");
  while (!ids.empty()) {
    const std::string_view id = ids.substr(0, ids.find(','));
    ids.remove_prefix(std::min(ids.size(), id.size() + 1));
    auto run = find(id);
    if (!run) return NotFound(fmt::format("no run of the id '{}' is served", id.substr(0, 40)));
    runs.push_back(std::move(*run));
    if (runs.size() > catalog::kMaxCompared) break;
  }
  return runs;
}

Result<Response> Document(const std::vector<ListedRun>& listed, const std::vector<Compared>& runs) {
  LUFF_ASSIGN_OR_RETURN(Json json, catalog::CompareRuns(runs));
  for (std::size_t i = 0; i < listed.size(); ++i) {
    json["runs"][i]["id"] = listed[i].id;
    json["runs"][i]["place"] = listed[i].name;
  }
  HideSecrets(&json);
  return Response{.body = JsonText(json)};
}

/// Every name that at least two runs have, with its tensor in each.
Result<Response> Tensors(const std::vector<Compared>& runs) {
  struct Row {
    std::string_view name;
    query::Role role;
    std::vector<std::int64_t> ids;
  };
  std::map<std::string_view, std::size_t> place;
  std::vector<Row> rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const query::Trial& trial = *runs[i].trial;
    for (query::TensorId id = 0; id < trial.tensor_count(); ++id) {
      const auto [at, fresh] = place.try_emplace(trial.tensor(id).name, rows.size());
      if (fresh) {
        if (rows.size() == kMaxTensors)
          return ResourceExhausted("these runs have too many tensors to be compared");
        rows.push_back(
            {trial.tensor(id).name, trial.tensor(id).role, std::vector<std::int64_t>(runs.size(), -1)});
      }
      rows[at->second].ids[i] = id;
    }
  }
  Json list = Json::array();
  for (const Row& row : rows) {
    if (std::ranges::count_if(row.ids, [](std::int64_t id) { return id >= 0; }) < 2) continue;
    const auto role = static_cast<std::size_t>(row.role);
    list.push_back({{"name", row.name},
                    {"role", format::kRoleNames[role < format::kRoleNames.size() ? role : 0]},
                    {"ids", row.ids}});
  }
  return Response{.body = JsonText(Json{{"tensors", std::move(list)}})};
}

Result<Response> Map(const std::vector<Compared>& runs, const Request& request) {
  if (runs.size() != 2) return InvalidArgument("a map compares 2 runs: runs=ID,ID");
  LUFF_ASSIGN_OR_RETURN(const auto from, NumberIn<std::int64_t>(request, "from", 0));
  LUFF_ASSIGN_OR_RETURN(const auto to, NumberIn<std::int64_t>(request, "to", INT64_MAX));
  LUFF_ASSIGN_OR_RETURN(const auto columns, NumberIn<std::size_t>(request, "columns", 256));
  if (columns == 0 || columns > kMaxColumns)
    return InvalidArgument(fmt::format("columns is {}, expected 1 to {}", columns, kMaxColumns));
  if (from > to) return InvalidArgument("from must be at most to");
  LUFF_ASSIGN_OR_RETURN(const catalog::RatioMap map,
                        catalog::CompareNorms(*runs[0].trial, *runs[1].trial, from, to, columns));
  Payload payload;
  payload.Tell("mode", map.mode);
  payload.Add("a", std::vector<std::int64_t>(map.a.begin(), map.a.end()));
  payload.Add("b", std::vector<std::int64_t>(map.b.begin(), map.b.end()));
  payload.Add("first", map.first);
  payload.Add("last", map.last);
  payload.Add("cells", map.cells);
  return Response{.type = "application/vnd.safetensors", .body = payload.Bytes()};
}

}  // namespace

Response CompareApi::Answer(std::string_view what, const Request& request, const Find& find) {
  const auto listed = RunsIn(request, find);
  if (!listed.ok()) return ProblemOf(listed.status());
  std::vector<std::string> paths;
  for (const ListedRun& run : *listed) paths.push_back(run.path);
  if (busy_.exchange(true))
    return Problem(503, "Busy", "another comparison is being made", "Ask again in a moment.");
  struct Leave {
    std::atomic<bool>& busy;
    ~Leave() { busy.store(false); }
  } const leave{busy_};
  std::vector<DirectoryId> places;
  const auto look = [&]() -> Status {
    for (std::size_t i = 0; i < listed->size(); ++i) {
      LUFF_ASSIGN_OR_RETURN(const DirectoryId place, PlaceOf((*listed)[i]));
      if (places.size() == listed->size() && places[i] != place)
        return NotFound("the run was moved or replaced while it was read: " + paths[i]);
      if (places.size() <= i) places.push_back(place);
    }
    return Status::Ok();
  };
  if (const Status there = look(); !there.ok()) return ProblemOf(there);
  const auto runs = catalog::OpenCompared(paths);
  if (!runs.ok()) return ProblemOf(runs.status());
  Result<Response> answer = what.empty()        ? Document(*listed, *runs)
                            : what == "tensors" ? Tensors(*runs)
                                                : Map(*runs, request);
  if (answer.ok()) {
    Status left = WorkBound::GoOn();
    if (left.ok()) left = look();
    if (!left.ok()) return ProblemOf(left);
  }
  return answer.ok() ? std::move(*answer) : ProblemOf(answer.status());
}

}  // namespace luff::server
