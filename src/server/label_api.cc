#include "server/label_api.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "catalog/labels.h"

namespace luff::server {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t kMaxChanges = 100;

}  // namespace

Result<Response> LabelsOf(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)run, (void)request;
  const catalog::Label label = catalog::LabelOf(listed.path);
  Json json{{"tags", label.tags}, {"title", label.title}, {"note", label.note}, {"changes", Json::array()}};
  auto changes = catalog::LabelChangesOf(listed.path);
  for (auto one = changes.rbegin(); one != changes.rend() && json["changes"].size() < kMaxChanges; ++one) {
    Json told{{"author", one->author}, {"unix_ns", one->unix_ns}, {"add", one->add}, {"remove", one->remove}};
    if (one->title) told["title"] = *one->title;
    if (one->note) told["note"] = *one->note;
    json["changes"].push_back(std::move(told));
  }
  return Response{.body = JsonText(json)};
}

Response PostLabel(const ListedRun& listed, const Request& request, const std::string& author) {
  auto change = catalog::ParseLabelUntrusted(request.body);
  if (!change.ok()) return ProblemOf(change.status());
  change->author = author;
  const auto number = catalog::ChangeLabel(listed.path, *change);
  if (!number.ok()) return ProblemOf(number.status());
  return {.status = 202, .body = fmt::format(R"({{"number":{}}})", *number)};
}

}  // namespace luff::server
