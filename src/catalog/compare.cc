#include "catalog/compare.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "base/json_nonfinite.h"

namespace luff::catalog {
namespace {

using Ordered = nlohmann::ordered_json;

std::string Count(std::uint64_t count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string Names(const std::vector<std::string>& names, std::uint64_t count) {
  std::string text = fmt::format("{}", fmt::join(names, ", "));
  if (count > names.size()) text += fmt::format(" and {} more", count - names.size());
  return text;
}

std::string Number(double value) {
  if (std::isnan(value)) return "not finite";
  return fmt::format("{:.6g}", value);
}

std::string ValuesText(const DifferenceAt& one, const std::string& a, const std::string& b) {
  return fmt::format("{} in {}, {} in {}", Number(one.a), a, Number(one.b), b);
}

Ordered JsonOf(const DifferenceAt& one) {
  return {{"tensor", one.tensor}, {"kind", one.kind},   {"step", one.step},        {"a", one.a},
          {"b", one.b},           {"noise", one.noise}, {"as_early", one.as_early}};
}

Ordered JsonOf(const Divergence& one) {
  Ordered json{{"mode", one.mode},
               {"steps", one.steps},
               {"first", one.first},
               {"last", one.last},
               {"whole", one.whole},
               {"tensors", one.tensors},
               {"pairs", one.pairs},
               {"only_a", one.only_a},
               {"only_a_count", one.only_a_count},
               {"only_b", one.only_b},
               {"only_b_count", one.only_b_count},
               {"any", one.any ? JsonOf(*one.any) : Ordered()},
               {"beyond", Ordered::array()}};
  for (const DifferenceAt& at : one.beyond) json["beyond"].push_back(JsonOf(at));
  return json;
}

}  // namespace

Result<std::vector<Compared>> OpenCompared(const std::vector<std::string>& runs) {
  if (runs.size() < 2 || runs.size() > kMaxCompared)
    return InvalidArgument(
        fmt::format("found {}, expected 2 to {} runs to compare", runs.size(), kMaxCompared));
  std::set<std::string> seen;
  std::vector<Compared> opened;
  for (const std::string& run : runs) {
    std::error_code ignored;
    const std::string path = std::filesystem::weakly_canonical(run, ignored).string();
    if (!seen.insert(path).second) return InvalidArgument("a run is named twice: " + run);
    Compared one;
    LUFF_ASSIGN_OR_RETURN(one.trial, query::Trial::Open(run));
    LUFF_ASSIGN_OR_RETURN(one.card, ReadCard(run));
    opened.push_back(std::move(one));
  }
  return opened;
}

std::vector<std::string> SentencesOf(const Divergence& d, const Compared& of_a, const Compared& of_b,
                                     const std::string& a, const std::string& b) {
  std::vector<std::string> told;
  for (const auto& [run, name] : {std::pair(&of_a, &a), std::pair(&of_b, &b)}) {
    if (run->card.outcome == "running") told.push_back(*name + " still runs; this is as far as it has come.");
  }
  if (d.tensors == 0) {
    told.emplace_back(
        "They have no tensor in common: these are different models, and nothing can be compared step by "
        "step.");
    return told;
  }
  if (d.mode.empty()) {
    told.emplace_back("They have no step in common, so nothing can be compared step by step.");
    return told;
  }
  const auto count_a = of_a.trial->Steps(*query::ParseMode(d.mode)).size();
  const auto count_b = of_b.trial->Steps(*query::ParseMode(d.mode)).size();
  if (count_a != count_b) {
    told.push_back(fmt::format("{} has {} {} steps, {} has {}; the {} in both are compared.", a, count_a,
                               d.mode, b, count_b, d.whole ? d.steps : std::min(count_a, count_b)));
  }
  if (d.only_a_count + d.only_b_count > 0) {
    std::string text = fmt::format("{} in both", Count(d.tensors, "tensor is", "tensors are"));
    if (d.only_a_count > 0) text += fmt::format("; only {} has {}", a, Names(d.only_a, d.only_a_count));
    if (d.only_b_count > 0) text += fmt::format("; only {} has {}", b, Names(d.only_b, d.only_b_count));
    told.push_back(text + ".");
  }
  if (of_a.card.workers > 1 || of_b.card.workers > 1)
    told.emplace_back("Of several ranks, rank 0 is compared.");
  if (d.pairs == 0) {
    told.emplace_back("Nothing was recorded of the same tensor at the same step in both.");
    return told;
  }
  const std::string until = d.whole ? "" : fmt::format(" up to {} step {}", d.mode, d.last);
  if (!d.any) {
    told.push_back(fmt::format(
        "Bit-identical{}: all {} numbers that both recorded (statistics, losses, settings) are the same.",
        until, d.pairs));
    return told;
  }
  told.push_back(fmt::format(
      "{} {} step {}: {} is the first that is not the same bit for bit{} ({}).",
      d.any->step == d.first ? "They differ from the first step on," : "Bit-identical before", d.mode,
      d.any->step, d.any->tensor, d.any->as_early > 0 ? fmt::format(", with {} more", d.any->as_early) : "",
      ValuesText(*d.any, a, b)));
  if (d.beyond.empty()) {
    told.push_back(fmt::format("Nothing differs by more than both runs' noise{}.", until));
    return told;
  }
  for (const DifferenceAt& one : d.beyond) {
    const std::string more = one.as_early > 0 ? fmt::format(", with {} more of them", one.as_early) : "";
    told.push_back(fmt::format("Of {}, {} is the first to differ beyond noise: {} step {}{} ({}{}).",
                               one.kind == "others" ? "the others" : one.kind, one.tensor, d.mode, one.step,
                               more, ValuesText(one, a, b),
                               one.noise > 0 ? fmt::format("; noise {:.2g}", one.noise) : ""));
  }
  const bool begins = std::ranges::any_of(
      d.beyond, [&](const DifferenceAt& one) { return one.kind == "weights" && one.step == d.first; });
  if (begins)
    told.emplace_back(
        "The weights differ from the beginning: another initialisation or seed, or another checkpoint.");
  return told;
}

std::vector<std::string> NamesOf(const std::vector<Compared>& runs) {
  std::set<std::string> seen;
  std::vector<std::string> names;
  bool twice = false;
  for (const Compared& run : runs) {
    names.push_back(run.card.name);
    twice = !seen.insert(run.card.name).second || twice;
  }
  for (std::size_t i = 0; twice && i < runs.size(); ++i) names[i] = runs[i].card.run;
  return names;
}

Result<nlohmann::ordered_json> CompareRuns(const std::vector<Compared>& runs) {
  Ordered json{{"runs", Ordered::array()},
               {"settings", Ordered::array()},
               {"findings", Ordered::array()},
               {"divergence", Ordered::array()},
               {"noise", kNoiseText}};
  for (const Compared& run : runs) json["runs"].push_back(Ordered(TryParseOrderedJson(ToJson(run.card))));
  const std::vector<std::string> names = NamesOf(runs);
  const Settings settings = CompareSettings(runs);
  for (const SettingRow& row : settings.rows) {
    Ordered values = Ordered::array();
    for (const auto& value : row.values) values.push_back(value ? Ordered(*value) : Ordered());
    json["settings"].push_back({{"kind", row.kind}, {"name", row.name}, {"values", std::move(values)}});
  }
  json["settings_same"] = settings.same;
  json["settings_left_out"] = settings.left_out;
  for (const FindingRow& row : CompareFindings(runs)) {
    Ordered of = Ordered::array();
    for (const FindingRow::Of& one : row.runs) {
      of.push_back(one.count == 0 ? Ordered()
                                  : Ordered{{"count", one.count},
                                            {"severity", one.severity},
                                            {"tensor", one.tensor},
                                            {"mode", one.mode},
                                            {"since_step", one.since_step}});
    }
    json["findings"].push_back({{"rule", row.rule}, {"cause", row.cause}, {"runs", std::move(of)}});
  }
  for (std::size_t i = 1; i < runs.size(); ++i) {
    LUFF_ASSIGN_OR_RETURN(const Divergence one, FindDivergence(*runs[0].trial, *runs[i].trial));
    Ordered told = JsonOf(one);
    told["a"] = 0;
    told["b"] = i;
    told["sentences"] = SentencesOf(one, runs[0], runs[i], names[0], names[i]);
    json["divergence"].push_back(std::move(told));
  }
  NameNonFinite(&json);
  return json;
}

}  // namespace luff::catalog
