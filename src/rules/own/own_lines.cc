#include "rules/own/own_lines.h"

#include <exception>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/json_number.h"

namespace luff::rules {
namespace {

using Json = nlohmann::json;

constexpr JsonLimits kLimits{4ULL << 20, 32};
constexpr const char* kNotOfTheProtocol = "it sent a line that is not of the protocol";

std::optional<std::string> TextIn(const Json& json, const char* key, std::size_t most) {
  const auto at = json.find(key);
  if (at == json.end()) return std::nullopt;
  return at->get<std::string>().substr(0, most);
}

// May throw.
Result<OwnLine> Parse(std::string_view text) {
  const Json json = ParseJson(text, kLimits);
  const std::string say = json.at("say").get<std::string>();
  OwnLine line;
  if (say == "ready") {
    line.say = OwnLine::Say::kReady;
  } else if (say == "finding") {
    line.say = OwnLine::Say::kFinding;
    LUFF_ASSIGN_OR_RETURN(auto parsed, ParseFindingUntrusted(text));
    line.finding = std::move(parsed.first);
  } else if (say == "heal") {
    line.say = OwnLine::Say::kHeal;
    line.finding.cause = json.at("cause").get<std::string>();
    line.finding.tensor = json.at("tensor").get<std::string>();
    line.finding.last_step = WholeNumber<std::int64_t>(json.at("step"));
  } else if (say == "done") {
    line.say = OwnLine::Say::kDone;
    line.number = WholeNumber<std::size_t>(json.at("number"));
    line.raised = TextIn(json, "raised", 2000);
    line.lacks = TextIn(json, "lacks", 1000);
  } else if (say == "state") {
    line.say = OwnLine::Say::kState;
    line.why = TextIn(json, "why", 500);
    if (!line.why && json.contains("state")) line.state = JsonText(json.at("state"));
  } else if (say == "ended") {
    line.say = OwnLine::Say::kEnded;
  } else if (say == "error") {
    line.say = OwnLine::Say::kError;
    line.again = json.value("again", false);
    line.message = json.at("message").get<std::string>().substr(0, 1000);
  } else {
    return Corruption(kNotOfTheProtocol);
  }
  return line;
}

}  // namespace

Result<OwnLine> ParseOwnLineUntrusted(std::string_view line) {
  try {
    return Parse(line);
  } catch (const std::exception&) {
    return Corruption(kNotOfTheProtocol);
  }
}

}  // namespace luff::rules
