// What the supervisors of several hosts agree upon: a stop, or another action. Each of them does the same: it
// proposes to its own workers what stands open in the hosts' log, answers there once all of them have, and
// obeys the first decision there. Who has proposed decides commit, when every rank has consented; anybody
// decides abort.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "luff/actions/coordinator.h"
#include "luff/actions/requests.h"
#include "luff/rules/finding.h"

namespace luff::actions {
namespace {

constexpr double kLongerS = 3;  // than who has proposed, waits who decides abort in its place
constexpr double kSettleS = 1, kGoesOnS = 60;
constexpr const char* kNoBucket = "the bucket does not answer, so the other hosts cannot be asked";

/// True for what changes no results: ranks that do it and ranks that do not go on together.
bool IsHarmless(const std::string& kind) { return kind == "capture" || kind == "trace"; }

ActionRequest RequestOf(const HostMessage& proposal) {
  ActionRequest request{.kind = proposal.action,
                        .id = rules::FindingId("hosts", proposal.id(), "", 0),
                        .reason = proposal.reason,
                        .finding = proposal.finding,
                        .body = "",
                        .elsewhere = true,
                        .cause = proposal.cause};
  if (proposal.action == "stop") return request;
  auto body = proposal.body.empty() ? nlohmann::json::object() : TryParseJson(proposal.body);
  body.erase("request");  // one of the other host's log
  body["action"] = request.id;
  body["name"] = "another host";
  request.body = JsonText(body);
  return request;
}

/// What other hosts have to know of the body of a proposal.
std::string BodyFor(const ActionRequest& request) {
  auto body = TryParseJson(request.body);
  if (request.kind == "stop" || !body.is_object()) return "";
  for (const char* own : {"action", "name", "request"}) body.erase(own);
  return body.empty() ? "" : JsonText(body);
}

Status CheckBodyOf(const ActionRequest& request) {
  Asked asked;
  asked.action = request.kind;
  asked.arguments = request.body;
  return CheckRequest(asked);
}

double Since(std::int64_t from_ns, std::int64_t to_ns) { return static_cast<double>(to_ns - from_ns) / 1e9; }

}  // namespace

void Coordinator::Follow(const HostMessage& proposal, std::int64_t now_ns) {
  const bool ours = proposal.instance == hosts_->instance();
  const bool offered = ours && offer_ == proposal.sequence;
  const bool wanted = state_ == State::kWanted || (state_ == State::kHosts && own_);
  // One stop is as good as another.
  own_ = wanted &&
         ((offered && current_.id == offered_) || (current_.kind == "stop" && proposal.action == "stop"));
  if (!own_) {
    if (wanted) waiting_.push_front(std::move(current_));
    const auto at = std::ranges::find(waiting_, offered ? offered_ : "", &ActionRequest::id);
    own_ = offered && at != waiting_.end();
    if (own_) {
      current_ = std::move(*at);
      waiting_.erase(at);
    } else {
      current_ = RequestOf(proposal);
    }
    proposals_ = own_ ? 1 : 0;
  }
  hosts_->Hold(true);
  state_ = State::kHosts;
  followed_ = proposal.id();
  followed_ns_ = now_ns;
  proposed_step_ = proposal.train_step;
  if (ours) offer_ = 0;  // it has arrived
  proposal_ = answer_ = decision_ = 0;
  agreed_ = commits_ = false;
  covered_ns_ = unwritten_ns_ = doubt_since_ns_ = doubt_ns_ = doubt_step_ = -1;
}

void Coordinator::Offer(std::int64_t now_ns, std::int64_t furthest, bool any_live) {
  if (!any_live) return;
  if (wanted_ns_ < 0) wanted_ns_ = now_ns;
  const bool overdue = Since(wanted_ns_, now_ns) >= settings_.hosts_answer_s;
  if (offer_ != 0) {
    std::string why;
    bool late = false;
    const std::string id = fmt::format("{}-{}", hosts_->instance(), offer_);
    if (hosts_->DecisionOf(id, &why, &late) != HostLog::Decision::kOpen) {
      offer_ = 0;  // another host's came first, and is decided
    } else if (stopping_ && current_.kind != "stop" && hosts_->TakeBack(offer_)) {
      offer_ = 0;
      return GiveUp("the job is being stopped");
    } else if ((overdue && hosts_->TakeBack(offer_)) ||
               Since(wanted_ns_, now_ns) >= settings_.hosts_answer_s + 2 * kLongerS) {
      offer_ = 0;  // if it arrives yet, it is given up then
      return GiveUp(kNoBucket);
    }
    return;
  }
  if (!hosts_->reaches()) {
    if (overdue) GiveUp(kNoBucket);
    return;
  }
  HostMessage proposal;
  proposal.kind = HostMessage::Kind::kPropose;
  proposal.action = current_.kind;
  if (current_.kind != "stop") proposal.cause = current_.cause;  // of stops one is enough for all causes
  proposal.body = BodyFor(current_);
  if (!hosts_->says_why() && IsHarmless(current_.kind))
    return GiveUp("the run is encrypted, and what to record would stand in the bucket for all to read");
  if (proposal.body.size() > kMaxHostBody)
    return GiveUp(fmt::format(
        "what is asked for has more than {} bytes, which no message to the other hosts holds", kMaxHostBody));
  proposal.train_step = StepAhead(std::max(furthest, reached_), settings_.hosts_lead_s);
  proposal.reason = current_.reason;
  proposal.finding = current_.finding;
  const auto sent = hosts_->Send(std::move(proposal));
  if (sent.ok()) {
    offer_ = *sent;
    offered_ = current_.id;
    wanted_ns_ = now_ns;
    ++proposals_;
  } else if (overdue) {
    GiveUp(fmt::format("the other hosts cannot be asked: {}", sent.status().message()));
  }
}

std::optional<Coordinator::Bequest> Coordinator::bequest() const {
  if (state_ != State::kHosts || followed_.empty() || proposal_ == 0 || (answer_ != 0 && !agreed_)) return {};
  return Bequest{followed_, proposal_, hosts_->past()};
}

void Coordinator::Inherit(const Bequest& bequest, const store::ControlRecord& asked, std::int64_t now_ns) {
  const auto body = TryParseJson(asked.body);
  current_ = {.kind = asked.kind,
              .id = body.is_object() ? TextMember(body, "action") : "",
              .reason = asked.reason,
              .finding = asked.finding,
              .body = asked.body,
              .elsewhere = true};
  state_ = State::kHosts;
  own_ = false;
  inherited_ = true;
  followed_ = bequest.followed;
  followed_ns_ = now_ns;
  proposal_ = bequest.proposal;
  proposed_step_ = asked.train_step;
  answer_ = decision_ = 1;  // neither is given here
  hosts_->Hold(true);
  if (bequest.past) hosts_->Recall(*bequest.past);
}

void Coordinator::Unfollow() {
  followed_.clear();
  inherited_ = false;
  hosts_->Hold(false);
}

Coordinator::Signal Coordinator::Apart(std::int64_t now_ns, const std::string& why) {
  const std::string what =
      fmt::format("all hosts of the job have agreed upon {}{} after {} TRAIN steps, and {}",
                  current_.kind == "stop" ? "a " : "", current_.kind, proposed_step_, why);
  if (IsHarmless(current_.kind)) return End(ActionNews::What::kFailed, what), Signal::kNone;
  if (current_.kind != "stop") {
    // From now on ranks train on different terms. That is worth nothing, and nobody would see it.
    Tell(ActionNews::What::kFailed, what);
    current_ = {.kind = "stop",
                .id = rules::FindingId("hosts", current_.id, "apart", 0),
                .reason = what,
                .finding = current_.finding,
                .body = "",
                .elsewhere = true};
  }
  stopping_ = true;
  waiting_.clear();
  return Terminate(now_ns, what);
}

Coordinator::Signal Coordinator::CommittedLate(std::int64_t now_ns) {
  const std::optional<HostMessage> proposal = hosts_->TakeLateCommit();
  const bool leaves = state_ == State::kCommitted && current_.kind == "stop";
  if (!proposal || leaves || state_ >= State::kTerminating) return Signal::kNone;
  constexpr const char* kLate = "this was known here only after the ranks here had gone on";
  if (IsHarmless(proposal->action)) {
    news_.push_back({ActionNews::What::kFailed, RequestOf(*proposal), proposal->train_step, kLate});
    return Signal::kNone;
  }
  current_ = RequestOf(*proposal);
  proposed_step_ = proposal->train_step;
  Unfollow();
  return Apart(now_ns, kLate);
}

/// Another host has asked for the same about the same: what is asked for here is done with.
void Coordinator::Withdraw() {
  const auto same = [&](const ActionRequest& other) {
    return other.kind == current_.kind && !current_.cause.empty() && !current_.finding.empty() &&
           hosts_->CauseKey(other.cause) == current_.cause;
  };
  for (const ActionRequest& request : waiting_) {
    if (same(request)) news_.push_back({ActionNews::What::kElsewhere, request, proposed_step_, ""});
  }
  std::erase_if(waiting_, same);
}

Coordinator::Signal Coordinator::AcrossHosts(std::int64_t now_ns, std::uint32_t world, std::int64_t furthest,
                                             bool any_live, std::span<const query::WorkerInfo> workers,
                                             Acks acks) {
  if (followed_.empty()) {
    if (hosts_->open() == nullptr) return Offer(now_ns, furthest, any_live), Signal::kNone;
    Follow(*hosts_->open(), now_ns);
  }
  std::string why;
  bool late = false;
  switch (hosts_->DecisionOf(followed_, &why, &late)) {
    case HostLog::Decision::kCommit: return HostsCommitted(now_ns);
    case HostLog::Decision::kAbort: return HostsAborted(why, late), Signal::kNone;
    case HostLog::Decision::kOpen: break;
  }
  if (answer_ == 0) AnswerHosts(now_ns, world, furthest, any_live, workers, acks);
  if (decision_ == 0) DecideForHosts(now_ns, world);
  return Doubt(now_ns, furthest, workers);
}

void Coordinator::AnswerHosts(std::int64_t now_ns, std::uint32_t world, std::int64_t furthest, bool any_live,
                              std::span<const query::WorkerInfo> workers, Acks acks) {
  if (!any_live || GivenUp()) return;
  HostMessage answer;
  answer.kind = HostMessage::Kind::kAnswer;
  answer.proposal = followed_;
  answer.train_step = furthest + 1;
  answer.world = world;
  answer.verdict = HostMessage::Verdict::kLate;
  if (const Status good = CheckBodyOf(current_); !own_ && !good.ok()) {
    answer.verdict = HostMessage::Verdict::kRefused;
    answer.reason = fmt::format("a host cannot do it: {}", good.message());
  } else if (proposal_ == 0 && furthest + 1 < proposed_step_) {
    store::ControlRecord record;
    record.kind = current_.kind;
    record.phase = "propose";
    record.train_step = proposed_step_;
    record.deadline_s = settings_.hosts_wait_s;
    record.reason = current_.reason;
    record.finding = current_.finding;
    record.body = current_.body;
    record.author = "luff run";
    const Result<std::uint64_t> number = log_.write(record);
    if (number.ok()) {
      proposal_ = *number;
      Tell(ActionNews::What::kProposed);
      return;
    }
    if (Since(followed_ns_, now_ns) < settings_.answer_s) return;
    answer.verdict = HostMessage::Verdict::kRefused;
    answer.reason = "a host cannot write the proposal into its run";
  } else if (proposal_ != 0) {
    std::string why;
    switch (Count(world, workers, acks, &why)) {
      case Answers::kAll:
        if (Since(followed_ns_, now_ns) + kLongerS >= settings_.hosts_wait_s) break;  // they may have gone on
        answer.verdict = HostMessage::Verdict::kAccepted;
        for (const query::WorkerInfo& worker : workers) {
          if (worker.alive && !worker.ended) answer.ranks.push_back(worker.worker);
        }
        break;
      case Answers::kOpen:
        if (Since(followed_ns_, now_ns) < settings_.answer_s) return;
        answer.verdict = HostMessage::Verdict::kRefused;
        answer.reason = why;
        break;
      case Answers::kRefused:
        answer.verdict = HostMessage::Verdict::kRefused;
        answer.reason = why;
        break;
      case Answers::kLate: break;
    }
  }
  if (answer.verdict == HostMessage::Verdict::kAccepted && answer.ranks.size() >= world) {
    // One that takes all ranks for its own would leave alone.
    answer.verdict = HostMessage::Verdict::kRefused;
    answer.reason = fmt::format(
        "a run of the job knows of no ranks elsewhere (it has {} of {}); start the ranks with RANK and "
        "WORLD_SIZE, or, "
        "if all of them record into one run, without --job",
        answer.ranks.size(), world);
  }
  const bool agreed = answer.verdict == HostMessage::Verdict::kAccepted;
  const auto sent = hosts_->Send(std::move(answer));
  if (!sent.ok()) return;  // tried again
  answer_ = *sent;
  agreed_ = agreed;
  // No commit can count this host now, so its workers need not wait for the others.
  if (!agreed && proposal_ != 0) static_cast<void>(Decide("abort"));
}

bool Coordinator::GivenUp() const { return !own_ && followed_.starts_with(hosts_->instance()); }

void Coordinator::DecideForHosts(std::int64_t now_ns, std::uint32_t world) {
  const double passed = Since(followed_ns_, now_ns);
  HostMessage decision;
  decision.kind = HostMessage::Kind::kAbort;
  decision.verdict = HostMessage::Verdict::kRefused;
  decision.proposal = followed_;
  if (GivenUp()) {
    decision.reason = "who has asked for it was told that it does not happen";
  } else if (hosts_->open() != nullptr && hosts_->open()->instance == hosts_->instance()) {
    switch (hosts_->Count(world, &decision.reason, &reached_)) {
      case HostLog::Answers::kAll:
        // Hosts of another job of the same name answer as fast as ours: then a rank stands in two answers.
        if (covered_ns_ < 0) covered_ns_ = now_ns;
        if (Since(covered_ns_, now_ns) < kSettleS) return;
        if (hosts_->unsure()) {  // no host would believe a commit
          decision.verdict = HostMessage::Verdict::kLate;
          decision.reason = "something that counts for nothing was put between the messages of the hosts";
          break;
        }
        decision.kind = HostMessage::Kind::kCommit;
        break;
      case HostLog::Answers::kLate: decision.verdict = HostMessage::Verdict::kLate; break;
      case HostLog::Answers::kRefused: break;
      case HostLog::Answers::kOpen:
        if (passed < settings_.hosts_answer_s) return;
        break;
    }
  } else {
    if (passed < settings_.hosts_answer_s + kLongerS) return;
    decision.reason = "the host that has proposed it has not decided in time";
  }
  const bool commits = decision.kind == HostMessage::Kind::kCommit;
  if (const auto sent = hosts_->Send(std::move(decision)); sent.ok()) {
    decision_ = *sent;
    commits_ = commits;
  }
}

Coordinator::Signal Coordinator::HostsCommitted(std::int64_t now_ns) {
  const Result<store::ControlRecord> counts = Decide("commit");
  if (!counts.ok()) {
    if (unwritten_ns_ < 0) unwritten_ns_ = now_ns;
    if (Since(unwritten_ns_, now_ns) < settings_.answer_s) return Signal::kNone;
  }
  Unfollow();
  if (!counts.ok()) return Apart(now_ns, "this could not be written into the run");
  if (counts->phase != "commit") return Apart(now_ns, "a worker here had gone on before this was known here");
  if (current_.kind == "stop") {
    stopping_ = true;
    waiting_.clear();
    Committed(now_ns);
    // The step may lie far ahead: call-backs have their time from there on.
    committed_ns_ += static_cast<std::int64_t>(settings_.hosts_wait_s * 1e9);
  } else {
    if (current_.elsewhere) Withdraw();
    Committed(now_ns);
  }
  return Signal::kNone;
}

void Coordinator::HostsAborted(const std::string& why, bool late) {
  // Only what all hosts have committed is committed here, so workers that are not told find the same by
  // themselves.
  if (proposal_ != 0) static_cast<void>(Decide("abort"));
  const bool ours = followed_.starts_with(hosts_->instance());
  Unfollow();
  wanted_ns_ = -1;
  if (!own_) return End(late ? ActionNews::What::kAborted : ActionNews::What::kRefused, why);
  Tell(ActionNews::What::kAborted, why);
  proposal_ = 0;
  const bool enough = proposals_ >= settings_.proposals || (stopping_ && current_.kind != "stop");
  if (ours && (!late || enough)) GiveUp(why);
}

void Coordinator::GiveUp(const std::string& why) {
  const bool stop = current_.kind == "stop";
  if (stop) stopping_ = false;
  wanted_ns_ = -1;
  End(ActionNews::What::kRefused,
      hosts_->doubts() ? why : fmt::format("{}; no host {}", why, stop ? "stops" : "does it"));
}

Coordinator::Signal Coordinator::Doubt(std::int64_t now_ns, std::int64_t furthest,
                                       std::span<const query::WorkerInfo> workers) {
  if (Since(followed_ns_, now_ns) < settings_.hosts_answer_s + 2 * kLongerS) return Signal::kNone;
  // No decision can be read. Nobody can have decided commit if nobody can have read our consent, or if the
  // commit is ours and was not sent.
  const bool own_commit = commits_ && hosts_->TakeBack(decision_);
  if (own_commit) {
    HostMessage abort;
    abort.kind = HostMessage::Kind::kAbort;
    abort.verdict = HostMessage::Verdict::kRefused;
    abort.proposal = followed_;
    abort.reason = kNoBucket;
    static_cast<void>(hosts_->Send(std::move(abort)));  // else the others find it by their own time
  }
  bool unheard = false;
  if (inherited_) {
    unheard = hosts_->TakeBack(answer_);
    if (unheard) hosts_->LookAgain();  // it may have been put since the last look
    unheard = unheard && !hosts_->consented();
  } else {
    unheard = !agreed_ || own_commit || hosts_->TakeBack(answer_);
  }
  if (unheard) {
    hosts_->Forget(kNoBucket);
    return Signal::kNone;  // the next turn finds the abort
  }
  // Workers wait at the step for a bounded time, then go on: nothing is stopped by a doubt. If the others
  // have stopped, no step comes any more; while steps come, of any mode, they have not.
  std::int64_t step = -1;
  for (const query::WorkerInfo& worker : workers) step = std::max(step, worker.last_global_step);
  if (furthest + 1 < proposed_step_) return Signal::kNone;
  if (doubt_since_ns_ < 0) doubt_since_ns_ = now_ns;
  if (current_.kind != "stop") {  // others do not leave by it, so steps tell nothing
    if (Since(doubt_since_ns_, now_ns) >= settings_.hosts_wait_s)
      hosts_->Forget("what the other hosts have decided cannot be read", true);
    return Signal::kNone;
  }
  if (doubt_ns_ < 0 || step > doubt_step_) {
    // Some steps can be finished without the others, where gradients are accumulated; not for a minute.
    const bool goes_on = doubt_ns_ >= 0 && furthest >= proposed_step_ + 1 &&
                         Since(doubt_since_ns_, now_ns) >= settings_.hosts_wait_s + kGoesOnS;
    doubt_ns_ = now_ns;
    doubt_step_ = step;
    if (goes_on) hosts_->Forget("what the other hosts have decided cannot be read, and they go on", true);
    return Signal::kNone;
  }
  if (Since(doubt_ns_, now_ns) < settings_.hosts_doubt_s) return Signal::kNone;
  stopping_ = true;
  return Terminate(
      now_ns,
      fmt::format("all ranks here had consented to stop after {} TRAIN steps, what the other hosts have "
                  "decided cannot be read, and no step was finished for {:g} s: they have stopped",
                  proposed_step_, settings_.hosts_doubt_s));
}

}  // namespace luff::actions
