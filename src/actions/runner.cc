#include "luff/actions/runner.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "base/text_escape.h"
#include "luff/base/env.h"
#include "luff/store/arrived.h"
#include "luff/store/host_folder.h"
#include "luff/store/reader.h"

namespace luff::actions {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kOnFinding = "--on-finding";
constexpr std::size_t kMostElsewhere = 1024;
constexpr const char* kElsewhere = "another host of the job has asked for it, for the same cause";
constexpr std::int64_t kOldNs = 60'000'000'000;  // of a request that nobody was there to answer
constexpr double kGraceS = 5;  // a notifier that exceeds its own limit by this much is ended

constexpr const char* kNotAllHere =
    "the job has ranks on other hosts, and nobody speaks to these for this run, so a stop would leave them "
    "waiting, and a correction would part them; end it by its launcher, or remove the folder 'hosts' of the "
    "run if all its ranks are here";

double Seconds(std::int64_t ns) { return static_cast<double>(ns) / 1e9; }

std::string Dump(const Json& json) {
  return JsonEscaped(JsonText(json));  // other programs display it
}

std::vector<ActionSpec> WithOnFinding(std::vector<ActionSpec> specs, bool stop_on_finding) {
  if (stop_on_finding) {
    ActionSpec stop;
    stop.name = kOnFinding;
    stop.kind = ActionKind::kStop;
    stop.severity = rules::Severity::kStop;
    stop.consequences = true;
    stop.limit = 0;
    stop.dry_run = false;
    specs.insert(specs.begin(), std::move(stop));
  }
  return specs;
}

std::string Because(const rules::Finding& finding) {
  return fmt::format("{}: {}", finding.rule, finding.what);
}

const char* WhatItDoes(ActionKind kind) {
  switch (kind) {
    case ActionKind::kStop: return "stop the job";
    case ActionKind::kWebhook: return "send a webhook";
    case ActionKind::kMail: return "send a mail";
    case ActionKind::kCommand: return "run its command";
    case ActionKind::kLowerLr: return "lower the learning rates";
    case ActionKind::kSkipBatch: return "skip a batch";
    case ActionKind::kRollback: return "roll back";
    case ActionKind::kTrace: return "trace some steps";
  }
  return "act";
}

}  // namespace

Runner::Runner(RunnerOptions options)
    : options_(std::move(options)),
      policy_(WithOnFinding(options_.specs, options_.stop_on_finding)),
      coordinator_(options_.stop, LogOf(options_.run), options_.hosts),
      inbox_(options_.run, options_.gate.get()),
      arrivals_(options_.run, options_.gate.get()) {}

void Runner::Begin(std::int64_t now_ns) {
  if (audit_) return;
  run_id_ = store::ReadRunId(options_.run).value_or("");
  if (options_.gate) options_.gate->SetRun(run_id_);
  if (options_.gate && options_.commands) {
    const Status wanted = store::WantArrivals(options_.run);
    if (!wanted.ok())
      sayings_.push_back(fmt::format("luff: requests from a bucket are not heard: {}\n", wanted.message()));
  }
  not_all_here_ = options_.hosts == nullptr && (options_.not_all_here || store::HasHostFolder(options_.run));
  audit_.emplace(options_.run + "/rules/luff/actions.jsonl");
  if (const auto records = store::ReadCommands(options_.run, 0); records.ok()) {
    TellKeys(*records);
    std::map<std::uint64_t, std::string> proposed;
    std::set<std::uint64_t> decided;
    for (const store::ControlRecord& record : *records) {
      if (record.phase == "propose") {
        const Json body = TryParseOrderedJson(record.body);
        if (const std::string action = TextMember(body, "action"); !action.empty())
          proposed[record.number] = action;
      } else if (record.proposal != 0 && decided.insert(record.proposal).second && record.phase == "commit") {
        committed_.insert(proposed[record.proposal]);
      }
    }
  }
  std::map<std::string, AuditLine> open;
  std::set<std::string> decided = committed_;
  for (const AuditLine& line : audit_->earlier()) {
    if (line.event == "committed" || line.event == "failed") decided.insert(line.id);
  }
  const std::int64_t unix_ns = Env::Real().NowUnixNs();
  for (const AuditLine& line : audit_->earlier()) {
    // Only the wall clock gives the age of a line that another process wrote.
    const std::int64_t ago_ns = std::max<std::int64_t>(0, unix_ns - std::max<std::int64_t>(0, line.unix_ns));
    // A stop that was never decided had no effect.
    const bool acted = line.event == "begun" && (line.kind != "stop" || decided.contains(line.id));
    if (acted || line.event == "dry_run")
      policy_.Remember(line.action, line.finding, line.cause, Seconds(now_ns - ago_ns));
    if (line.event == "begun" && !line.document.empty()) open[line.id] = line;
    if (line.event == "done" || line.event == "failed" || line.event == "dropped") open.erase(line.id);
  }
  for (const auto& [id, line] : open) {
    const ActionSpec* spec = policy_.Find(line.action);
    begun_[id] = line;
    begun_[id].document.clear();
    if (spec != nullptr && IsDelivery(spec->kind) && !spec->dry_run) {
      Deliver(*spec, id, line.document);
    } else {
      AuditLine end = begun_[id];
      end.unix_ns = 0;
      end.event = "failed";
      end.detail = "the configuration has it no more";
      Write(std::move(end));
      begun_.erase(id);
    }
  }
}

void Runner::OnFinding(const rules::Finding& finding, std::string_view event, bool worse,
                       std::int64_t train_step, std::int64_t now_ns) {
  Begin(now_ns);
  Trains(now_ns);
  std::erase_if(resumed_, [&](const rules::Finding& before) { return before.id == finding.id; });
  for (const Decision& decision : policy_.OnFinding(finding, event, worse, Seconds(now_ns), train_step))
    Carry(decision, train_step);
}

void Runner::Trains(std::int64_t now_ns) {
  if (!std::exchange(trains_, true)) policy_.TrainsSince(Seconds(now_ns));
}

Coordinator::Signal Runner::Poll(std::int64_t now_ns, std::int64_t train_step, std::uint32_t world,
                                 std::span<const query::WorkerInfo> workers, Coordinator::Acks acks) {
  if (train_step >= 0) Trains(now_ns);
  if (!resumed_.empty() && train_step >= 0) {
    Begin(now_ns);
    for (const rules::Finding& finding : std::exchange(resumed_, {}))
      policy_.Resume(finding, Seconds(now_ns), train_step);
  }
  if (options_.gate && options_.commands) HearOthers(now_ns);
  if (options_.hosts && audit_ && !ended_) HearHosts(now_ns);
  if (!options_.gate || audit_) {
    for (const Heard& heard : inbox_.Look(now_ns)) {
      if (!options_.commands) continue;
      Begin(now_ns);
      Take(heard);
    }
  }
  if (policy_.waits()) {
    for (const Decision& decision : policy_.Tick(Seconds(now_ns), train_step)) Carry(decision, train_step);
  }
  if (!coordinator_.busy()) coordinator_.Observe(now_ns, train_step);
  deliveries_.Poll(now_ns);
  HearDeliveries();
  const Coordinator::Signal signal = coordinator_.busy() && !ended_
                                         ? coordinator_.Poll(now_ns, world, workers, acks)
                                         : Coordinator::Signal::kNone;
  HearCoordinator();
  return signal;
}

AuditLine Runner::LineOf(const Decision& decision, const std::string& id, std::string event) const {
  AuditLine line;
  line.id = id;
  line.action = decision.spec->name;
  line.kind = KindName(decision.spec->kind);
  line.finding = decision.finding.id;
  line.cause = CauseOf(decision.finding);
  line.event = std::move(event);
  line.detail = decision.detail;
  return line;
}

void Runner::Write(AuditLine line) {
  if (!audit_ || audit_->Append(std::move(line)) || audit_failed_) return;
  audit_failed_ = true;
  sayings_.push_back(
      fmt::format("luff: what actions do cannot be written into the run: {}\n", audit_->error()));
}

void Runner::Carry(const Decision& decision, std::int64_t train_step) {
  const ActionSpec& spec = *decision.spec;
  const std::string id = rules::FindingId(run_id_ + "/" + spec.name, decision.finding.id, decision.event, 0);
  switch (decision.what) {
    case Decision::What::kSilenced: Write(LineOf(decision, id, "silenced")); return;
    case Decision::What::kLimited:
      Write(LineOf(decision, id, "limited"));
      // Who leaves need not hear that it would not be stopped once more.
      if (spec.kind == ActionKind::kStop && coordinator_.stopping()) return;
      if (limit_said_.insert(spec.name).second)
        sayings_.push_back(
            fmt::format("luff: action '{}' does no more for now: {}\n", spec.name, decision.detail));
      return;
    case Decision::What::kDryRun:
      Write(LineOf(decision, id, "dry_run"));
      sayings_.push_back(
          fmt::format("luff: dry run: action '{}' would {} because of {} (dry_run = false switches it on)\n",
                      spec.name, WhatItDoes(spec.kind), decision.finding.rule));
      return;
    case Decision::What::kAct: break;
  }
  const Mark* mark = inbox_.MarkOfFinding(decision.finding.id);
  if (IsDelivery(spec.kind) && mark != nullptr && mark->mutes(train_step)) {
    AuditLine line = LineOf(decision, id, "silenced");
    line.detail = "muted by " + mark->author;
    Write(std::move(line));
    return;
  }
  const bool stop = spec.kind == ActionKind::kStop;
  if (!IsDelivery(spec.kind) && (ended_ || committed_.contains(id) || coordinator_.stopping())) return;
  AuditLine begun = LineOf(decision, id, "begun");
  begun_[id] = begun;
  if (IsDelivery(spec.kind)) {
    begun.document = Document(decision, id, train_step);
    const std::string document = begun.document;
    Write(std::move(begun));
    Deliver(spec, id, document);
    return;
  }
  if (DoneElsewhere(decision, train_step)) {
    begun_.erase(id);
    begun.event = "silenced";
    begun.detail = kElsewhere;
    return Write(std::move(begun));
  }
  Write(begun);
  if (not_all_here_) {
    begun.event = "refused";
    begun.detail = kNotAllHere;
    Write(std::move(begun));
    begun_.erase(id);
    return sayings_.push_back(fmt::format("luff: {} ('{}') was not carried out: {}\n", KindName(spec.kind),
                                          spec.name, kNotAllHere));
  }
  if (stop) stop_finding_ = decision.finding;
  Json body;
  body["action"] = id;
  body["name"] = spec.name;
  if (spec.kind == ActionKind::kLowerLr) body["factor"] = spec.factor;
  if (spec.kind == ActionKind::kRollback) body["step"] = decision.finding.since_step;
  if (spec.kind == ActionKind::kTrace) {
    body["steps"] = spec.trace_steps;
    if (spec.trace_stacks) body["stacks"] = true;
    body["share"] = spec.trace_share;
    body["finding"] = decision.finding.id;
    body["rule"] = decision.finding.rule;
  }
  (void)coordinator_.Request({std::string(KindName(spec.kind)), id, Because(decision.finding),
                              decision.finding.id, Dump(body), false, CauseOf(decision.finding)});
}

bool Runner::DoneElsewhere(const Decision& decision, std::int64_t train_step) const {
  if (elsewhere_.empty()) return false;
  const rules::Finding& finding = decision.finding;
  const auto done = elsewhere_.find(
      {std::string(KindName(decision.spec->kind)), options_.hosts->CauseKey(CauseOf(finding))});
  // Steps of another mode, and updates, are no TRAIN steps.
  const std::int64_t step = finding.mode == "TRAIN" ? finding.step : train_step;
  return done != elsewhere_.end() && step < done->second;
}

void Runner::TellKeys(const std::vector<store::ControlRecord>& records) {
  if (!options_.commands || !options_.tell_keys) return;
  std::string told;
  for (const store::ControlRecord& record : records) {
    if (record.kind == "keys") told = record.body;
  }
  const std::string now = options_.gate ? options_.gate->KeysJson() : told.empty() ? "" : R"({"keys":[]})";
  if (told == now || TryParseJson(told) == TryParseJson(now)) return;  // whatever the order of their members
  store::ControlRecord record;
  record.kind = "keys";
  record.author = "luff run";
  record.body = now;
  const auto written = store::WriteControl(options_.run, record);
  if (!written.ok())
    sayings_.push_back(fmt::format("luff: whose signatures count cannot be written into the run: {}\n",
                                   written.status().message()));
}

void Runner::HearOthers(std::int64_t now_ns) {
  constexpr std::int64_t kTellEveryNs = 60'000'000'000;
  constexpr std::size_t kMostInAudit = 200;
  if (!audit_) {
    if (!Env::Real().Exists(options_.run + "/run.json")) return;
    Begin(now_ns);
  }
  std::vector<std::string> all = inbox_.TakeRefused();
  for (const Arrivals::Refused& one : ended_ ? std::vector<Arrivals::Refused>() : arrivals_.Look(now_ns)) {
    const std::string what = fmt::format("request {} of the bucket", one.object);
    if (refused_ < kMostInAudit) {
      AuditLine line;
      line.id = rules::FindingId(run_id_ + "/arrived", std::to_string(one.object), "", 0);
      line.action = what;
      line.kind = "request";
      line.event = "begun";
      line.detail = "somebody";
      Write(line);
      line.event = "refused";
      line.detail = one.why;
      Write(std::move(line));
    }
    all.push_back(fmt::format("{} does nothing: {}", what, one.why));
  }
  refused_ += all.size();
  untold_ += all.size();
  if (all.empty() || now_ns < tell_ns_) return;
  tell_ns_ = now_ns + kTellEveryNs;
  const std::string more = untold_ > 1 ? fmt::format(" ({} more since the last line)", untold_ - 1) : "";
  sayings_.push_back(fmt::format("luff: {}{}\n", all.back(), more));
  untold_ = 0;
}

void Runner::HearHosts(std::int64_t now_ns) {
  constexpr std::int64_t kTellEveryNs = 60'000'000'000;
  options_.hosts->Look(Env::Real().NowUnixNs());
  if (now_ns < tell_hosts_ns_) return;
  const auto [count, why] = options_.hosts->TakeRefused();
  if (count == 0) return;
  tell_hosts_ns_ = now_ns + kTellEveryNs;
  const std::string more = count > 1 ? fmt::format(" ({} in all since the last line)", count) : "";
  sayings_.push_back(
      fmt::format("luff: a message between the job's hosts counts for nothing: {}{}\n", why, more));
}

void Runner::Take(const Heard& heard) {
  const Asked& asked = heard.asked;
  const std::string id = rules::FindingId(run_id_ + "/request", std::to_string(asked.number), "", 0);
  asked_[id] = asked.number;
  if (committed_.contains(id))
    return Reply(id, Asked::State::kDone, -1, "it was carried out before the last supervisor ended");
  AuditLine line;
  line.id = id;
  line.action = fmt::format("request {}", asked.number);
  line.kind = asked.action;
  line.event = "begun";
  line.detail = asked.author + (asked.reason.empty() ? "" : ": " + asked.reason);
  Write(line);
  begun_[id] = line;
  const auto refuse = [&](const std::string& why) {
    AuditLine end = begun_[id];
    end.event = "refused";
    end.detail = why;
    Write(std::move(end));
    begun_.erase(id);
    Reply(id, Asked::State::kRefused, -1, why);
  };
  if (!heard.refused.empty()) {
    sayings_.push_back(fmt::format("luff: request {} does nothing: {}\n", asked.number, heard.refused));
    return refuse(heard.refused);
  }
  if (const Status good = CheckRequest(asked); !good.ok()) return refuse(std::string(good.message()));
  if (Env::Real().NowUnixNs() - asked.asked_unix_ns > kOldNs)
    return refuse("it was asked more than a minute before anybody could answer");
  if (ended_) return refuse("the job has ended");
  if (coordinator_.stopping()) return refuse("the job is being stopped already");
  if (not_all_here_) return refuse(kNotAllHere);
  Json body = asked.arguments.empty() ? Json::object() : TryParseOrderedJson(asked.arguments);
  body["action"] = id;
  body["name"] = line.action;
  body["request"] = asked.number;
  const std::string reason =
      fmt::format("asked by {}{}{}", asked.author, asked.reason.empty() ? "" : ": ", asked.reason);
  if (!coordinator_.Request({asked.action, id, reason, "", Dump(body)}))
    return refuse("too many actions wait");
  if (asked.action == "stop") stop_asked_ = reason;
}

void Runner::Reply(const std::string& id, Asked::State state, std::int64_t train_step,
                   const std::string& why) {
  const auto asked = asked_.find(id);
  if (asked == asked_.end()) return;
  const Status written = inbox_.Reply(asked->second, state, train_step, why);
  if (!written.ok())
    sayings_.push_back(fmt::format("luff: the answer to request {} cannot be written into the run: {}\n",
                                   asked->second, written.message()));
  asked_.erase(asked);
}

std::string Runner::Document(const Decision& decision, const std::string& id, std::int64_t train_step) const {
  Json document;
  document["version"] = 1;
  document["delivery"] = id;
  document["event"] = decision.event;
  document["action"] = decision.spec->name;
  document["run"] = options_.run;
  document["run_id"] = run_id_;
  document["command"] = options_.command;
  document["train_step"] = train_step;
  document["finding"] = TryParseOrderedJson(rules::ToJson(decision.finding, "new"));
  document["finding"].erase("event");
  return Dump(document);
}

void Runner::Deliver(const ActionSpec& spec, const std::string& id, const std::string& document) {
  Delivery delivery;
  delivery.id = id;
  if (spec.kind == ActionKind::kCommand) {
    delivery.argv = spec.argv;
    delivery.input = document + "\n";
    delivery.timeout_s = spec.timeout_s;
    delivery.speaks = false;
  } else {
    Json order;
    order["kind"] = KindName(spec.kind);
    order["settings"] = TryParseOrderedJson(spec.settings_json);
    order["document"] = TryParseOrderedJson(document);
    delivery.argv = options_.notifier;
    delivery.input = Dump(order);
    delivery.timeout_s = spec.give_up_s + kGraceS;
  }
  if (deliveries_.Add(std::move(delivery))) return;
  AuditLine line = begun_[id];
  line.event = "dropped";
  line.detail = "too many wait";
  Write(std::move(line));
  begun_.erase(id);
}

void Runner::HearDeliveries() {
  for (const DeliveryNews& news : deliveries_.TakeNews()) {
    const auto begun = begun_.find(news.id);
    if (begun == begun_.end()) continue;
    AuditLine line = begun->second;
    line.unix_ns = 0;
    line.attempt = news.attempt;
    line.detail = news.detail;
    line.event = news.what == DeliveryNews::What::kAttempt ? "attempt"
                 : news.what == DeliveryNews::What::kDone  ? "done"
                                                           : "failed";
    if (news.what == DeliveryNews::What::kFailed)
      sayings_.push_back(fmt::format("luff: {} '{}' failed: {}\n", line.kind, line.action, line.detail));
    Write(line);
    if (news.what != DeliveryNews::What::kAttempt) begun_.erase(begun);
  }
}

const AuditLine* Runner::BegunOf(const ActionNews& news) {
  auto begun = begun_.find(news.request.id);
  if (begun == begun_.end()) {
    if (!news.request.elsewhere) return nullptr;
    AuditLine line;
    line.id = news.request.id;
    line.action = "another host";
    line.kind = news.request.kind;
    line.finding = news.request.finding;
    line.event = "begun";
    line.detail = news.request.reason;
    Write(line);
    begun = begun_.emplace(line.id, std::move(line)).first;
  }
  return &begun->second;
}

void Runner::HearCoordinator() {
  using What = ActionNews::What;
  for (const ActionNews& news : coordinator_.TakeNews()) {
    const AuditLine* begun = BegunOf(news);
    if (begun == nullptr) continue;
    AuditLine line = *begun;
    line.unix_ns = 0;
    line.train_step = news.train_step;
    line.detail = news.detail;
    const std::string name = fmt::format("{} ('{}')", line.kind, line.action);
    const bool stop = line.kind == "stop";
    switch (news.what) {
      case What::kProposed: line.event = "proposed"; break;
      case What::kCommitted:
        line.event = "committed";
        committed_.insert(line.id);
        if (news.request.elsewhere && !stop && !news.request.finding.empty() && !news.request.cause.empty()) {
          const std::pair key{line.kind, news.request.cause};
          if (elsewhere_.size() < kMostElsewhere || elsewhere_.contains(key))
            elsewhere_[key] = news.train_step;
        }
        if (news.request.elsewhere && stop) {
          stop_finding_ = {};
          stop_asked_ = "on another host of the job: " + news.request.reason;
        }
        if (stop) Reply(line.id, Asked::State::kDone, news.train_step, "");
        break;
      case What::kAborted: line.event = "aborted"; break;
      case What::kCarriedOut:
        line.event = "carried_out";
        Reply(line.id, Asked::State::kDone, news.train_step, "");
        sayings_.push_back(fmt::format("luff: {} carried out after {} TRAIN steps\n", name, news.train_step));
        break;
      case What::kRefused:
        line.event = "refused";
        Reply(line.id, Asked::State::kRefused, -1, news.detail);
        sayings_.push_back(fmt::format("luff: {} was not carried out, in no rank: {}\n", name, news.detail));
        break;
      case What::kFailed:
        line.event = "failed";
        Reply(line.id, Asked::State::kFailed, news.train_step, news.detail);
        if (!stop) sayings_.push_back(fmt::format("luff: {} failed: {}\n", name, news.detail));
        if (news.request.elsewhere && stop)
          stop_asked_ = "on another host of the job: " + news.request.reason;
        break;
      case What::kElsewhere:
        line.event = "silenced";
        line.detail = kElsewhere;
        break;
    }
    Write(line);
    // What another host proposes again has another id.
    if (news.what >= What::kCarriedOut || (news.request.elsewhere && news.what == What::kAborted))
      begun_.erase(news.request.id);
  }
}

void Runner::JobEnded() {
  ended_ = true;
  HearCoordinator();
  for (auto& [id, begun] : begun_) {
    const ActionSpec* spec = policy_.Find(begun.action);
    if (!asked_.contains(id) && (spec == nullptr || IsDelivery(spec->kind))) continue;
    const bool stop = begun.kind == KindName(ActionKind::kStop);
    if (stop && committed_.contains(id)) continue;
    AuditLine line = begun;
    line.unix_ns = 0;
    line.event = stop ? "aborted" : "failed";
    line.detail = "the job ended before all ranks had agreed, or answered";
    Reply(id, Asked::State::kRefused, -1, line.detail);
    Write(std::move(line));
  }
}

}  // namespace luff::actions
