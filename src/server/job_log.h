#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"

/// What a job has printed: RUN/log (docs/spec/run-format.md), written by `luff run --log`.
namespace luff::server {

/// Places in standard output and standard error, in bytes since the job began.
using LogPlace = std::array<std::uint64_t, 2>;

/// When the streams were how long. Times ascend.
struct LogMark {
  std::int64_t unix_ns = 0;
  LogPlace size{};
};

/// RUN/log/times holds marks, one a line: "UNIX_NS OUT ERR". Lines that are none are skipped.
[[nodiscard]] std::vector<LogMark> ParseLogTimesUntrusted(std::string_view text);
/// RUN/log/dropped holds the first byte that is left of each stream: "OUT ERR". Zeros for anything else.
[[nodiscard]] LogPlace ParseLogDroppedUntrusted(std::string_view text);

struct LogLine {
  std::uint8_t stream = 0;   // 0: standard output, 1: standard error
  std::uint64_t offset = 0;  // of its first byte
  std::int64_t unix_ns = 0;  // when it was seen, at most a second after it was written; 0: not known
  std::string text;   // harmless: without control characters and escape sequences, at most kMaxLine bytes
  bool whole = true;  // false: the job may go on with this line
};

struct LogPage {
  LogPlace dropped{}, size{};  // what is left of the streams begins and ends there
  LogPlace from{}, next{};     // what this page covers
  std::vector<LogLine> lines;  // by time
};

inline constexpr std::size_t kMaxLine = 4096;
/// A part of the log: at most `bytes` of each stream from `from` on, or the last ones if there is no `from`.
/// `before`: the part that ends at `from` instead. Errors: kNotFound if the run has no log; kCorruption (a
/// link, or no regular file); kIo.
[[nodiscard]] Result<LogPage> ReadLog(const std::string& run, std::optional<LogPlace> from, bool before,
                                      std::uint64_t bytes);

/// A line without what would control a terminal: escape sequences are left out, and of a line that was
/// written over (with carriage returns) only the last text stays.
[[nodiscard]] std::string PlainLine(std::string_view line);

}  // namespace luff::server
