#include "server/run_metrics.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "base/bounded_read.h"
#include "base/format.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "luff/actions/audit.h"
#include "luff/actions/marks.h"
#include "luff/query/capture_cost.h"
#include "luff/rules/kept_findings.h"
#include "rules/facts/model_facts.h"

namespace luff::server {
namespace {

namespace fs = std::filesystem;
using query::Mode;
using KindRole = query::Role;  // the server has roles of its own

constexpr std::size_t kLookBack = 20;  // steps whose rows are read for the newest values of each kind
constexpr std::size_t kMaxScalars = 8, kMaxGroups = 4, kMaxWorkers = 4, kMaxRules = 8, kMaxReasons = 6,
                      kMaxActions = 6;
constexpr std::uint64_t kMaxAudit = 256ULL << 20, kMaxCheckpoint = 64ULL << 20;
constexpr std::string_view kOtherLabel = "other", kAllLabel = "all";

/// A number of a card; its texts for what is not finite.
double NumberOf(const nlohmann::json& json) {
  if (json.is_number()) return json.get<double>();
  if (!json.is_string()) return std::nan("");
  const auto text = json.get<std::string>();
  return text == "Infinity" ? HUGE_VAL : text == "-Infinity" ? -HUGE_VAL : std::nan("");
}

double Seconds(std::int64_t unix_ns) { return static_cast<double>(unix_ns) / 1e9; }

/// Few kinds of tensors, so that few series tell of them.
std::string_view KindOf(KindRole role) {
  switch (role) {
    case KindRole::kWeight:
    case KindRole::kBias: return "weight";
    case KindRole::kGradient:
    case KindRole::kOutputGradient:
    case KindRole::kInputGradient: return "gradient";
    case KindRole::kInput:
    case KindRole::kOutput: return "activation";
    case KindRole::kLoss: return "loss";
    case KindRole::kOptimizerState: return "optimizer_state";
    default: return kOtherLabel;
  }
}

/// Puts the largest `limit` - 1 numbers, and the sum of the others as "other".
void PutLargest(Metric metric, std::string_view label, const std::map<std::string, std::uint64_t>& numbers,
                std::size_t limit, Exposition* to) {
  std::vector<std::pair<std::string, std::uint64_t>> sorted(numbers.begin(), numbers.end());
  std::ranges::stable_sort(sorted, [](const auto& a, const auto& b) { return a.second > b.second; });
  std::uint64_t others = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (sorted.size() <= limit || i + 1 < limit)
      to->Put(metric, {{label, sorted[i].first}}, static_cast<double>(sorted[i].second));
    else
      others += sorted[i].second;
  }
  if (sorted.size() > limit)
    to->Put(metric, {{label, std::string(kOtherLabel)}}, static_cast<double>(others));
}

void PutCard(const ListedRun& listed, const nlohmann::json& card, const std::string& state,
             const std::string& page, Exposition* to) {
  const std::string framework = TextMember(card, "framework");
  std::string version;
  if (const auto versions = card.find("versions"); versions != card.end() && versions->is_object())
    version = TextMember(*versions, framework.c_str());
  Labels labels = {{"run_id", listed.id},
                   {"framework", framework},
                   {"version", version},
                   {"host", TextMember(card, "host")}};
  if (!page.empty()) labels.emplace_back("page", page);
  to->Put(Metric::kRunInfo, std::move(labels), 1);
  for (const char* one : {"running", "completed", "stopped", "failed", "lost"})
    to->Put(Metric::kRunState, {{"state", one}}, state == one ? 1 : 0);
  to->Put(Metric::kRunBegun, {}, NumberOf(card.value("begun_unix_ns", nlohmann::json(0))) / 1e9);
}

void PutLosses(const nlohmann::json& card, Exposition* to) {
  std::size_t count = 0;
  for (const nlohmann::json& scalar : card.value("scalars", nlohmann::json::array())) {
    if (!scalar.is_object() || count++ == kMaxScalars) break;
    const double value = NumberOf(scalar.value("last", nlohmann::json()));
    const Labels labels = {{"name", TextMember(scalar, "name")}, {"mode", TextMember(scalar, "mode")}};
    to->Put(Metric::kLoss, labels, value);
    to->Put(Metric::kLossNonFinite, labels, std::isfinite(value) ? 0 : 1);
  }
}

/// By rule, severity and whether it is muted: findings that stand, also those that follow from another one,
/// since a stop may follow from a warning. Then how many there were.
void PutFindings(const std::string& run, const std::map<std::string, actions::Mark>& marks,
                 std::int64_t train_step, Exposition* to) {
  struct Key {
    std::string rule;
    const char* severity;
    bool muted;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, std::uint64_t> open;
  std::uint64_t warns = 0, stops = 0;
  std::map<std::string, std::uint64_t> rules;
  const rules::KeptFindings kept = rules::FindingsOfRun(run);
  for (const rules::Finding& finding : kept.findings) {
    ++(finding.severity == rules::Severity::kStop ? stops : warns);
    if (!finding.healed) ++rules[finding.rule];
  }
  std::vector<std::pair<std::uint64_t, std::string>> most;
  for (const auto& [rule, count] : rules) most.emplace_back(count, rule);
  std::ranges::sort(most, std::greater<>());
  const auto is_named = [&](const std::string& rule) {
    return most.size() <= kMaxRules || std::any_of(most.begin(), most.begin() + kMaxRules - 1,
                                                   [&](const auto& one) { return one.second == rule; });
  };
  for (const rules::Finding& finding : kept.findings) {
    if (finding.healed) continue;
    const auto mark = marks.find(finding.id);
    ++open[{is_named(finding.rule) ? finding.rule : std::string(kOtherLabel),
            finding.severity == rules::Severity::kStop ? "stop" : "warn",
            mark != marks.end() && mark->second.mutes(train_step)}];
  }
  for (const auto& [key, count] : open)
    to->Put(Metric::kFindings,
            {{"rule", key.rule}, {"severity", key.severity}, {"muted", key.muted ? "true" : "false"}},
            static_cast<double>(count));
  to->Put(Metric::kFindingsSeen, {{"severity", "stop"}}, static_cast<double>(stops));
  to->Put(Metric::kFindingsSeen, {{"severity", "warn"}}, static_cast<double>(warns));
}

/// What the rules' last checkpoint says of them; nothing where no rule runs.
void PutRules(const std::string& run, std::size_t steps, Exposition* to) {
  const auto text = ReadRegular(run + "/rules/luff/checkpoint.json", kMaxCheckpoint, 3);
  if (!text.ok()) return;
  const nlohmann::json json = TryParseJson(*text);
  if (!json.is_object()) return;
  const auto rules = json.find("rules");
  if (rules == json.end() || !rules->is_array()) return;
  std::uint64_t failed = 0;
  std::optional<std::size_t> least;
  for (const nlohmann::json& rule : *rules) {
    if (!rule.is_object()) continue;
    const auto aside = rule.find("aside");
    if (aside != rule.end() && aside->is_boolean() && aside->get<bool>()) {
      ++failed;
      continue;
    }
    const auto position = rule.find("position");
    if (position == rule.end() || !position->is_number_unsigned()) continue;
    least = std::min(least.value_or(SIZE_MAX), position->get<std::size_t>());
  }
  if (least) to->Put(Metric::kRuleLag, {}, steps > *least ? static_cast<double>(steps - *least) : 0);
  to->Put(Metric::kRulesFailed, {}, static_cast<double>(failed));
}

void PutActions(const std::string& run, Exposition* to) {
  const auto text = ReadRegular(run + "/rules/luff/actions.jsonl", kMaxAudit, 3);
  if (!text.ok()) return;
  std::map<std::pair<std::string, std::string>, std::uint64_t> counts;
  std::string_view rest = *text;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) break;  // not completely written yet
    const auto line = actions::ParseAuditLineUntrusted(rest.substr(0, end));
    rest.remove_prefix(end + 1);
    if (line.ok() && line->event != "begun" && line->event != "attempt") ++counts[{line->kind, line->event}];
  }
  std::size_t shown = 0;
  std::uint64_t others = 0;
  for (const auto& [key, count] : counts) {
    if (++shown > kMaxActions)
      others += count;
    else
      to->Put(Metric::kActions, {{"kind", key.first}, {"result", key.second}}, static_cast<double>(count));
  }
  if (others > 0)
    to->Put(Metric::kActions, {{"kind", std::string(kOtherLabel)}, {"result", std::string(kOtherLabel)}},
            static_cast<double>(others));
}

/// What the files in the folders of workers take.
void PutDisk(const std::string& run, const std::vector<query::WorkerInfo>& workers, Exposition* to) {
  std::uint64_t blocks = 0;
  for (const query::WorkerInfo& worker : workers) {
    std::error_code error;
    for (fs::directory_iterator at(fmt::format("{}/w{:04}", run, worker.worker), error), end;
         !error && at != end; at.increment(error)) {
      struct stat info{};
      if (lstat(at->path().c_str(), &info) == 0 && S_ISREG(info.st_mode))
        blocks += static_cast<std::uint64_t>(info.st_blocks);
    }
  }
  to->Put(Metric::kRunSize, {}, static_cast<double>(blocks) * 512);
  struct statvfs disk{};
  if (statvfs(run.c_str(), &disk) == 0)
    to->Put(Metric::kDiskFree, {}, static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize));
}

double WithoutBad(double l2) { return std::isfinite(l2) ? l2 : 0; }

}  // namespace

Result<std::unique_ptr<RunMetrics>> RunMetrics::Open(const std::string& path) {
  LUFF_ASSIGN_OR_RETURN(auto trial, query::Trial::Open(path));
  return std::unique_ptr<RunMetrics>(new RunMetrics(std::move(trial)));
}

void RunMetrics::ReadModel() {
  std::string model = trial_->Document("model");
  if (model == model_) return;
  model_ = std::move(model);
  groups_.clear();
  const rules::ModelFacts facts = rules::ModelFacts::ParseUntrusted(model_);
  for (const auto& [name, parameter] : facts.parameters()) {
    if (!parameter.optimizer.empty())
      groups_[name] =
          fmt::format("{}.group{}", parameter.optimizer, std::max<std::int64_t>(parameter.group, 0));
  }
}

std::string RunMetrics::GroupOf(const std::string& parameter) const {
  const auto at = groups_.find(parameter);
  return at == groups_.end() ? std::string(kAllLabel) : at->second;
}

void RunMetrics::TakeRows(const query::Trial::StepRows& rows, const std::optional<Regex>& tensors) {
  std::map<query::TensorId, std::uint32_t> first;  // worker whose rows count
  for (const auto& row : rows.summaries) {
    const auto [at, added] = first.emplace(row.tensor, row.worker);
    if (!added) at->second = std::min(at->second, row.worker);
  }
  ByGroup squares;
  std::map<std::string, std::uint64_t> bad;
  for (const auto& row : rows.summaries) {
    if (first[row.tensor] != row.worker) continue;
    const query::TensorInfo& info = trial_->tensor(row.tensor);
    const double l2 = WithoutBad(row.summary.l2());
    const std::uint64_t nonfinite = row.summary.nan_count + row.summary.inf_count;
    bad[std::string(KindOf(info.role))] += nonfinite > 0 ? 1 : 0;
    if (info.role == query::Role::kGradient)
      squares[GroupOf(rules::ParameterOfGradient(info.name))] += nonfinite > 0 ? std::nan("") : l2 * l2;
    if (!tensors) continue;
    auto wanted = wanted_.find(row.tensor);
    if (wanted == wanted_.end()) wanted = wanted_.emplace(row.tensor, tensors->Search(info.name)).first;
    if (wanted->second && (tensors_.contains(info.name) || tensors_.size() < kMaxTensors))
      tensors_[info.name] = {l2, nonfinite};
  }
  if (!bad.empty()) nonfinite_ = std::move(bad);
  if (!squares.empty()) {
    norms_.clear();
    for (const auto& [group, sum] : squares) norms_[group] = std::sqrt(sum);
  }
  for (const auto& entry : rows.forms) {
    const auto& values = entry.row.values;  // [1]: squares of the change, [5]: of the weight before
    if (entry.row.form != static_cast<std::uint16_t>(format::Form::kDifference) ||
        trial_->tensor(entry.tensor).role != query::Role::kWeight)
      continue;
    // A difference is that from the value captured before, which may lie several updates back.
    Change& change = changes_[entry.tensor];
    const std::int64_t updates = rows.info.update - change.update;
    if (updates == 0) continue;  // of another worker
    change.ratio = change.update >= 0 && updates > 0 && values[5] > 0
                       ? std::sqrt(values[1] / values[5]) / static_cast<double>(updates)
                       : std::nan("");
    change.update = changed_ = rows.info.update;
  }
  ByGroup rates;
  for (const auto& entry : rows.scalars) {
    constexpr std::string_view kBegin = "optimizer/", kLast = ".lr";
    const std::string& name = trial_->tensor(entry.tensor).name;
    if (name.starts_with(kBegin) && name.ends_with(kLast))
      rates.emplace(name.substr(kBegin.size(), name.size() - kBegin.size() - kLast.size()), entry.value);
  }
  if (!rates.empty()) rates_ = std::move(rates);
}

/// Newest values of each kind: reads the rows of the newest TRAIN steps since `from`.
void RunMetrics::ReadNewest(std::size_t from, const std::optional<Regex>& tensors) {
  ReadModel();
  std::size_t n = trial_->step_count();
  for (std::size_t looked = 0; n > from && looked < kLookBack; --n) {
    const query::StepInfo info = trial_->step_at(n - 1);
    looked += info.mode == Mode::kTrain && !info.superseded ? 1 : 0;
  }
  query::Trial::StepRows rows;
  for (; n < trial_->step_count(); ++n) {
    const query::StepInfo info = trial_->step_at(n);
    if (info.mode == Mode::kTrain && !info.superseded && trial_->ReadStepRows(n, &rows).ok())
      TakeRows(rows, tensors);
  }
}

void RunMetrics::ReadNew(const std::optional<Regex>& tensors) {
  if (!trial_->Refresh().ok() || trial_->step_count() == seen_) return;
  const std::size_t from = seen_;
  for (; seen_ < trial_->step_count(); ++seen_) {
    const query::StepInfo info = trial_->step_at(seen_);
    last_step_ns_ = std::max(last_step_ns_, info.wall_unix_ns);
    updates_ = info.update;
    if (info.mode != Mode::kTrain) continue;
    ++train_steps_;
    durations_.Add(std::max(0.0, Seconds(info.duration_ns)));
  }
  skipped_ = 0;
  const auto workers = trial_->workers();
  for (const query::EventAt& event : trial_->Events(Mode::kGlobal)) {
    if (event.row.kind == static_cast<std::uint16_t>(format::EventKind::kStepSkipped) && !workers.empty() &&
        event.worker == workers.front().worker)
      ++skipped_;
  }
  ReadNewest(from, tensors);
}

void RunMetrics::PutWorkers(std::int64_t now_unix_ns, Exposition* to) const {
  std::uint64_t alive = 0, ended = 0, lost = 0;
  std::vector<std::pair<std::int64_t, std::uint32_t>> heard;
  for (const query::WorkerInfo& worker : trial_->workers()) {
    ++(worker.ended ? ended : worker.alive ? alive : lost);
    if (!worker.ended) heard.emplace_back(worker.heartbeat_unix_ns, worker.worker);
  }
  to->Put(Metric::kWorkers, {{"state", "alive"}}, static_cast<double>(alive));
  to->Put(Metric::kWorkers, {{"state", "ended"}}, static_cast<double>(ended));
  to->Put(Metric::kWorkers, {{"state", "lost"}}, static_cast<double>(lost));
  std::ranges::sort(heard);
  for (std::size_t i = 0; i < std::min(heard.size(), kMaxWorkers); ++i)
    to->Put(Metric::kHeartbeatAge, {{"worker", fmt::format("{}", heard[i].second)}},
            std::max(0.0, Seconds(now_unix_ns - heard[i].first)));
}

void RunMetrics::PutNewest(Exposition* to) const {
  const auto put = [&](Metric metric, const auto& by_group, const auto& value) {
    std::size_t count = 0;
    for (const auto& [group, one] : by_group) {
      if (count++ < kMaxGroups) to->Put(metric, {{"group", group}}, value(one));
    }
  };
  const auto same = [](double one) { return one; };
  put(Metric::kGradientNorm, norms_, same);
  put(Metric::kLearningRate, rates_, same);
  std::map<std::string, Ratios> ratios;
  for (const auto& [tensor, change] : changes_) {
    if (change.update != changed_ || !std::isfinite(change.ratio)) continue;
    const auto [at, added] =
        ratios.emplace(GroupOf(trial_->tensor(tensor).name), Ratios{change.ratio, change.ratio});
    if (!added) at->second = {std::max(at->second.max, change.ratio), std::min(at->second.min, change.ratio)};
  }
  put(Metric::kUpdateRatioMax, ratios, [](const Ratios& one) { return one.max; });
  put(Metric::kUpdateRatioMin, ratios, [](const Ratios& one) { return one.min; });
  for (const auto& [role, count] : nonfinite_)
    to->Put(Metric::kNonFiniteTensors, {{"role", role}}, static_cast<double>(count));
}

void RunMetrics::Put(const ListedRun& listed, const std::string& label, const std::string& page,
                     const std::optional<Regex>& tensors, std::int64_t now_unix_ns, Exposition* to) {
  ReadNew(tensors);
  const nlohmann::json card = TryParseJson(listed.card);
  if (!card.is_object()) return;
  const auto records = store::ReadControl(listed.path, 0, nullptr);
  const std::vector<store::ControlRecord> none;
  const auto& log = records.ok() ? *records : none;
  const auto workers = trial_->workers();
  std::string state = TextMember(card, "outcome");
  const bool silent = std::ranges::any_of(workers, [](const auto& one) { return !one.ended && !one.alive; });
  // Nobody has said how it ended: it was killed, or its machine is gone.
  if (state == "failed" && silent &&
      std::ranges::none_of(log, [](const auto& record) { return record.kind == "outcome"; }))
    state = "lost";

  to->BeginRun(label);
  PutCard(listed, card, state, page, to);
  to->Put(Metric::kTrainSteps, {}, static_cast<double>(train_steps_));
  if (seen_ > 0) to->Put(Metric::kLastStep, {}, Seconds(last_step_ns_));
  to->Put(Metric::kUpdates, {}, static_cast<double>(updates_));
  to->Put(Metric::kUpdatesSkipped, {}, static_cast<double>(skipped_));
  to->Put(Metric::kStepDuration, {}, durations_);
  PutWorkers(now_unix_ns, to);
  PutRules(listed.path, trial_->step_count(), to);
  to->Put(Metric::kRunProblems, {},
          static_cast<double>(card.value("problems", nlohmann::json::array()).size()));
  std::map<std::string, std::uint64_t> gaps;
  for (const query::GapInfo& gap : trial_->Gaps()) gaps[gap.reason] += gap.count;
  PutLargest(Metric::kGaps, "reason", gaps, kMaxReasons, to);
  if (const auto cost = query::CaptureCostOf(*trial_)) to->Put(Metric::kCaptureRatio, {}, cost->share());
  PutDisk(listed.path, workers, to);
  PutFindings(listed.path, actions::MarksIn(log), static_cast<std::int64_t>(train_steps_), to);
  PutLosses(card, to);
  PutNewest(to);
  PutActions(listed.path, to);
  if (tensors) {
    for (const auto& [name, one] : tensors_) {
      to->Put(Metric::kTensorL2, {{"tensor", name}}, one.l2);
      to->Put(Metric::kTensorNonFinite, {{"tensor", name}}, static_cast<double>(one.nonfinite));
    }
  }
  to->EndRun();
}

}  // namespace luff::server
