#include "luff/rules/finding.h"

#include <cmath>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include <xxhash.h>

#include "base/format.h"
#include "base/json.h"
#include "base/json_number.h"

namespace luff::rules {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxFindingBytes = 1U << 20;
constexpr std::size_t kMaxDepth = 16;

// JSON has no NaN: numbers that are not finite become text, as the schema requires.
Json Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

double NumberFrom(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (text == "Infinity") return HUGE_VAL;
    if (text == "-Infinity") return -HUGE_VAL;
  }
  return std::nan("");
}

}  // namespace

std::string FindingId(const std::string& rule, const std::string& cause, const std::string& tensor,
                      std::int64_t step) {
  const std::string key = fmt::format("{}\n{}\n{}\n{}", rule, cause, tensor, step);
  return fmt::format("{:016x}", XXH3_64bits(key.data(), key.size()));
}

std::string ToJson(const Finding& finding, const std::string& event) {
  Json json;
  json["event"] = event;
  json["id"] = finding.id;
  json["rule"] = finding.rule;
  json["cause"] = finding.cause;
  json["severity"] = finding.severity == Severity::kStop ? "stop" : "warn";
  json["tensor"] = finding.tensor;
  json["other_tensors"] = finding.other_tensors;
  json["other_count"] = finding.other_count;
  json["mode"] = finding.mode;
  json["worker"] = finding.worker;
  json["step"] = finding.step;
  json["global_step"] = finding.global_step;
  json["update"] = finding.update;
  json["since_step"] = finding.since_step;
  json["last_step"] = finding.last_step;
  json["healed"] = finding.healed;
  json["leader"] = finding.leader;
  json["forecast"] = finding.forecast;
  json["lead_steps"] = finding.lead_steps;
  json["what"] = finding.what;
  json["why"] = finding.why;
  json["remedy"] = finding.remedy;
  json["causes"] = finding.causes;
  Json evidence = Json::object();
  for (const auto& [name, value] : finding.evidence) evidence[name] = Number(value);
  json["evidence"] = std::move(evidence);
  Json series = Json::array();
  for (const auto& [step, value] : finding.series) series.push_back(Json::array({step, Number(value)}));
  json["series"] = std::move(series);
  json["threshold"] = finding.threshold;
  json["page"] = finding.page;
  if (finding.saving) {
    const Saving& saving = *finding.saving;
    json["saving"] = {{"seconds_a_step", Number(saving.seconds_a_step)},
                      {"share", Number(saving.share)},
                      {"low", Number(saving.low)},
                      {"high", Number(saving.high)},
                      {"method", saving.method}};
  }
  return JsonText(json);
}

Result<std::pair<Finding, std::string>> ParseFindingUntrusted(std::string_view text) {
  if (text.size() > kMaxFindingBytes) {
    return Corruption(
        fmt::format("a finding of {} bytes, at most {} are allowed", text.size(), kMaxFindingBytes));
  }
  try {
    const Json json = ParseJson(text, {kMaxFindingBytes, kMaxDepth});
    if (!json.is_object()) return Corruption("a finding is not a JSON object");
    Finding finding;
    const auto string = [&](const char* name) { return json.value(name, std::string()); };
    const auto integer = [&](const char* name) { return WholeNumber<std::int64_t>(json, name, 0); };
    finding.id = string("id");
    finding.rule = string("rule");
    finding.cause = string("cause");
    const std::string severity = string("severity");
    if (severity != "stop" && severity != "warn")
      return Corruption("a finding's severity is neither stop nor warn");
    finding.severity = severity == "stop" ? Severity::kStop : Severity::kWarn;
    finding.tensor = string("tensor");
    finding.other_tensors = json.value("other_tensors", std::vector<std::string>());
    finding.other_count = WholeNumber<std::uint64_t>(json, "other_count", 0);
    finding.mode = string("mode");
    finding.worker = WholeNumber<std::uint32_t>(json, "worker", 0);
    finding.step = integer("step");
    finding.global_step = integer("global_step");
    finding.update = integer("update");
    finding.since_step = integer("since_step");
    finding.last_step = integer("last_step");
    finding.healed = json.value("healed", false);
    finding.leader = string("leader");
    finding.forecast = json.value("forecast", false);
    finding.lead_steps = integer("lead_steps");
    finding.what = string("what");
    finding.why = string("why");
    finding.remedy = string("remedy");
    finding.causes = json.value("causes", std::vector<std::string>());
    if (const auto it = json.find("evidence"); it != json.end() && it->is_object()) {
      for (const auto& [name, value] : it->items()) finding.evidence.emplace_back(name, NumberFrom(value));
    }
    if (const auto it = json.find("series"); it != json.end() && it->is_array()) {
      for (const Json& pair : *it) {
        if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer()) {
          return Corruption("a finding's series holds something that is no (step, value) pair");
        }
        finding.series.emplace_back(WholeNumber<std::int64_t>(pair[0]), NumberFrom(pair[1]));
      }
    }
    finding.threshold = string("threshold");
    finding.page = string("page");
    if (const auto it = json.find("saving"); it != json.end() && it->is_object()) {
      const auto number = [&](const char* name) {
        return it->contains(name) ? NumberFrom((*it)[name]) : std::nan("");
      };
      finding.saving = {number("seconds_a_step"), number("share"), number("low"), number("high"),
                        it->value("method", std::string())};
    }
    return std::pair(std::move(finding), string("event"));
  } catch (const std::exception& error) {
    return Corruption(fmt::format("a finding does not parse: {}", error.what()));
  }
}

Lead LeadOf(std::span<const Finding> findings) {
  std::unordered_map<std::string_view, const Finding*> by_id;
  for (const Finding& finding : findings) by_id.try_emplace(finding.id, &finding);
  const auto rank = [](const Finding& of, bool healed, bool stops) {
    return std::tuple(healed, !stops, !(stops && of.rule == "NonFinite"), of.since_step);
  };
  Lead lead;
  bool healed = false;  // what makes it the lead has
  for (const Finding& finding : findings) {
    const auto at = finding.leader.empty() ? by_id.end() : by_id.find(finding.leader);
    // What outlasts its leader stands on its own.
    const bool alone = at == by_id.end() || (at->second->healed && !finding.healed);
    const Finding* leader = alone ? &finding : at->second;
    const bool stops = finding.severity == Severity::kStop;
    lead.leaders += leader == &finding ? 1 : 0;
    lead.healed += leader == &finding && finding.healed ? 1 : 0;
    lead.followers += leader != &finding && !finding.healed ? 1 : 0;
    if (lead.finding != nullptr &&
        rank(*leader, finding.healed, stops) >= rank(*lead.finding, healed, lead.stops))
      continue;
    lead.finding = leader;
    lead.stops = stops;
    healed = finding.healed;
  }
  return lead;
}

}  // namespace luff::rules
