#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <set>

#include "base/format.h"
#include "base/json.h"
#include "cli/config_file.h"
#include "cli/kept_actions.h"
#include "cli/profile_traces.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cli/upload_cost.h"
#include "cli/upload_ends.h"
#include "cli/verbs.h"
#include "keys/gate.h"
#include "luff/actions/marks.h"
#include "luff/profile/kineto_trace.h"
#include "luff/query/capture_cost.h"
#include "luff/rules/coverage.h"
#include "luff/rules/finding.h"
#include "luff/rules/kept_findings.h"
#include "luff/store/after_stop.h"

namespace luff::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kShownFindings = 10;
constexpr std::size_t kShownGaps = 10;
constexpr std::size_t kShownActions = 10;

/// Gaps grouped by reason and kind: a run may have one for each of thousands of tensors.
struct GapGroup {
  std::string reason, forms;
  std::set<std::string> of;  // tensors or collections
  std::uint64_t count = 0;
  std::int64_t first_step = -1, last_step = -1;
  bool whole_steps = true;
};

std::vector<GapGroup> Grouped(const std::vector<query::GapInfo>& gaps) {
  std::vector<GapGroup> groups;
  std::map<std::pair<std::string, std::string>, std::size_t> place;
  for (const query::GapInfo& gap : gaps) {
    const auto [known, fresh] = place.emplace(std::pair(gap.reason, gap.forms), groups.size());
    if (fresh) groups.push_back({gap.reason, gap.forms, {}, 0, gap.first_step, gap.last_step});
    GapGroup& group = groups[known->second];
    group.count += gap.count;
    group.whole_steps = group.whole_steps && IsOfWholeSteps(gap);
    group.first_step = std::min(group.first_step, gap.first_step);
    group.last_step = std::max(group.last_step, gap.last_step);
    const std::string& name = gap.tensor.empty() ? gap.collection : gap.tensor;
    if (!name.empty()) group.of.insert(name);
  }
  return groups;
}

std::string GapText(const GapGroup& gap) {
  std::string text = Escaped(gap.reason);
  if (gap.reason == store::kTrainedAfterStop) return text + ": " + Plural(gap.count, "update", "updates");
  if (gap.whole_steps) {
    text += ": " + Plural(gap.count, "step", "steps");
    return text + (gap.first_step == gap.last_step
                       ? fmt::format(", step {}", gap.last_step)
                       : fmt::format(" of {} to {}", gap.first_step, gap.last_step));
  }
  if (gap.count > 0) text += fmt::format(": {}", gap.forms.empty() ? "rows" : Escaped(gap.forms));
  if (gap.of.size() == 1) text += " of " + Escaped(*gap.of.begin());
  if (gap.of.size() > 1) text += fmt::format(" of {} tensors", gap.of.size());
  if (gap.count > 1) text += fmt::format(", {} times", gap.count);
  if (gap.last_step < 0) return text;
  if (gap.first_step == gap.last_step) return text + fmt::format(", step {}", gap.last_step);
  return text + fmt::format(", steps {} to {}", std::max<std::int64_t>(gap.first_step, 0), gap.last_step);
}

std::pair<std::uint64_t, std::uint64_t> CountFiles(const std::string& run) {
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator at(run, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (!at->is_regular_file(ignored)) continue;
    ++files;
    const auto size = at->file_size(ignored);
    if (!ignored) bytes += size;
  }
  return {files, bytes};
}

/// Local date and time.
std::string TimeText(std::int64_t unix_ns) {
  const auto seconds = static_cast<std::time_t>(unix_ns / 1'000'000'000);
  std::tm local{};
  char text[32];
  if (localtime_r(&seconds, &local) == nullptr ||
      std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &local) == 0)
    return "unknown";
  return text;
}

/// When the run began, and how long the steps took.
std::string BegunText(const query::Trial& trial) {
  std::string text = TimeText(trial.created_unix_ns());
  if (trial.step_count() == 0) return text;
  const query::StepInfo last = trial.step_at(trial.step_count() - 1);
  const double took = static_cast<double>(last.wall_unix_ns - trial.created_unix_ns()) * 1e-9;
  return took < 0 ? text : fmt::format("{}, last step after {:.1f} s", text, took);
}

Json DescribeRules(const std::string& run) {
  const std::vector<rules::RuleCoverage> coverage = rules::CoverageOfRun(run);
  const rules::CoverageSummary summary = rules::Summarize(coverage);
  Json json{{"count", summary.rules}, {"judged", summary.judged}};
  json["lacks"] = Json::object();
  for (const auto& [what, names] : summary.lacks) json["lacks"][what] = names;
  json["failed"] = Json::object();
  for (const rules::RuleCoverage& one : coverage) {
    if (!one.failed.empty()) json["failed"][one.rule] = one.failed;
  }
  return json;
}

void PrintRules(const Json& rules) {
  const auto count = rules["count"].get<std::size_t>();
  if (count == 0) return;
  fmt::print("  rules     {} of {} judged\n", rules["judged"].get<std::size_t>(), count);
  for (const auto& [what, names] : rules["lacks"].items()) {
    const std::string list = fmt::format("{}", fmt::join(names.get<std::vector<std::string>>(), ", "));
    fmt::print("    {}\n", Wrapped(fmt::format("without {}: {}", Escaped(what), Escaped(list)), 6, 100, 4));
  }
  for (const auto& [rule, why] : rules["failed"].items())
    fmt::print("    {}: {}\n", Escaped(rule), Escaped(why.get<std::string>()));
}

std::map<std::string, actions::Mark> MarksOfRun(const std::string& run) {
  const auto records = store::ReadControl(run, 0, nullptr);
  return records.ok() ? actions::MarksIn(*records) : std::map<std::string, actions::Mark>();
}

Json DescribeMark(const std::map<std::string, actions::Mark>& marks, const std::string& finding) {
  const auto at = marks.find(finding);
  if (at == marks.end()) return nullptr;
  const actions::Mark& mark = at->second;
  return {{"as", actions::WordOf(mark.as)}, {"until_step", mark.until_step},
          {"author", mark.author},          {"note", mark.note},
          {"unix_ns", mark.unix_ns},        {"said", actions::SaidOf(mark)}};
}

Json Describe(const query::Trial& trial, const std::optional<BucketPrices>& prices) {
  const auto outcome = trial.outcome();
  const auto [files, bytes] = CountFiles(trial.path());
  Json json;
  json["run"] = trial.path();
  if (const std::string bucket = trial.MirrorNote(); !bucket.empty()) json["bucket"] = bucket;
  for (const Upload& upload : UploadsOf(trial.path())) json["uploads"].push_back(ToJson(upload, prices));
  if (const auto ends = ReadUploadEnds(trial.path()))
    json["upload_ends"] = {
        {"ends", ends->ends}, {"last", ends->last}, {"unix_ns", ends->unix_ns}, {"again", ends->again}};
  json["outcome"] = outcome.state;
  json["why"] = outcome.why;
  json["created_unix_ns"] = trial.created_unix_ns();
  json["steps"] = trial.Steps(query::Mode::kGlobal).size();
  json["modes"] = Json::object();
  for (const query::Mode mode : {query::Mode::kTrain, query::Mode::kEval, query::Mode::kPredict}) {
    const auto steps = trial.Steps(mode);
    if (steps.empty()) continue;
    json["modes"][std::string(query::ModeName(mode))] = {
        {"steps", steps.size()}, {"first", steps.front()}, {"last", steps.back()}};
  }
  json["tensors"] = trial.tensor_count();
  json["collections"] = trial.CollectionNames();
  json["world_size"] = trial.world_size();
  json["workers"] = Json::array();
  for (const query::WorkerInfo& w : trial.workers()) {
    json["workers"].push_back({{"worker", w.worker},
                               {"alive", w.alive},
                               {"ended", w.ended},
                               {"last_step", w.last_global_step},
                               {"last_train_step", w.last_train_step},
                               {"heartbeat_unix_ns", w.heartbeat_unix_ns}});
  }
  const rules::KeptFindings found = rules::FindingsOfRun(trial.path());
  const auto marks = MarksOfRun(trial.path());
  const auto traced = profile::TracesByFinding(trial);
  json["findings"] = found.findings.size();
  json["finding_list"] = Json::array();
  for (const rules::Finding& f : found.findings) {
    json["finding_list"].push_back({{"id", f.id},
                                    {"rule", f.rule},
                                    {"severity", f.severity == rules::Severity::kStop ? "stop" : "warn"},
                                    {"tensor", f.tensor},
                                    {"mode", f.mode},
                                    {"since_step", f.since_step},
                                    {"step", f.step},
                                    {"healed", f.healed},
                                    {"leader", f.leader},
                                    {"what", f.what},
                                    {"mark", DescribeMark(marks, f.id)},
                                    {"traces", traced.contains(f.id) ? Json(traced.at(f.id)) : Json::array()},
                                    {"evidence", TryParseOrderedJson(rules::ToJson(f, "new"))["evidence"]}});
  }
  const KeptActions acted = ActionsOfRun(trial.path());
  json["actions"] = Json::array();
  for (const KeptAction& a : acted.actions) {
    json["actions"].push_back({{"id", a.id},
                               {"action", a.action},
                               {"kind", a.kind},
                               {"rule", a.rule},
                               {"finding", a.finding},
                               {"asked", a.asked},
                               {"state", a.state},
                               {"dry_run", a.state == "dry_run"},
                               {"begun_unix_ns", a.begun_unix_ns},
                               {"unix_ns", a.unix_ns},
                               {"train_step", a.train_step},
                               {"attempts", a.attempts},
                               {"detail", a.detail}});
  }
  json["actions_left_out"] = acted.left_out;
  json["keys"] = Json::array();
  for (const keys::PublicKey& key : keys::KeysOfRun(trial.path())) {
    json["keys"].push_back({{"id", key.id}, {"may", key.may}, {"expires_unix_s", key.expires_unix_s}});
  }
  json["gaps"] = Json::array();
  for (const query::GapInfo& g : trial.Gaps()) {
    json["gaps"].push_back({{"worker", g.worker},
                            {"tensor", g.tensor},
                            {"collection", g.collection},
                            {"reason", g.reason},
                            {"forms", g.forms},
                            {"count", g.count},
                            {"bytes", g.bytes},
                            {"first_step", g.first_step},
                            {"last_step", g.last_step}});
  }
  if (const auto cost = query::CaptureCostOf(trial))
    json["cost"] = {{"steps", cost->steps}, {"spent_s", cost->spent_s}, {"time_s", cost->time_s}};
  json["rules"] = DescribeRules(trial.path());
  json["files"] = files;
  json["bytes"] = bytes;
  json["problems"] = trial.Problems();
  for (const std::string& problem : found.problems) json["problems"].push_back(problem);
  return json;
}

void PrintActions(const KeptActions& kept) {
  if (kept.actions.empty() && kept.left_out == 0) return;
  fmt::print("  actions   {}{}\n", kept.actions.size(),
             kept.left_out == 0 ? std::string()
                                : fmt::format(" ({} more times kept silent or left out)", kept.left_out));
  for (std::size_t i = 0; i < kept.actions.size() && i < kShownActions; ++i) {
    const KeptAction& action = kept.actions[i];
    const bool named = action.action != action.kind;
    const std::string why = action.finding.empty() ? "asked by " + Escaped(action.asked)
                                                   : fmt::format("because of {} {}", Escaped(action.rule),
                                                                 Escaped(action.finding));
    fmt::print("    {} {}{} {}: {}\n", TimeText(action.begun_unix_ns), Escaped(action.kind),
               named ? fmt::format(" '{}'", Escaped(action.action)) : std::string(), why, StateText(action));
  }
  if (kept.actions.size() > kShownActions)
    fmt::print("    and {} more (--json)\n", kept.actions.size() - kShownActions);
}

// Of a copy the URL stands above.
void PrintUploads(const query::Trial& trial, const std::optional<BucketPrices>& prices) {
  const bool copy = !trial.MirrorNote().empty();
  for (const Upload& upload : UploadsOf(trial.path()))
    fmt::print("  upload    {}{}\n", copy ? std::string() : Escaped(upload.url) + ": ",
               UploadText(upload, prices));
  if (const auto ends = ReadUploadEnds(trial.path()))
    fmt::print("  upload    ended too early {}, the last time {} ({}){}\n",
               Plural(ends->ends, "time", "times"), TimeText(ends->unix_ns), Escaped(ends->last),
               ends->again
                   ? ", and was begun again"
                   : fmt::format("; `{}` uploads what is missing", UploadByHand(trial.path(), *ends)));
}

/// Whose signatures the job obeys.
void PrintKeys(const std::string& run) {
  const auto known = keys::KeysOfRun(run);
  if (known.empty()) return;
  fmt::print("  commands  only signed, by\n");
  for (const keys::PublicKey& key : known) {
    const std::string until =
        key.expires_unix_s == 0 ? "" : fmt::format(", until {}", keys::TimeOf(key.expires_unix_s));
    fmt::print("    {}: may {}{}\n", key.id,
               key.may.empty() ? "nothing" : fmt::format("{}", fmt::join(key.may, ", ")), until);
  }
}

void Print(const query::Trial& trial, const Json& json, const std::optional<BucketPrices>& prices) {
  const auto outcome = trial.outcome();
  // Of a copy: its URL, and what keeps it from being as far as the job. A URL may hold a semicolon.
  std::string note = trial.MirrorNote();
  std::size_t end = note.size();
  for (const char* begins :
       {"; its values were ", "; its upload is ", "; nobody uploads ", "; shown as it was "})
    end = std::min(end, note.find(begins));
  const std::string url = note.substr(0, end);
  note.erase(0, std::min(url.size() + 2, note.size()));
  // Where only values are missing, the steps are as far as the job.
  const bool as_uploaded =
      outcome.state == "running" && !note.empty() && note != "its upload is behind with values";
  fmt::print("{}\n  outcome   {}{}{}{}\n", Escaped(url.empty() ? trial.path() : url), Escaped(outcome.state),
             as_uploaded ? " when it was uploaded last" : "", outcome.why.empty() ? "" : ": ",
             Escaped(outcome.why));
  if (!note.empty()) fmt::print("  bucket    {}\n", Escaped(note));
  if (!url.empty()) fmt::print("  copy      {}\n", Escaped(trial.path()));
  PrintUploads(trial, prices);
  fmt::print("  begun     {}\n", BegunText(trial));
  std::string modes;
  for (const auto& [mode, steps] : json["modes"].items()) {
    modes += fmt::format("{}{} {}", modes.empty() ? " (" : ", ", mode, steps["steps"].get<std::size_t>());
  }
  fmt::print("  steps     {}{}\n  tensors   {}\n", json["steps"].get<std::size_t>(),
             modes.empty() ? "" : modes + ")", trial.tensor_count());
  std::string collections;
  for (const std::string& name : trial.CollectionNames())
    collections += (collections.empty() ? "" : ", ") + Escaped(name);
  if (!collections.empty()) fmt::print("  collected {}\n", collections);
  for (const query::WorkerInfo& w : trial.workers()) {
    fmt::print("  worker {}  {}, last step {}\n", w.worker,
               w.ended   ? "ended"
               : w.alive ? "alive"
                         : "lost",
               w.last_global_step);
  }
  fmt::print("  findings  {}\n", json["findings"].get<std::uint64_t>());
  std::size_t shown = 0;
  for (const Json& f : json["finding_list"]) {
    if (shown++ == kShownFindings) {
      fmt::print("    and {} more (--json)\n", json["finding_list"].size() - kShownFindings);
      break;
    }
    const auto tensor = f["tensor"].get<std::string>();
    fmt::print("    {} {} {}{}{}, since {}{}: {}\n", Escaped(f["id"].get<std::string>()),
               f["severity"] == "stop" ? "STOP" : "WARN", Escaped(f["rule"].get<std::string>()),
               tensor.empty() ? "" : " ", Escaped(tensor),
               StepText(f["mode"].get<std::string>(), f["since_step"].get<std::int64_t>()),
               f["healed"].get<bool>() ? " (healed)" : "", Escaped(f["what"].get<std::string>()));
    PrintTraced(f["traces"].get<std::vector<std::string>>(), 6);
    if (!f["mark"].is_null()) fmt::print("      marked: {}\n", Escaped(f["mark"]["said"].get<std::string>()));
  }
  PrintRules(json["rules"]);
  PrintKeys(trial.path());
  PrintActions(ActionsOfRun(trial.path()));
  fmt::print("  size      {} in {} files\n", SizeText(json["bytes"].get<std::uint64_t>()),
             json["files"].get<std::uint64_t>());
  if (const auto cost = query::CaptureCostOf(trial))
    fmt::print("  recording {:.2g} % of the training's time: {:.2g} ms a step\n", 100 * cost->share(),
               1e3 * cost->spent_s / static_cast<double>(std::max<std::uint64_t>(cost->steps, 1)));
  const auto gaps = Grouped(trial.Gaps());
  for (std::size_t i = 0; i < gaps.size() && i < kShownGaps; ++i)
    fmt::print("  gap       {}\n", GapText(gaps[i]));
  if (gaps.size() > kShownGaps) fmt::print("  gap       and {} more (--json)\n", gaps.size() - kShownGaps);
  for (const Json& problem : json["problems"])
    fmt::print("  damage    {}\n", Escaped(problem.get<std::string>()));
}

}  // namespace

void AddShow(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("show", "What a run holds and how it ended");
  auto options = std::make_shared<ReadOptions>();
  auto config = std::make_shared<std::string>();
  AddRunOption(verb, options.get());
  verb->add_option("--config", *config,
                   "luff.toml, whose [bucket] has prices of an upload (docs/buckets.md)");
  verb->callback([options, config] {
    std::optional<BucketPrices> prices;
    if (!config->empty()) prices = ValueOrExit(ReadConfigFile(*config)).bucket.prices;
    FindRunOrExit(&options->run, Rows::kAsked);
    const auto trial = OpenOrExit(*options);
    const Json json = Describe(*trial, prices);
    if (options->json)
      PrintJson(json);
    else
      Print(*trial, json, prices);
    ExitWith(kExitOk);
  });
}

}  // namespace luff::cli
