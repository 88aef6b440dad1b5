#include "server/tensor_api.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "luff/rules/kept_findings.h"
#include "server/columns.h"
#include "server/rule_pages.h"

namespace luff::server {
namespace {

using Json = nlohmann::ordered_json;
using query::Mode;

constexpr std::size_t kMostRowBytes = std::size_t{64} << 20;  // of an answer

Json SpanOf(const std::vector<std::int64_t>& steps) {
  if (steps.empty()) return {{"count", 0}};
  return {{"count", steps.size()}, {"first", steps.front()}, {"last", steps.back()}};
}

}  // namespace

Result<Response> TensorRoute(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)listed;
  const query::Trial& trial = run.trial();
  const std::string_view text = std::string_view(request.path).substr(request.path.rfind('/') + 1);
  LUFF_ASSIGN_OR_RETURN(const auto id, WholeNumber<query::TensorId>(text, "the tensor"));
  if (id >= trial.tensor_count())
    return NotFound(fmt::format("there is no tensor {}; the run has {}", id, trial.tensor_count()));
  LUFF_ASSIGN_OR_RETURN(const auto steps, trial.TensorSteps(id, Mode::kGlobal));
  LUFF_ASSIGN_OR_RETURN(const auto values, trial.ValueSteps(id, Mode::kGlobal));
  Json json{{"id", id}, {"dtype", nullptr}, {"shape", nullptr}, {"elements", nullptr}};
  json["steps"] = SpanOf(steps);
  json["values"] = SpanOf(values);
  json["workers"] = Json::array();
  if (!steps.empty()) {
    if (const auto summary = trial.ReadSummaryAt(id, steps.back(), Mode::kGlobal); summary.ok()) {
      json["dtype"] = DTypeName(summary->dtype);
      json["elements"] = summary->summary.count;
    }
    if (const auto workers = trial.TensorWorkers(id, steps.back(), Mode::kGlobal); workers.ok())
      json["workers"] = *workers;
  }
  if (!values.empty()) {
    if (const auto shape = trial.Shape(id, values.back(), Mode::kGlobal); shape.ok()) {
      json["dtype"] = DTypeName(shape->dtype);
      json["shape"] = shape->shape;
    }
  }
  return Response{.body = JsonText(json)};
}

Result<Response> RowsRoute(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)listed;
  LUFF_ASSIGN_OR_RETURN(const CurvesQuestion asked, CurvesAsked(request));
  Payload payload;
  for (const query::TensorId tensor : asked.tensors) {
    CurveQuestion one = asked.each;
    one.tensor = tensor;
    one.points = SIZE_MAX;
    one.brief = true;
    LUFF_RETURN_IF_ERROR(AddCurve(run.trial(), one, &payload).status());
    if (payload.size() > kMostRowBytes)
      return ResourceExhausted("these rows are more than 64 MiB; ask for fewer tensors or steps");
  }
  return Response{.type = "application/vnd.safetensors", .body = payload.Bytes()};
}

Result<Response> PagesRoute(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)run, (void)request;
  Json pages = Json::object();
  const rules::KeptFindings kept = rules::FindingsOfRun(listed.path);
  for (const rules::Finding& finding : kept.findings) {
    if (const std::string_view text = RulePage(finding.page); !text.empty()) pages[finding.page] = text;
  }
  return Response{.body = JsonText(Json{{"pages", std::move(pages)}})};
}

}  // namespace luff::server
