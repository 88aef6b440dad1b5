#include "luff/actions/audit.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/interrupted.h"
#include "base/json.h"
#include "luff/base/env.h"

namespace luff::actions {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::uint64_t kMaxFileBytes = 256ULL << 20;
constexpr std::size_t kNamesInRun = 3;  // RUN/rules/luff/actions.jsonl
constexpr std::size_t kMaxLineBytes = 2ULL << 20;
constexpr std::size_t kMaxDepth = 32;
constexpr std::size_t kMaxSilences = 10'000;

bool IsSilence(const AuditLine& line) {
  return line.event == "silenced" || line.event == "limited" || line.event == "dropped";
}

}  // namespace

Result<AuditLine> ParseAuditLineUntrusted(std::string_view text) {
  if (text.size() > kMaxLineBytes) return Corruption("a line of the audit is larger than 2 MiB");
  try {
    const Json json = TryParseOrderedJson(text, {kMaxLineBytes, kMaxDepth});
    if (!json.is_object()) return Corruption("a line of the audit is no JSON object, or too deep");
    AuditLine line;
    line.unix_ns = WholeMember(json, "unix_ns", 0);
    line.id = TextMember(json, "id");
    line.action = TextMember(json, "action");
    line.kind = TextMember(json, "kind");
    line.finding = TextMember(json, "finding");
    line.cause = TextMember(json, "cause");
    line.event = TextMember(json, "event");
    line.attempt = static_cast<int>(WholeMember(json, "attempt", 0));
    line.train_step = WholeMember(json, "train_step", -1);
    line.detail = TextMember(json, "detail");
    if (const auto at = json.find("document"); at != json.end() && at->is_object())
      line.document = JsonText(*at);
    if (line.event.empty()) return Corruption("a line of the audit without an event");
    return line;
  } catch (const std::exception& error) {
    return Corruption(std::string("a line of the audit: ") + error.what());
  }
}

Audit::Audit(std::string path) : path_(std::move(path)) {
  const Result<std::string> text = ReadRegular(path_, kMaxFileBytes, kNamesInRun);
  if (!text.ok()) return;
  torn_ = !text->empty() && text->back() != '\n';
  std::size_t from = 0;
  for (std::size_t end = 0; (end = text->find('\n', from)) != std::string::npos; from = end + 1) {
    Result<AuditLine> line = ParseAuditLineUntrusted(std::string_view(*text).substr(from, end - from));
    if (!line.ok()) continue;
    silences_ += IsSilence(*line) ? 1 : 0;
    earlier_.push_back(std::move(line).value());
  }
}

bool Audit::Append(AuditLine line) {
  if (IsSilence(line) && ++silences_ > kMaxSilences) return true;
  try {
    Json json;
    json["unix_ns"] = line.unix_ns != 0 ? line.unix_ns : Env::Real().NowUnixNs();
    json["id"] = line.id;
    json["action"] = line.action;
    json["kind"] = line.kind;
    json["finding"] = line.finding;
    json["cause"] = line.cause;
    json["event"] = line.event;
    if (line.attempt > 0) json["attempt"] = line.attempt;
    if (line.train_step >= 0) json["train_step"] = line.train_step;
    if (!line.detail.empty()) json["detail"] = line.detail;
    if (!line.document.empty()) json["document"] = TryParseOrderedJson(line.document);
    std::string text = JsonText(json) + "\n";
    if (std::exchange(torn_, false)) text.insert(0, "\n");
    // If this fails, opening the file fails as well, and that error is reported.
    static_cast<void>(Env::Real().MakeDirectories(std::filesystem::path(path_).parent_path().string()));
    constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
    const int file = Uninterrupted([&] { return open(path_.c_str(), kFlags, 0600); });
    const ssize_t written =
        file >= 0 ? Uninterrupted([&] { return write(file, text.data(), text.size()); }) : -1;
    const int error = errno;
    if (file >= 0) close(file);
    if (written == static_cast<ssize_t>(text.size())) return true;
    torn_ = written > 0;
    if (error_.empty()) error_ = written < 0 ? std::strerror(error) : "the disk is full";
  } catch (const std::exception& error) {
    if (error_.empty()) error_ = error.what();
  }
  return false;
}

}  // namespace luff::actions
