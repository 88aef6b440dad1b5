#include "catalog/sweep.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/json_number.h"
#include "base/nearest_names.h"
#include "base/text_escape.h"
#include "luff/query/trial.h"
#include "luff/rules/kept_findings.h"
#include "luff/store/control.h"

namespace luff::catalog {
namespace {

constexpr std::size_t kSweepsNamed = 5;  // where nothing there is near

using Json = nlohmann::json;

double NumberIn(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_number() ? at->get<double>() : 0;
}

std::uint64_t StepsIn(const Json& card) {
  const auto steps = card.find("steps");
  if (steps == card.end() || !steps->is_object()) return 0;
  if (steps->contains("TRAIN")) return static_cast<std::uint64_t>(NumberIn(*steps, "TRAIN"));
  double all = 0;
  for (const auto& [mode, count] : steps->items()) all += count.is_number() ? count.get<double>() : 0;
  return static_cast<std::uint64_t>(all);
}

void PutParameters(const Json& card, SweepTrial* trial) {
  const auto all = card.find("parameters");
  if (all == card.end() || !all->is_object()) return;
  for (const auto& [name, value] : all->items()) {
    if (value.is_boolean())
      trial->parameters[name] = value.get<bool>();
    else if (value.is_number())
      trial->parameters[name] = value.get<double>();
    else if (value.is_string())
      trial->parameters[name] = value.get<std::string>();
  }
}

/// Whether a finding stopped an earlier part of the run than the one whose end counts.
bool WasStoppedBefore(const std::string& run) {
  const auto records = store::ReadControl(run, 0, nullptr);
  if (!records.ok()) return false;
  return std::ranges::any_of(*records, [](const store::ControlRecord& one) {
    return one.kind == "outcome" && !one.finding.empty() &&
           TextMember(TryParseJson(one.body), "state") == "stopped";
  });
}

SweepTrial TrialOf(const Entry& entry) {
  const Json card = TryParseJson(entry.card);  // our own, from the index
  SweepTrial trial;
  trial.run = entry.path;
  trial.name = TextMember(card, "trial");
  if (trial.name.empty()) trial.name = entry.name;
  trial.outcome = TextMember(card, "outcome");
  trial.verdict = entry.verdict;
  trial.why = entry.why;
  trial.steps = StepsIn(card);
  trial.workers = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(NumberIn(card, "workers")));
  trial.took_s = entry.took_s;
  trial.loss = entry.loss;
  trial.best_loss = entry.best_loss;
  PutParameters(card, &trial);
  const Json first = card.contains("findings") && card["findings"].is_object()
                         ? card["findings"].value("first", Json::object())
                         : Json::object();
  if (first.is_object()) {
    trial.rule = TextMember(first, "rule");
    trial.severity = TextMember(first, "severity");
    trial.mode = TextMember(first, "mode");
    trial.tensor = TextMember(first, "tensor");
    trial.what = TextMember(first, "what");
    trial.since_step = static_cast<std::int64_t>(NumberIn(first, "since_step"));
  }
  std::set<std::pair<std::string, std::string>> known;
  for (const rules::Finding& one : rules::FindingsOfRun(entry.path).findings) {
    const bool leads =
        one.rule == trial.rule && one.since_step == trial.since_step && one.tensor == trial.tensor;
    if (leads) trial.cause = one.cause;
    if ((one.healed || !one.leader.empty()) && !leads) continue;
    if (known.emplace(one.rule, one.cause).second) trial.findings.emplace_back(one.rule, one.cause);
  }
  trial.ended = trial.outcome != "running" && trial.verdict != "damaged" && trial.steps > 0;
  trial.stopped = trial.outcome == "stopped" && !trial.rule.empty();
  const bool finding = trial.severity == "stop" && trial.verdict == "findings";
  trial.bad = trial.ended && (trial.stopped || trial.outcome == "failed" || finding);
  trial.resumed = trial.verdict == "ok" && WasStoppedBefore(entry.path);
  return trial;
}

/// Looks which trials compute the same numbers.
void FindSame(Sweep* sweep) {
  const std::uint64_t budget = kSweepBudget / std::max<std::size_t>(1, sweep->trials.size());
  std::vector<Fingerprint> prints(sweep->trials.size());
  std::size_t cut = 0, unread = 0;
  for (std::size_t i = 0; i < prints.size(); ++i) {
    const auto opened = query::Trial::Open(sweep->trials[i].run);
    auto print = opened.ok() ? FingerprintOf(**opened, budget) : Result<Fingerprint>(opened.status());
    if (!print.ok()) {
      ++unread;
      continue;
    }
    prints[i] = std::move(*print);
    cut += prints[i].whole ? 0 : 1;
  }
  if (unread > 0)
    sweep->notes.push_back(std::to_string(unread) +
                           " trials cannot be read: their numbers were not compared");
  if (cut > 0)
    sweep->notes.push_back("of " + std::to_string(cut) + " trials only the first steps were compared");
  sweep->nearest = NearestOf(prints);
  for (std::vector<std::size_t>& group : SameRuns(prints, kFewestSame)) {
    SameTrials same;
    same.steps = UINT64_MAX;
    std::set<std::string> names;
    for (const std::size_t i : group) {
      same.steps = std::min<std::uint64_t>(same.steps, prints[i].until.size());
      for (const auto& [name, value] : sweep->trials[i].parameters) names.insert(name);
    }
    const auto& of = sweep->trials[group.front()].parameters;
    for (const std::string& name : names) {
      const auto first = of.find(name);
      const bool all = std::ranges::all_of(group, [&](std::size_t i) {
        const auto at = sweep->trials[i].parameters.find(name);
        const bool here = at != sweep->trials[i].parameters.end();
        return here == (first != of.end()) && (!here || at->second == first->second);
      });
      if (!all) same.differ.push_back(name);
    }
    same.trials = std::move(group);
    sweep->same.push_back(std::move(same));
  }
}

Status NoSuchSweep(const std::string& index, const std::string& folder, const std::string& name) {
  Question question;
  question.folder = folder;
  question.limit = kMaxTrials;
  question.fields = {"sweep"};
  std::set<std::string> names;
  if (const auto all = Ask(index, question); all.ok()) {
    for (const Entry& entry : all->entries) {
      if (!entry.fields.empty() && !entry.fields[0].empty()) names.insert(entry.fields[0]);
    }
  }
  const std::vector<std::string> known(names.begin(), names.end());
  std::string there = NearestText(name, known);
  if (known.empty()) there = "; no run there belongs to any (luff.trial_run, luff run --sweep)";
  if (there.empty()) {
    const std::size_t named = std::min(known.size(), kSweepsNamed);
    for (std::size_t i = 0; i < named; ++i) there += (i == 0 ? "; there are " : ", ") + known[i];
    if (named < known.size()) there += " and " + std::to_string(known.size() - named) + " more";
  }
  return NotFound("no run belongs to a sweep '" + Escaped(name) + "'" + Escaped(there) + ": " + folder);
}

}  // namespace

Result<Sweep> ReadSweep(const std::string& index, const std::string& folder, const std::string& name,
                        const Progress& progress) {
  if (name.empty()) return InvalidArgument("--sweep is empty; expected the name of a sweep");
  Question question;
  question.folder = folder;
  question.limit = kMaxTrials;
  question.ascending = true;
  Condition is;
  is.kind = Condition::Kind::kCompare;
  is.field = "sweep";
  is.op = Condition::Op::kEqual;
  is.text = name;
  question.where = is;
  LUFF_ASSIGN_OR_RETURN(const Answer answer, Ask(index, question, progress));
  if (answer.entries.empty()) return NoSuchSweep(index, folder, name);
  Sweep sweep;
  sweep.name = name;
  sweep.folder = folder;
  sweep.notes = answer.notes;
  if (answer.matching > answer.entries.size())
    sweep.notes.push_back("only the first " + std::to_string(kMaxTrials) + " trials were looked at");
  for (const Entry& entry : answer.entries) {
    // A parameter may have the name, too, and the index knows no capital letters.
    if (TextMember(TryParseJson(entry.card), "sweep") == name) sweep.trials.push_back(TrialOf(entry));
  }
  if (sweep.trials.empty()) return NoSuchSweep(index, folder, name);
  sweep.findings = Share(sweep.trials);
  std::vector<Judged> judged;
  for (const SweepTrial& trial : sweep.trials) {
    if (trial.ended) judged.push_back({&trial.parameters, trial.bad});
  }
  sweep.separations = Separate(judged);
  FindSame(&sweep);
  sweep.saved = SavedBy(sweep.trials);
  return sweep;
}

std::vector<SharedFinding> Share(const std::vector<SweepTrial>& trials) {
  std::map<std::pair<std::string, std::string>, SharedFinding> all;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (!trials[i].bad) continue;
    for (const auto& key : trials[i].findings) {
      SharedFinding& one = all[key];
      one.rule = key.first;
      one.cause = key.second;
      one.trials.push_back(i);
    }
  }
  std::vector<SharedFinding> list;
  for (auto& [key, one] : all) list.push_back(std::move(one));
  std::ranges::stable_sort(list, std::greater<>(),
                           [](const SharedFinding& one) { return one.trials.size(); });
  return list;
}

Saved SavedBy(const std::vector<SweepTrial>& trials) {
  Saved saved;
  std::vector<double> took;
  std::vector<std::uint64_t> steps;
  std::uint64_t made = 0;
  for (const SweepTrial& trial : trials) {
    made += trial.steps;
    saved.spent_hours += trial.took_s * static_cast<double>(trial.workers) / 3600;
    saved.wrong += trial.resumed ? 1 : 0;
    saved.stopped += trial.stopped ? 1 : 0;
    if (trial.outcome != "completed") continue;
    took.push_back(trial.took_s);
    steps.push_back(trial.steps);
  }
  saved.completed = took.size();
  saved.known = saved.completed >= Saved::kFewestCompleted;
  if (took.empty()) return saved;
  std::ranges::sort(took);
  std::ranges::sort(steps);
  const std::size_t middle = took.size() / 2;
  saved.median_s = took.size() % 2 == 1 ? took[middle] : (took[middle - 1] + took[middle]) / 2;
  saved.median_steps = steps[(steps.size() - 1) / 2];  // the lower one of two
  std::uint64_t not_made = 0;
  for (const SweepTrial& trial : trials) {
    if (!trial.stopped) continue;
    saved.hours += std::max(0.0, saved.median_s - trial.took_s) * static_cast<double>(trial.workers) / 3600;
    if (saved.median_steps > trial.steps) not_made += saved.median_steps - trial.steps;
  }
  if (made + not_made > 0) saved.share = static_cast<double>(not_made) / static_cast<double>(made + not_made);
  if (!saved.known) saved.hours = saved.share = 0;
  return saved;
}

}  // namespace luff::catalog
