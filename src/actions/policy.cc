#include "luff/actions/policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/format.h"
#include "base/nearest_names.h"
#include "luff/query/trial.h"

namespace luff::actions {
namespace {

constexpr std::size_t kMaxRemembered = 10'000;  // findings per action
constexpr std::size_t kMaxWatches = 1'000;
constexpr double kFirstTraceS = 1.5;  // what a first trace may cost; it refuses where that was too little

constexpr std::array<std::pair<std::string_view, ActionKind>, 8> kKinds = {
    {{"stop", ActionKind::kStop},
     {"webhook", ActionKind::kWebhook},
     {"mail", ActionKind::kMail},
     {"command", ActionKind::kCommand},
     {"lower_lr", ActionKind::kLowerLr},
     {"skip_batch", ActionKind::kSkipBatch},
     {"rollback", ActionKind::kRollback},
     {"trace", ActionKind::kTrace}}};

/// What a quiet time applies to, of "RULE/CAUSE".
std::string QuietOf(const ActionSpec& spec, const std::string& cause) {
  return spec.kind == ActionKind::kTrace ? cause.substr(0, cause.find('/')) : cause;
}

bool Matches(const ActionSpec& spec, const rules::Finding& finding) {
  if (finding.severity < spec.severity) return false;
  if (spec.rules.empty()) return spec.consequences || finding.leader.empty();
  return std::find(spec.rules.begin(), spec.rules.end(), finding.rule) != spec.rules.end();
}

}  // namespace

std::string_view KindName(ActionKind kind) noexcept {
  for (const auto& [name, known] : kKinds) {
    if (known == kind) return name;
  }
  return "";
}

Result<ActionKind> ParseKind(std::string_view text) {
  std::vector<std::string> names;
  for (const auto& [name, kind] : kKinds) {
    if (name == text) return kind;
    names.emplace_back(name);
  }
  return InvalidArgument(fmt::format("unknown kind of action '{}'{}; there are {}", text,
                                     NearestText(text, names), fmt::join(names, ", ")));
}

std::string CauseOf(const rules::Finding& finding) { return finding.rule + "/" + finding.cause; }

const ActionSpec* Policy::Find(std::string_view name) const noexcept {
  for (const ActionSpec& spec : specs_) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

std::vector<Decision> Policy::OnFinding(const rules::Finding& finding, std::string_view event, bool worse,
                                        double now_s, std::int64_t train_step) {
  std::vector<Decision> decisions;
  if (event == "healed" || finding.healed) {
    std::erase_if(watches_, [&](const Watch& watch) { return watch.finding.id == finding.id; });
    std::erase_if(held_, [&](const Held& one) { return one.finding.id == finding.id; });
    return decisions;
  }
  const When now{now_s, train_step};
  for (const ActionSpec& spec : specs_) {
    if (!spec.escalates.empty() || !Matches(spec, finding)) continue;
    std::set<std::string>& matched = matched_[spec.name];
    if (matched.size() < kMaxRemembered) matched.insert(finding.id);
    if (matched.size() < static_cast<std::size_t>(spec.findings)) continue;
    const bool before = acted_[spec.name].contains(finding.id);
    if (before && !(worse && OnlyTells(spec.kind))) continue;
    DecideInTime(spec, finding, before || worse ? "worse" : "new", now, &decisions);
  }
  for (Watch& watch : watches_) {
    if (watch.finding.id == finding.id) watch.finding = finding;
  }
  WatchFor(finding, now);
  return decisions;
}

std::vector<Decision> Policy::Tick(double now_s, std::int64_t train_step) {
  std::vector<Decision> decisions;
  std::vector<Watch> due;
  std::erase_if(watches_, [&](Watch& watch) {
    // A finding may arrive before any TRAIN step is known; its steps then count from the first known one.
    if (watch.since.step < 0) watch.since.step = train_step;
    const bool late = watch.spec->after_s >= 0 && now_s - watch.since.s >= watch.spec->after_s;
    const bool far = watch.spec->after_steps >= 0 && watch.since.step >= 0 &&
                     train_step - watch.since.step >= watch.spec->after_steps;
    if (late || far) due.push_back(watch);
    return late || far;
  });
  const When now{now_s, train_step};
  for (Held& one : std::exchange(held_, {}))
    DecideInTime(*one.spec, one.finding, std::move(one.event), now, &decisions);
  for (const Watch& watch : due) {
    DecideInTime(*watch.spec, watch.finding, "escalation", now, &decisions);
    WatchFor(watch.finding, now);
  }
  return decisions;
}

// A finding may reach the severity of an escalation long after the escalated action was taken. The time
// counts from that action, unless `anew`.
void Policy::WatchFor(const rules::Finding& finding, When now, bool anew) {
  for (const ActionSpec& spec : specs_) {
    if (spec.escalates.empty() || finding.severity < spec.severity) continue;
    if (watches_.size() >= kMaxWatches) return;
    const auto& done = acted_[spec.escalates];
    const auto acted = done.find(finding.id);
    if (acted == done.end() || acted_[spec.name].contains(finding.id)) continue;
    const bool watched = std::any_of(watches_.begin(), watches_.end(), [&](const Watch& watch) {
      return watch.spec == &spec && watch.finding.id == finding.id;
    });
    const When& since = anew ? now : acted->second;
    if (!watched) watches_.push_back({&spec, finding, {since.s, since.step >= 0 ? since.step : now.step}});
  }
}

void Policy::Resume(const rules::Finding& finding, double now_s, std::int64_t train_step) {
  WatchFor(finding, {now_s, train_step}, true);
}

bool Policy::MustWait(const ActionSpec& spec, const rules::Finding& finding, double now_s) {
  if (spec.kind != ActionKind::kTrace || spec.dry_run) return false;
  const auto last = quiet_.find({spec.name, QuietOf(spec, CauseOf(finding))});
  if (last != quiet_.end() && now_s - last->second < spec.quiet_s)
    return false;  // there is nothing to wait for
  if (trains_since_s_ >= 0 && (now_s - trains_since_s_) * spec.trace_share < kFirstTraceS) return true;
  const std::deque<double>& times = times_[spec.name];
  const auto recent = std::ranges::count_if(times, [&](double s) { return now_s - s < spec.per_s; });
  return spec.limit > 0 && recent >= spec.limit;
}

void Policy::DecideInTime(const ActionSpec& spec, const rules::Finding& finding, std::string event, When now,
                          std::vector<Decision>* decisions) {
  if (!MustWait(spec, finding, now.s)) {
    decisions->push_back(Decide(spec, finding, std::move(event), now));
    return;
  }
  const auto known = std::ranges::find_if(
      held_, [&](const Held& one) { return one.spec == &spec && one.finding.id == finding.id; });
  if (known != held_.end()) {
    known->finding = finding;
  } else if (held_.size() < kMaxWatches) {
    held_.push_back({&spec, finding, std::move(event)});
  }
}

Decision Policy::Decide(const ActionSpec& spec, const rules::Finding& finding, std::string event, When now) {
  Decision decision{
      &spec, finding, std::move(event), spec.dry_run ? Decision::What::kDryRun : Decision::What::kAct, {}};
  auto& acted = acted_[spec.name];
  if (acted.size() < kMaxRemembered) acted.try_emplace(finding.id, now);
  const std::pair key{spec.name, QuietOf(spec, CauseOf(finding))};
  if (const auto last = quiet_.find(key); last != quiet_.end() && now.s - last->second < spec.quiet_s) {
    decision.what = Decision::What::kSilenced;
    decision.detail = fmt::format("it acted for {} {:.0f} s ago (quiet_s = {:g})", key.second,
                                  now.s - last->second, spec.quiet_s);
    return decision;
  }
  std::deque<double>& times = times_[spec.name];
  while (!times.empty() && now.s - times.front() >= spec.per_s) times.pop_front();
  if (spec.limit > 0 && times.size() >= static_cast<std::size_t>(spec.limit)) {
    decision.what = Decision::What::kLimited;
    decision.detail = fmt::format("{} in {:g} s were enough (limit, per_s)", spec.limit, spec.per_s);
    return decision;
  }
  if (spec.limit > 0) times.push_back(now.s);
  if (quiet_.size() < kMaxRemembered || quiet_.contains(key)) quiet_[key] = now.s;
  return decision;
}

void Policy::Remember(const std::string& action, const std::string& finding, const std::string& cause,
                      double at_s) {
  const ActionSpec* spec = Find(action);
  if (spec == nullptr) return;
  if (acted_[action].size() < kMaxRemembered) acted_[action].try_emplace(finding, When{at_s, -1});
  if (matched_[action].size() < kMaxRemembered) matched_[action].insert(finding);
  std::deque<double>& times = times_[action];
  if (spec->limit > 0) {
    times.push_back(at_s);
    while (times.size() > static_cast<std::size_t>(spec->limit)) times.pop_front();
  }
  const std::pair key{action, QuietOf(*spec, cause)};
  if (const auto last = quiet_.find(key); last != quiet_.end()) {
    last->second = std::max(at_s, last->second);
  } else if (quiet_.size() < kMaxRemembered) {
    quiet_.emplace(key, at_s);
  }
}

}  // namespace luff::actions
