#include <algorithm>
#include <ranges>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json_nonfinite.h"
#include "catalog/sweep.h"

namespace luff::catalog {
namespace {

using Ordered = nlohmann::ordered_json;

std::string Trials(std::uint64_t count) { return fmt::format("{} trial{}", count, count == 1 ? "" : "s"); }

std::string HoursText(double hours) {
  if (hours < 1.0 / 60) return fmt::format("{:.0f} s", hours * 3600);
  if (hours < 1) return fmt::format("{:.1f} min", hours * 60);
  return fmt::format("{:.1f} h", hours);
}

Ordered OrNull(const std::optional<double>& value) { return value ? Ordered(*value) : Ordered(); }

Ordered ValueOf(const Parameter& value) {
  return std::visit([](const auto& of) { return Ordered(of); }, value);
}

Ordered JsonOf(const SweepTrial& trial, const Nearest& nearest, const Sweep& sweep) {
  Ordered json{{"trial", trial.name},
               {"run", trial.run},
               {"bad", trial.bad},
               {"ended", trial.ended},
               {"stopped", trial.stopped},
               {"wrong_stop", trial.resumed},
               {"outcome", trial.outcome},
               {"verdict", trial.verdict},
               {"why", trial.why},
               {"parameters", Ordered::object()},
               {"steps", trial.steps},
               {"workers", trial.workers},
               {"took_s", trial.took_s},
               {"device_hours", trial.took_s * static_cast<double>(trial.workers) / 3600},
               {"loss", OrNull(trial.loss)},
               {"best_loss", OrNull(trial.best_loss)},
               {"finding", Ordered()},
               {"findings", Ordered::array()},
               {"nearest", Ordered()}};
  for (const auto& [name, value] : trial.parameters) json["parameters"][name] = ValueOf(value);
  if (!trial.rule.empty()) {
    json["finding"] = {{"rule", trial.rule}, {"cause", trial.cause},   {"severity", trial.severity},
                       {"mode", trial.mode}, {"tensor", trial.tensor}, {"since_step", trial.since_step},
                       {"what", trial.what}};
  }
  for (const auto& [rule, cause] : trial.findings)
    json["findings"].push_back({{"rule", rule}, {"cause", cause}});
  if (nearest.same > 0) {
    json["nearest"] = {{"trial", sweep.trials[nearest.other].name},
                       {"index", nearest.other},
                       {"same_steps", nearest.same},
                       {"parts_at", nearest.parts_at < 0 ? Ordered() : Ordered(nearest.parts_at)}};
  }
  return json;
}

}  // namespace

std::string NamesIn(const Sweep& sweep, const std::vector<std::size_t>& trials) {
  constexpr std::size_t kNamed = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(trials.size(), kNamed); ++i)
    text += (i == 0                                              ? ""
             : i + 1 == trials.size() && trials.size() <= kNamed ? " and "
                                                                 : ", ") +
            sweep.trials[trials[i]].name;
  if (trials.size() > kNamed) text += fmt::format(" and {} more", trials.size() - kNamed);
  return text;
}

std::vector<std::string> SharedText(const Sweep& sweep) {
  std::vector<std::string> told;
  std::size_t bad = 0;
  std::size_t unnamed = 0;
  for (const SweepTrial& trial : sweep.trials) {
    bad += trial.bad ? 1 : 0;
    unnamed += trial.bad && trial.findings.empty() ? 1 : 0;
  }
  for (const SharedFinding& one : sweep.findings)
    told.push_back(fmt::format("{} ({}): {} of {} bad trials: {}.", one.rule, one.cause, one.trials.size(),
                               bad, NamesIn(sweep, one.trials)));
  if (unnamed > 0)
    told.push_back(fmt::format("No finding stands in {} of them; their jobs failed.", unnamed));
  for (const Separation& one : sweep.separations)
    told.push_back(fmt::format("{}: {} of {} are bad, against {} of {} others (p = {:.2g}).",
                               SeparationText(one), one.bad_inside, one.inside, one.bad_outside, one.outside,
                               one.p));
  if (!sweep.separations.empty())
    told.emplace_back(
        "p: Fisher's exact test, times the borders that were tried, with Holm's correction over the "
        "parameters; "
        "said below 0.01. A parameter that goes with another one is named, too.");
  return told;
}

std::vector<std::string> SameText(const Sweep& sweep) {
  std::vector<std::string> told;
  for (const SameTrials& one : sweep.same) {
    const auto [fewest, most] = std::ranges::minmax(
        one.trials | std::views::transform([&](std::size_t i) { return sweep.trials[i].steps; }));
    const std::string names = NamesIn(sweep, one.trials);
    const std::string how =
        fmt::format("bit for bit the same in all {} TRAIN steps that they share", one.steps);
    // A number of epochs has an effect: on how long they train.
    const std::string lengths =
        fewest == most ? "" : fmt::format(" in these steps; they made {} to {}", fewest, most);
    if (one.differ.empty())
      told.push_back(
          fmt::format("{} are {}: the same trial, {} times{}.", names, how, one.trials.size(), lengths));
    else
      told.push_back(fmt::format("{} are {}, though they differ in {}: {} had no effect{}.", names, how,
                                 fmt::join(one.differ, ", "), one.differ.size() == 1 ? "it" : "these",
                                 fewest == most ? " on them" : lengths));
  }
  return told;
}

std::string SavedText(const Saved& saved) {
  std::string text = fmt::format("{} of device time spent.", HoursText(saved.spent_hours));
  if (saved.stopped == 0 && saved.wrong == 0) return text + " No finding stopped a trial.";
  if (saved.stopped > 0 && !saved.known) {
    text += fmt::format(" What the {} stopped {} saved is not known: {} completed, and an estimate needs {}.",
                        saved.stopped, saved.stopped == 1 ? "trial" : "trials", saved.completed,
                        Saved::kFewestCompleted);
  } else if (saved.stopped > 0) {
    text += fmt::format(
        " About {} saved (estimate): {} stopped; the middle one of {} that completed took {} and {} steps, "
        "and each "
        "stopped one is taken to have needed as long. That is {:.0f} % of the sweep's steps.",
        HoursText(saved.hours), Trials(saved.stopped), saved.completed, HoursText(saved.median_s / 3600),
        saved.median_steps, 100 * saved.share);
  }
  if (saved.wrong > 0)
    text += fmt::format(" Wrong stops: {}: resumed by hand, and completed without findings.", saved.wrong);
  return text;
}

nlohmann::ordered_json ToJson(const Sweep& sweep) {
  Ordered json{
      {"sweep", sweep.name},
      {"folder", sweep.folder},
      {"trials", Ordered::array()},
      {"shared",
       {{"findings", Ordered::array()}, {"parameters", Ordered::array()}, {"sentences", SharedText(sweep)}}},
      {"same", Ordered::array()},
      {"saved", Ordered()},
      {"notes", sweep.notes}};
  for (std::size_t i = 0; i < sweep.trials.size(); ++i)
    json["trials"].push_back(
        JsonOf(sweep.trials[i], i < sweep.nearest.size() ? sweep.nearest[i] : Nearest(), sweep));
  for (const SharedFinding& one : sweep.findings)
    json["shared"]["findings"].push_back({{"rule", one.rule}, {"cause", one.cause}, {"trials", one.trials}});
  for (const Separation& one : sweep.separations) {
    json["shared"]["parameters"].push_back({{"parameter", one.parameter},
                                            {"op", one.op},
                                            {"value", ValueOf(one.value)},
                                            {"p", one.p},
                                            {"bad_inside", one.bad_inside},
                                            {"inside", one.inside},
                                            {"bad_outside", one.bad_outside},
                                            {"outside", one.outside}});
  }
  for (const SameTrials& one : sweep.same)
    json["same"].push_back({{"trials", one.trials}, {"steps", one.steps}, {"differ", one.differ}});
  const Saved& saved = sweep.saved;
  json["saved"] = {{"stopped", saved.stopped},
                   {"completed", saved.completed},
                   {"wrong_stops", saved.wrong},
                   {"median_s", saved.median_s},
                   {"median_steps", saved.median_steps},
                   {"device_hours", saved.known ? Ordered(saved.hours) : Ordered()},
                   {"steps_share", saved.known ? Ordered(saved.share) : Ordered()},
                   {"spent_device_hours", saved.spent_hours},
                   {"basis", SavedText(saved)}};
  NameNonFinite(&json);
  return json;
}

}  // namespace luff::catalog
