#include "luff/actions/requests.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "base/nearest_names.h"
#include "luff/base/regex.h"
#include "luff/store/owner.h"

namespace luff::actions {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t kMaxReason = 4096, kMaxArguments = 256 << 10;
constexpr std::int64_t kMaxForSteps = 1'000'000'000;

Asked AskedOf(const store::ControlRecord& record) {
  Asked asked;
  asked.number = record.number;
  asked.reason = record.reason;
  asked.author = record.author;
  asked.key_id = record.key_id;
  asked.signature = record.signature;
  asked.asked_unix_ns = record.created_unix_ns;
  Json body = TryParseOrderedJson(record.body);
  if (!body.is_object()) return asked;
  asked.action = TextMember(body, "action");
  body.erase("action");
  asked.object = static_cast<std::uint64_t>(std::max<std::int64_t>(0, WholeMember(body, "object", 0)));
  body.erase("object");
  if (!body.empty()) asked.arguments = JsonText(body);
  return asked;
}

/// The number of the request that a proposal carries out; 0: none.
std::uint64_t RequestOf(const store::ControlRecord& proposal) {
  const Json body = TryParseOrderedJson(proposal.body);
  const auto at = body.is_object() ? body.find("request") : body.end();
  return body.is_object() && at != body.end() && at->is_number_unsigned() ? at->get<std::uint64_t>() : 0;
}

Status CheckCapture(const Json& arguments) {
  const auto collections = arguments.find("collections");
  if (collections == arguments.end() || !collections->is_array() || collections->empty())
    return InvalidArgument("nothing to record: 'collections' is missing, a list of collections");
  for (const Json& collection : *collections) {
    if (!collection.is_object()) return InvalidArgument("a collection is no JSON object");
    for (const char* key : {"include", "exclude"}) {
      for (const Json& pattern : collection.value(key, Json::array())) {
        if (pattern.is_string()) LUFF_RETURN_IF_ERROR(Regex::Compile(pattern.get<std::string>()).status());
      }
    }
  }
  const auto steps = arguments.find("for_steps");
  if (steps == arguments.end()) return Status::Ok();
  const bool good = steps->is_number_integer() && steps->get<std::int64_t>() >= 1 &&
                    steps->get<std::int64_t>() <= kMaxForSteps;
  return good ? Status::Ok()
              : InvalidArgument(fmt::format("'for_steps' is {}, expected a whole number from 1 to {}",
                                            JsonText(*steps), kMaxForSteps));
}

Status CheckFactor(const Json& arguments) {
  const auto factor = arguments.find("factor");
  const bool good = factor != arguments.end() && factor->is_number() && factor->get<double>() > 0 &&
                    factor->get<double>() < 1;
  return good ? Status::Ok() : InvalidArgument("'factor' is missing, a number between 0 and 1");
}

Status CheckRollback(const Json& arguments) {
  return WholeMember(arguments, "step", -1) >= 0
             ? Status::Ok()
             : InvalidArgument("'step' is missing, the TRAIN step at which the trouble began, from 0");
}

Status CheckTrace(const Json& arguments) {
  constexpr std::int64_t kMostSteps = 10;
  const auto steps = arguments.find("steps");
  const bool good = steps != arguments.end() && steps->is_number_integer() &&
                    steps->get<std::int64_t>() >= 1 && steps->get<std::int64_t>() <= kMostSteps;
  if (!good)
    return InvalidArgument(fmt::format("'steps' is missing, a whole number from 1 to {}", kMostSteps));
  const auto stacks = arguments.find("stacks");
  return stacks == arguments.end() || stacks->is_boolean()
             ? Status::Ok()
             : InvalidArgument("'stacks' is neither true nor false");
}

}  // namespace

std::string_view StateName(Asked::State state) noexcept {
  constexpr std::array<std::string_view, 6> kNames = {"asked", "proposed", "committed",
                                                      "done",  "refused",  "failed"};
  return kNames[static_cast<std::size_t>(state)];
}

std::string Author() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = 0;
  std::vector<char> memory(16 << 10);
  passwd entry{};
  passwd* found = nullptr;
  const bool known =
      getpwuid_r(geteuid(), &entry, memory.data(), memory.size(), &found) == 0 && found != nullptr;
  return fmt::format("{}@{}", known ? std::string(found->pw_name) : fmt::format("user {}", geteuid()),
                     host.data());
}

Status CheckRequest(const Asked& asked) {
  if (std::find(std::begin(kRequestable), std::end(kRequestable), asked.action) == std::end(kRequestable)) {
    const std::vector<std::string> known(std::begin(kRequestable), std::end(kRequestable));
    return InvalidArgument(fmt::format("'{}' is nothing that can be asked for{}; there are {}", asked.action,
                                       NearestText(asked.action, known), fmt::join(known, ", ")));
  }
  if (asked.reason.size() > kMaxReason)
    return InvalidArgument(fmt::format("the reason is longer than {} bytes", kMaxReason));
  if (asked.arguments.size() > kMaxArguments)
    return InvalidArgument(fmt::format("the arguments are longer than {} bytes", kMaxArguments));
  const Json arguments = asked.arguments.empty() ? Json::object() : TryParseOrderedJson(asked.arguments);
  if (!arguments.is_object()) return InvalidArgument("the arguments are no JSON object");
  if (asked.action == "capture") return CheckCapture(arguments);
  if (asked.action == "lower_lr") return CheckFactor(arguments);
  if (asked.action == "rollback") return CheckRollback(arguments);
  if (asked.action == "trace") return CheckTrace(arguments);
  return Status::Ok();
}

Result<store::ControlRecord> RequestRecord(std::string_view action, const std::string& arguments,
                                           const std::string& reason, const std::string& author) {
  Asked asked;
  asked.action = action;
  asked.arguments = arguments;
  asked.reason = reason;
  LUFF_RETURN_IF_ERROR(CheckRequest(asked));
  Json body{{"action", action}};
  if (!arguments.empty()) body.update(TryParseOrderedJson(arguments));
  body["action"] = action;
  store::ControlRecord record;
  record.kind = "request";
  record.reason = reason;
  record.author = author;
  record.body = JsonText(body);
  return record;
}

Result<std::uint64_t> Ask(const std::string& run, std::string_view action, const std::string& arguments,
                          const std::string& reason, const std::string& author,
                          const store::RecordSigner& sign) {
  LUFF_ASSIGN_OR_RETURN(store::ControlRecord record, RequestRecord(action, arguments, reason, author));
  LUFF_RETURN_IF_ERROR(store::CheckOwner(run));
  if (sign) LUFF_RETURN_IF_ERROR(sign(&record));
  return store::WriteControl(run, record);
}

std::vector<Asked> RequestsIn(std::span<const store::ControlRecord> records) {
  std::vector<Asked> all;
  std::map<std::uint64_t, std::size_t> at;        // request -> place in `all`
  std::map<std::uint64_t, std::size_t> proposed;  // open proposal -> place in `all`
  for (const store::ControlRecord& record : records) {
    if (record.kind == "request") {
      at[record.number] = all.size();
      all.push_back(AskedOf(record));
    } else if (record.kind == "reply") {
      const auto place = at.find(record.proposal);
      if (place == at.end() || all[place->second].answered()) continue;
      Asked& asked = all[place->second];
      asked.state = record.phase == "done"      ? Asked::State::kDone
                    : record.phase == "refused" ? Asked::State::kRefused
                                                : Asked::State::kFailed;
      if (record.train_step >= 0) asked.train_step = record.train_step;
      asked.why = record.reason;
    } else if (record.phase == "propose") {
      const auto place = at.find(RequestOf(record));
      if (place == at.end() || all[place->second].answered()) continue;
      Asked& asked = all[place->second];
      asked.state = Asked::State::kProposed;
      asked.proposal = record.number;
      asked.train_step = record.train_step;
      proposed[record.number] = place->second;
    } else if (const auto place = proposed.find(record.proposal); place != proposed.end()) {
      Asked& asked = all[place->second];
      if (!asked.answered())
        asked.state = record.phase == "commit" ? Asked::State::kCommitted : Asked::State::kAsked;
      proposed.erase(place);
    }
  }
  return all;
}

}  // namespace luff::actions
