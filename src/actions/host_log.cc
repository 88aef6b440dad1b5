#include "luff/actions/host_log.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <set>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/hex_id.h"
#include "base/json.h"
#include "base/json_number.h"
#include "luff/actions/requests.h"

namespace luff::actions {
namespace {

using Said = nlohmann::json;
constexpr std::size_t kMaxMessageBytes = 64 << 10, kMessageDepth = 16, kMaxMessageText = 4096,
                      kMaxProposalId = 64, kMostDecided = 64;
constexpr std::int64_t kMostApartNs = 600'000'000'000;  // of two clocks, and of a proposal from now
constexpr std::array<std::string_view, 4> kMessageKinds = {"propose", "answer", "commit", "abort"};
constexpr std::array<std::string_view, 3> kVerdicts = {"accepted", "late", "refused"};

/// The place of `text` in a list of names. Throws std::invalid_argument.
template <std::size_t N>
std::size_t PlaceOf(const std::array<std::string_view, N>& names, const std::string& text,
                    const char* member) {
  const auto at = std::ranges::find(names, text);
  if (at == names.end()) throw std::invalid_argument(fmt::format("'{}' is none that Luff writes", member));
  return static_cast<std::size_t>(at - names.begin());
}

std::string BoundedText(const Said& json, const char* member, std::size_t most) {
  std::string text = TextMember(json, member);
  if (text.size() > most)
    throw std::invalid_argument(fmt::format("'{}' has more than {} bytes", member, most));
  return text;
}

const Said& ListOf(const Said& json, const char* member, std::size_t most) {
  const auto at = json.find(member);
  if (at == json.end() || !at->is_array() || at->size() > most)
    throw std::invalid_argument(fmt::format("'{}' is no list of at most {}", member, most));
  return *at;
}

}  // namespace

std::string HostMessage::id() const { return fmt::format("{}-{}", instance, sequence); }

std::string HostMessageText(const HostMessage& message) {
  Said json{{"version", 0},
            {"job", message.job},
            {"instance", message.instance},
            {"sequence", message.sequence},
            {"created_unix_ns", message.created_unix_ns},
            {"kind", kMessageKinds[static_cast<std::size_t>(message.kind)]},
            {"reason", message.reason}};
  if (message.kind != HostMessage::Kind::kPropose) json["proposal"] = message.proposal;
  switch (message.kind) {
    case HostMessage::Kind::kPropose:
      json["action"] = message.action;
      if (!message.body.empty()) json["body"] = TryParseJson(message.body);
      if (!message.cause.empty()) json["cause"] = message.cause;
      json["train_step"] = message.train_step;
      json["finding"] = message.finding;
      break;
    case HostMessage::Kind::kAnswer:
      json["verdict"] = kVerdicts[static_cast<std::size_t>(message.verdict)];
      json["train_step"] = message.train_step;
      json["ranks"] = message.ranks;
      json["world"] = message.world;
      break;
    case HostMessage::Kind::kCommit: json["agreed"] = message.agreed; break;
    case HostMessage::Kind::kAbort:
      json["verdict"] = kVerdicts[static_cast<std::size_t>(message.verdict)];
      break;
  }
  return JsonText(json);
}

Result<HostMessage> ParseHostMessageUntrusted(std::string_view text) {
  if (text.size() > kMaxMessageBytes) return Corruption("a message of a host is larger than 64 KiB");
  try {
    const Said json = TryParseJson(text, {kMaxMessageBytes, kMessageDepth});
    if (!json.is_object()) return Corruption("a message of a host is no JSON object");
    if (const std::int64_t version = WholeMember(json, "version", -1); version != 0)
      return Status(
          StatusCode::kUnsupportedVersion,
          fmt::format("found version {} of a message between hosts, this Luff knows 0; give all hosts of "
                      "the job the same Luff",
                      version));
    HostMessage message;
    message.kind = static_cast<HostMessage::Kind>(PlaceOf(kMessageKinds, TextMember(json, "kind"), "kind"));
    message.job = TextMember(json, "job");
    message.instance = TextMember(json, "instance");
    if (!IsHexId(message.job) || !IsHexId(message.instance))
      return Corruption("a message of a host has no 'job' or 'instance' of 32 hexadecimal digits");
    message.sequence = WholeNumber<std::uint64_t>(json, "sequence", 0);
    if (message.sequence == 0) return Corruption("a message of a host has no 'sequence'");
    message.created_unix_ns = WholeNumber<std::int64_t>(json, "created_unix_ns", -1);
    if (message.created_unix_ns < 0) return Corruption("a message of a host has no 'created_unix_ns'");
    message.reason = BoundedText(json, "reason", kMaxMessageText);
    if (message.kind != HostMessage::Kind::kPropose) {
      message.proposal = BoundedText(json, "proposal", kMaxProposalId);
      if (message.proposal.empty()) return Corruption("a message of a host is about no proposal");
    }
    switch (message.kind) {
      case HostMessage::Kind::kPropose:
        message.train_step = WholeNumber<std::int64_t>(json, "train_step", -1);
        message.finding = BoundedText(json, "finding", kMaxMessageText);
        if (message.train_step < 0) return Corruption("a proposal of a host has no 'train_step'");
        message.action = TextMember(json, "action");
        if (std::ranges::find(kRequestable, message.action) == std::end(kRequestable))
          return Corruption(
              "a proposal of a host is nothing that this Luff knows; give all hosts of the job the same "
              "Luff");
        message.cause = TextMember(json, "cause");
        if (!message.cause.empty() && !IsHexId(message.cause))
          return Corruption("the 'cause' of a proposal of a host is no 32 hexadecimal digits");
        if (const auto body = json.find("body"); body != json.end()) {
          if (!body->is_object()) return Corruption("the 'body' of a proposal of a host is no JSON object");
          message.body = JsonText(*body);
          if (message.body.size() > kMaxHostBody)
            return Corruption(
                fmt::format("the 'body' of a proposal of a host has more than {} bytes", kMaxHostBody));
        }
        break;
      case HostMessage::Kind::kAnswer:
        message.verdict =
            static_cast<HostMessage::Verdict>(PlaceOf(kVerdicts, TextMember(json, "verdict"), "verdict"));
        message.train_step = WholeNumber<std::int64_t>(json, "train_step", -1);
        message.world = WholeNumber<std::uint32_t>(json, "world", 0);
        for (const Said& rank : ListOf(json, "ranks", kMaxHostRanks))
          message.ranks.push_back(WholeNumber<std::uint32_t>(rank));
        break;
      case HostMessage::Kind::kCommit:
        for (const Said& one : ListOf(json, "agreed", kMaxHosts)) {
          if (!one.is_string() || !IsHexId(one.get_ref<const std::string&>()))
            return Corruption("a commit of a host names one that is none");
          message.agreed.push_back(one.get<std::string>());
        }
        break;
      case HostMessage::Kind::kAbort:
        message.verdict =
            static_cast<HostMessage::Verdict>(PlaceOf(kVerdicts, TextMember(json, "verdict"), "verdict"));
        break;
    }
    return message;
  } catch (const std::exception& error) {
    return Corruption(std::string("a message of a host: ") + error.what());
  }
}

HostLog::HostLog(std::string job, std::string instance, std::unique_ptr<HostPost> post,
                 std::unique_ptr<HostSeal> seal, bool says_why)
    : job_(std::move(job)),
      instance_(std::move(instance)),
      post_(std::move(post)),
      seal_(std::move(seal)),
      says_why_(says_why) {}

void HostLog::Recall(const Past& past) {
  heard_ = past.heard;
  for (const std::string& one : past.decided) decided_.push_back({one, Decision::kAbort, "", false});
}

void HostLog::Look(std::int64_t unix_ns) {
  unix_ns_ = unix_ns;
  post_->Look();
  for (const std::string& object : post_->Take()) Hear(object, unix_ns);
  if (!open_ && !held_) post_->Release();
}

bool HostLog::consented() const {
  const auto own = answers_.find(instance_);
  return own != answers_.end() && own->second.verdict == HostMessage::Verdict::kAccepted;
}

void HostLog::Hear(const std::string& object, std::int64_t unix_ns) {
  const auto text = seal_->Open(object, unix_ns);
  if (!text.ok()) return Refuse(std::string(text.status().message()));
  auto parsed = ParseHostMessageUntrusted(*text);
  if (!parsed.ok()) return Refuse(std::string(parsed.status().message()));
  HostMessage& message = *parsed;
  if (message.job != job_) return Refuse("it is of another job");
  const auto known = heard_.find(message.instance);
  if (known == heard_.end() && heard_.size() >= kMaxHosts)
    return Refuse(fmt::format("the job had {} hosts, and no more are heard", kMaxHosts));
  // A copy, which somebody put there, or the client after an answer was lost.
  if (known != heard_.end() && message.sequence <= known->second) return Doubt();
  heard_[message.instance] = message.sequence;
  if (message.kind == HostMessage::Kind::kPropose) {
    if (std::llabs(unix_ns - message.created_unix_ns) > kMostApartNs)
      return Refuse(
          "a proposal is of more than 10 min ago or ahead by this machine's clock; compare the clocks of the "
          "hosts");
    if (open_) {  // the first one counts, for all hosts
      decided_.push_back({message.id(), Decision::kAbort, "another host's proposal came first", true});
    } else {
      Past past{heard_, {}};
      past.heard[message.instance] = message.sequence - 1;
      for (const Decided& one : decided_) past.decided.push_back(one.proposal);
      past_ = std::make_shared<const Past>(std::move(past));
      open_ = std::move(message);
      answers_.clear();
      unsure_ = false;
    }
  } else if (forgotten_ && message.proposal == forgotten_->id()) {
    HearOfForgotten(message);
  } else if (!open_ || message.proposal != open_->id()) {
    if (!KnowsOf(message.proposal)) Doubt();  // of a time before this host took part: a copy, perhaps
  } else if (message.kind == HostMessage::Kind::kAnswer) {
    answers_.try_emplace(message.instance, message);
  } else if (message.kind == HostMessage::Kind::kAbort) {
    // Who has proposed decides once, so an abort of his tells that there is no commit.
    if (unsure_ && message.instance != open_->instance) return;
    Decide(Decision::kAbort, message.reason, message.verdict == HostMessage::Verdict::kLate);
  } else if (message.instance != open_->instance) {
    return Refuse("a commit is not by the host that has proposed it");
  } else if (!unsure_) {
    const bool ours = consented() && std::ranges::find(message.agreed, instance_) != message.agreed.end();
    Decide(ours ? Decision::kCommit : Decision::kAbort,
           ours ? message.reason
                : "the hosts have agreed without this one: does another job have the same name?",
           false);
  }
  while (decided_.size() > kMostDecided) decided_.pop_front();
}

void HostLog::Decide(Decision decision, std::string why, bool late) {
  decided_.push_back({open_->id(), decision, std::move(why), late});
  open_.reset();
  answers_.clear();
}

void HostLog::HearOfForgotten(const HostMessage& message) {
  const bool of_proposer = message.instance == forgotten_->instance;
  if (message.kind == HostMessage::Kind::kAbort && (of_proposer || !forgotten_unsure_)) {
    forgotten_.reset();
  } else if (message.kind == HostMessage::Kind::kCommit && of_proposer && !forgotten_unsure_) {
    if (std::ranges::find(message.agreed, instance_) != message.agreed.end())
      late_commit_ = std::move(forgotten_);
    forgotten_.reset();
  }
}

bool HostLog::KnowsOf(const std::string& proposal) const {
  return std::ranges::any_of(decided_, [&](const Decided& one) { return one.proposal == proposal; });
}

void HostLog::Forget(const std::string& why, bool consented) {
  if (!open_) return;
  if (consented) {
    forgotten_ = open_;
    forgotten_unsure_ = unsure_;
  }
  Decide(Decision::kAbort, why, false);
}

void HostLog::Refuse(std::string why) {
  Doubt();
  ++refused_;
  refused_why_ = std::move(why);
}

std::pair<std::size_t, std::string> HostLog::TakeRefused() {
  return {std::exchange(refused_, 0), std::exchange(refused_why_, {})};
}

HostLog::Decision HostLog::DecisionOf(const std::string& proposal, std::string* why, bool* late) const {
  for (const Decided& one : decided_) {
    if (one.proposal != proposal) continue;
    *why = one.why;
    *late = one.late;
    return one.decision;
  }
  return Decision::kOpen;
}

HostLog::Answers HostLog::Count(std::uint32_t world, std::string* why, std::int64_t* reached) const {
  std::set<std::uint32_t> agreed;
  bool late = false;
  std::string refused;
  for (const auto& [instance, answer] : answers_) {
    *reached = std::max(*reached, answer.train_step);
    late = late || answer.verdict == HostMessage::Verdict::kLate;
    if (answer.verdict == HostMessage::Verdict::kRefused)
      refused = answer.reason.empty() ? "a host has refused" : answer.reason;
    if (answer.world != world)
      refused = fmt::format("one host knows of {} ranks, another of {}: does another job have the same name?",
                            world, answer.world);
    for (const std::uint32_t rank : answer.ranks) {
      if (!agreed.insert(rank).second)
        refused =
            fmt::format("two hosts say that they have rank {}: does another job have the same name?", rank);
      if (rank >= world) refused = fmt::format("a host says that it has rank {} of {}", rank, world);
    }
  }
  if (!refused.empty()) return *why = refused, Answers::kRefused;
  if (late) return *why = "every proposed step was too late", Answers::kLate;
  if (agreed.size() == world) return Answers::kAll;
  std::uint32_t missing = 0;
  while (agreed.contains(missing)) ++missing;
  *why = fmt::format(
      "rank {} of {} has not answered: its host is not reached, has no `luff run --sync` of this "
      "job, has a clock that differs by more than 10 min, or its rank has ended",
      missing, world);
  return Answers::kOpen;
}

Result<std::uint64_t> HostLog::Send(HostMessage message) {
  message.job = job_;
  message.instance = instance_;
  message.sequence = sent_ + 1;
  message.created_unix_ns = unix_ns_;
  if (message.kind == HostMessage::Kind::kPropose) {
    if (!says_why_) message.reason = "why stands on the host that has asked, since the run is encrypted";
    message.cause = CauseKey(message.cause);
  }
  // What is no UTF-8 takes three bytes for one.
  if (message.reason.size() > kMaxMessageText / 3 - 1) {
    std::size_t end = kMaxMessageText / 3 - 1;
    // Not within a character.
    for (int i = 0; i < 3 && (static_cast<unsigned char>(message.reason[end]) & 0xC0U) == 0x80U; ++i) --end;
    message.reason.resize(end);
  }
  if (message.kind == HostMessage::Kind::kCommit) {
    for (const auto& [instance, answer] : answers_) message.agreed.push_back(instance);
  }
  LUFF_ASSIGN_OR_RETURN(const std::string object, seal_->Seal(HostMessageText(message)));
  LUFF_RETURN_IF_ERROR(post_->Send(message.sequence, object));
  return sent_ = message.sequence;
}

}  // namespace luff::actions
