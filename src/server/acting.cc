#include "server/acting.h"

#include <algorithm>
#include <exception>
#include <system_error>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "keys/gate.h"
#include "luff/actions/coordinate.h"
#include "luff/actions/marks.h"
#include "luff/actions/requests.h"
#include "luff/base/env.h"
#include "luff/store/owner.h"
#include "server/label_api.h"

namespace luff::server {
namespace {

constexpr JsonLimits kBody{.bytes = 64 << 10, .depth = 8};
constexpr std::size_t kMaxShown = 100;
constexpr std::string_view kAskTheOwner =
    "Only the owner of a run can command its job: let that user do it (luff stop, luff capture, luff mark, "
    "luff "
    "label), or run luff serve.";
constexpr std::int64_t kLongestNs = 60'000'000'000;  // that an answer is waited for

/// Who asked: the user of the server, and the name of the token or of the user whom the proxy signed on.
std::string AuthorOf(const Visitor& visitor) {
  if (visitor.name.empty()) return actions::Author() + " (luff serve)";
  return fmt::format("{} (luff serve: {})", actions::Author(), visitor.name);
}

Response Written(std::uint64_t number) {
  return {.status = 202, .body = fmt::format(R"({{"number":{}}})", number)};
}

Response PostMark(const ListedRun& listed, const Request& request, const std::string& author) {
  const nlohmann::json body = TryParseJson(request.body, kBody);
  if (!body.is_object())
    return Problem(400, "Bad request", R"(expected {"finding": "...", "as": "acknowledge"})");
  store::ControlRecord record;
  record.kind = "mark";
  record.finding = TextMember(body, "finding");
  record.reason = TextMember(body, "note");
  record.body = JsonText(body);
  Result<actions::Mark> mark = actions::MarkOf(record);
  if (!mark.ok()) return ProblemOf(mark.status());
  mark->author = author;
  const Result<std::uint64_t> number = actions::SetMark(listed.path, *mark);
  return number.ok() ? Written(*number) : ProblemOf(number.status());
}

}  // namespace

Result<Response> RequestsOf(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)run, (void)request;
  const auto read = store::ReadControl(listed.path, 0, nullptr);  // what smdebug wrote has no such log
  const std::vector<store::ControlRecord> records = read.ok() ? *read : std::vector<store::ControlRecord>();
  const Status ours = store::CheckOwner(listed.path);
  nlohmann::ordered_json json{
      {"requests", nlohmann::ordered_json::array()},
      {"marks", nlohmann::ordered_json::array()},
      {"refused", ours.ok() ? "" : fmt::format("{} {}", ours.message(), kAskTheOwner)}};
  auto all = actions::RequestsIn(records);
  std::ranges::reverse(all);
  for (const actions::Asked& asked : all) {
    if (json["requests"].size() == kMaxShown) break;
    json["requests"].push_back(
        {{"number", asked.number},
         {"action", asked.action},
         {"arguments", TryParseOrderedJson(asked.arguments.empty() ? "{}" : asked.arguments)},
         {"reason", asked.reason},
         {"author", asked.author},
         {"asked_unix_ns", asked.asked_unix_ns},
         {"state", actions::StateName(asked.state)},
         {"train_step", asked.train_step},
         {"why", asked.why}});
  }
  for (const auto& [finding, mark] : actions::MarksIn(records)) {
    json["marks"].push_back({{"finding", finding},
                             {"as", actions::WordOf(mark.as)},
                             {"until_step", mark.until_step},
                             {"note", mark.note},
                             {"author", mark.author},
                             {"unix_ns", mark.unix_ns}});
  }
  return Response{.body = JsonText(json)};
}

Acting::~Acting() {
  leave_.store(true);
  MutexLock lock(mutex_);
  for (Coordinating& one : threads_) one.thread.join();
}

Response Acting::Post(const ListedRun& listed, std::string_view what, const Request& request,
                      const Visitor& visitor) {
  if (!PlaceOf(listed).ok() || !IsStill(listed)) {
    return Problem(404, "Gone", "another run, or none, is where this one was: " + listed.path,
                   "Go back to the list of runs.");
  }
  if (const Status ours = store::CheckOwner(listed.path); ours.code() == StatusCode::kFailedPrecondition)
    return Problem(403, "Not ours to command", ours.message(), kAskTheOwner);
  const std::string author = AuthorOf(visitor);
  if (what == "labels") return PostLabel(listed, request, author);
  return what == "requests" ? PostRequest(listed, request, author) : PostMark(listed, request, author);
}

Response Acting::PostRequest(const ListedRun& listed, const Request& request, const std::string& author) {
  nlohmann::json body = TryParseJson(request.body, kBody);
  if (!body.is_object() || !body.contains("action"))
    return Problem(400, "Bad request", R"(expected {"action": "stop", "reason": "..."})");
  const std::string action = TextMember(body, "action");
  const std::string reason = TextMember(body, "reason");
  body.erase("action");
  body.erase("reason");
  if (!actions::IsTraining(listed.path))
    return Problem(409, "Nobody trains", "no process trains into this run now, so nobody could do it");
  MutexLock lock(mutex_);
  JoinThoseThatEnded();
  const bool watched = store::SupervisorLock::IsTaken(listed.path);
  if (!watched && threads_.size() >= kMaxThreads)
    return Problem(503, "Too much at once", "too many requests wait for their answers",
                   "Try again in a minute.");
  const Result<std::uint64_t> number =
      actions::Ask(listed.path, action, body.empty() ? "" : JsonText(body), reason, author);
  if (!number.ok()) return ProblemOf(number.status());
  if (!watched) Coordinate(listed.path, *number);
  return Written(*number);
}

void Acting::Coordinate(const std::string& run, std::uint64_t request) {
  Coordinating& one = threads_.emplace_back();
  const auto coordinate = [this, run, request, &one]() noexcept {
    const std::int64_t until = Env::Real().NowMonotonicNs() + kLongestNs;
    try {
      const Status done = actions::Coordinate(
          run, request, [&] { return leave_.load() || Env::Real().NowMonotonicNs() >= until; },
          keys::GateOfRun(run));
      static_cast<void>(done);         // the log says what became of it
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no memory; the request gets old
    }
    one.over.store(true);
  };
  try {
    one.thread = std::thread(coordinate);
  } catch (const std::system_error&) {  // no thread: the request waits for somebody else, and gets old
    threads_.pop_back();
  }
}

void Acting::JoinThoseThatEnded() {
  std::erase_if(threads_, [](Coordinating& one) {
    if (!one.over.load()) return false;
    one.thread.join();
    return true;
  });
}

}  // namespace luff::server
