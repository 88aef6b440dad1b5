#include "server/audit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/interrupted.h"
#include "base/json.h"
#include "base/owned_fd.h"
#include "base/posix_file.h"
#include "luff/base/env.h"

namespace luff::server {
namespace {

constexpr std::size_t kMaxText = 256;
constexpr std::int64_t kQuotaNs = 60'000'000'000;

std::string CutText(std::string_view text) { return std::string(text.substr(0, kMaxText)); }

/// What a line calls it; "" for what needs none.
std::string_view EventOf(const Request& request, const Response& response, bool values) {
  const bool session = request.path == "/api/v1/session";
  if (session && request.method == "POST") return response.status == 200 ? "log-in" : "log-in refused";
  switch (response.status) {
    case 401:
    case 403:
    case 421:
    case 429: return "refused";
    default: break;
  }
  if (session) return request.method == "DELETE" ? "log-out" : "";
  if (request.method == "POST") return response.status < 300 ? "asked" : "refused";
  return values && response.status == 200 ? "values" : "";
}

}  // namespace

Status AuditFile::Append(const std::string& line) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  OwnedFd file(Uninterrupted([&] { return open(path_.c_str(), kFlags, 0600); }));
  struct stat info{};
  if (!file.valid() || fstat(file.get(), &info) != 0) return FromErrno(errno, "open", path_);
  if (!S_ISREG(info.st_mode)) return InvalidArgument("this is no regular file: " + path_);
  if ((info.st_mode & 077) != 0)
    return FailedPrecondition("others can read or write this file; chmod 600 it: " + path_);
  if (static_cast<std::uint64_t>(info.st_size) + line.size() > kMaxBytes) {
    Env& env = Env::Real();
    for (int i = kOlder; i > 0; --i) {
      const std::string from = i == 1 ? path_ : fmt::format("{}.{}", path_, i - 1);
      const Status moved = env.Rename(from, fmt::format("{}.{}", path_, i));
      if (!moved.ok() && moved.code() != StatusCode::kNotFound) return moved;
    }
    file = OwnedFd(Uninterrupted([&] { return open(path_.c_str(), kFlags, 0600); }));
    if (!file.valid()) return FromErrno(errno, "open", path_);
  }
  return WriteAll(file.get(), line) ? Status::Ok() : FromErrno(errno, "write", path_);
}

Status AuditFile::Try() {
  if (path_.empty()) return Status::Ok();
  LUFF_RETURN_IF_ERROR(Env::Real().MakeDirectories(std::filesystem::path(path_).parent_path().string()));
  const MutexLock lock(mutex_);
  return Append("");
}

bool AuditFile::TooManyStrangers(std::int64_t now_ns, std::uint64_t* left_out) {
  if (now_ns / kQuotaNs != minute_) {
    *left_out = strangers_ > kStrangers ? strangers_ - kStrangers : 0;
    minute_ = now_ns / kQuotaNs;
    strangers_ = 0;
  }
  return ++strangers_ > kStrangers;
}

void AuditFile::Answered(const Request& request, const Response& response, const Visitor* visitor,
                         bool values) noexcept {
  if (path_.empty()) return;
  try {
    const std::string_view event = EventOf(request, response, values);
    if (event.empty()) return;
    const std::int64_t now = Env::Real().NowUnixNs();
    nlohmann::ordered_json json{{"unix_ns", now},
                                {"event", event},
                                {"who", visitor == nullptr ? "" : CutText(visitor->name)},
                                {"from", request.from},
                                {"method", CutText(request.method)},
                                {"path", CutText(request.path)},  // without its parameters
                                {"status", response.status}};
    const MutexLock lock(mutex_);
    std::uint64_t left_out = 0;
    // Nobody in particular may not drive out what is worth keeping.
    if (response.status >= 400 && visitor == nullptr && TooManyStrangers(now, &left_out)) return;
    if (left_out > 0) json["left_out"] = left_out;
    const Status written = Append(JsonText(json) + "\n");
    if (written.ok() || said_) return;
    said_ = true;
    fmt::print(stderr, "luff: the audit is not written: {}\n", written.message());
  } catch (const std::exception&) {
    return;  // no memory: the line is lost
  }
}

Status AuditFile::Write(std::string_view event, std::string_view who, std::string_view detail) noexcept {
  if (path_.empty()) return Status::Ok();
  try {
    LUFF_RETURN_IF_ERROR(Env::Real().MakeDirectories(std::filesystem::path(path_).parent_path().string()));
    const nlohmann::ordered_json json{{"unix_ns", Env::Real().NowUnixNs()},
                                      {"event", event},
                                      {"who", CutText(who)},
                                      {"detail", CutText(detail)}};
    const MutexLock lock(mutex_);
    return Append(JsonText(json) + "\n");
  } catch (const std::exception& error) {
    return IoError(error.what());
  }
}

}  // namespace luff::server
