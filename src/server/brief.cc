#include "server/brief.h"

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace luff::server {
namespace {

using Json = nlohmann::ordered_json;

/// Main values of a scalar of the card; null if it has none.
Json MainOf(const Json& card, const char* which, const char* mode) {
  const std::string name = TextMember(card, which);
  if (name.empty() || !card.contains("scalars")) return {};
  for (const Json& scalar : card["scalars"]) {
    if (TextMember(scalar, "name") != name || TextMember(scalar, "mode") != mode) continue;
    return {{"last", scalar.value("last", Json())}, {"min", scalar.value("min", Json())}};
  }
  return {};
}

}  // namespace

std::string BriefOf(const std::string& text) {
  const Json card = TryParseOrderedJson(text);
  Json brief = Json::object();
  if (!card.is_object()) return "";
  for (const char* name : {"name", "title", "note", "tags", "outcome", "why", "verdict", "begun_unix_ns",
                           "took_s", "workers", "framework", "host", "findings", "course"}) {
    if (card.contains(name)) brief[name] = card[name];
  }
  std::uint64_t steps = 0;
  if (card.contains("steps") && card["steps"].is_object()) {
    for (const auto& [mode, count] : card["steps"].items()) steps += count.get<std::uint64_t>();
    if (card["steps"].contains("TRAIN")) steps = card["steps"]["TRAIN"].get<std::uint64_t>();
  }
  brief["steps"] = steps;
  brief["loss"] = MainOf(card, "loss", "TRAIN");
  brief["eval_loss"] = MainOf(card, "eval_loss", "EVAL");
  const std::string whole = JsonText(brief);
  return whole.substr(1, whole.size() - 2);
}

std::string RowOf(const ListedRun& run, std::span<const std::string> fields) {
  std::string row = JsonText(Json{{"id", run.id},
                                  {"place", run.name},
                                  {"fields", std::vector<std::string>(fields.begin(), fields.end())}});
  row.back() = ',';
  return row + run.brief + "}";
}

}  // namespace luff::server
