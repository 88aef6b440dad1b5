#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "luff/base/mutex.h"
#include "luff/base/result.h"
#include "server/message.h"
#include "server/secrets.h"

/// Who did what (docs/serve.md, "What is written down"): lines of JSON in a file that only its owner can
/// read. Never a token.
namespace luff::server {

/// **Thread-safe.** The file is kept below kMaxBytes; older ones are FILE.1 to FILE.4.
class AuditFile {
 public:
  /// `path`: "" for none. Makes its directory.
  explicit AuditFile(std::string path) : path_(std::move(path)) {}
  /// Whether it can be written. Errors: kFailedPrecondition if others can read it, kInvalidArgument for what
  /// is no regular file, those of the file system.
  [[nodiscard]] Status Try() LUFF_EXCLUDES(mutex_);
  /// Writes what became of a request, if it is worth a line: log-ins, refusals, what was asked of jobs,
  /// values that were read. A line that cannot be written is lost, and said once on standard error.
  void Answered(const Request& request, const Response& response, const Visitor* visitor,
                bool values) noexcept LUFF_EXCLUDES(mutex_);
  /// A line of something else. `who`: a name, or "".
  [[nodiscard]] Status Write(std::string_view event, std::string_view who, std::string_view detail) noexcept
      LUFF_EXCLUDES(mutex_);

  static constexpr std::uint64_t kMaxBytes = 8 << 20;
  static constexpr int kOlder = 4;
  static constexpr std::uint64_t kStrangers = 60;  // lines a minute of those who are nobody

 private:
  [[nodiscard]] Status Append(const std::string& line) LUFF_REQUIRES(mutex_);
  [[nodiscard]] bool TooManyStrangers(std::int64_t now_ns, std::uint64_t* left_out) LUFF_REQUIRES(mutex_);

  const std::string path_;
  Mutex mutex_;
  std::int64_t minute_ LUFF_GUARDED_BY(mutex_) = 0;
  std::uint64_t strangers_ LUFF_GUARDED_BY(mutex_) = 0;
  bool said_ LUFF_GUARDED_BY(mutex_) = false;
};

}  // namespace luff::server
