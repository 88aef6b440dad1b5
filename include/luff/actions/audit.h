#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"

/// The audit of actions in a run: rules/luff/actions.jsonl (docs/spec/control.md).
namespace luff::actions {

struct AuditLine {
  std::int64_t unix_ns = 0;  // 0: now
  std::string id, action, kind, finding, cause, event;
  int attempt = 0;               // 0: none
  std::int64_t train_step = -1;  // -1: none
  std::string detail;
  std::string document;  // "begun": the JSON to deliver, so that it can be delivered again; else ""
};

/// Parses one line. Bounds: 2 MiB, depth 32.
[[nodiscard]] Result<AuditLine> ParseAuditLineUntrusted(std::string_view line);

/// **Thread-compatible.** Appends lines to the file. After a crash a torn last line is ignored.
class Audit {
 public:
  /// Reads the existing lines. The first new line creates the file, and its folder if missing.
  explicit Audit(std::string path);

  [[nodiscard]] const std::vector<AuditLine>& earlier() const noexcept { return earlier_; }
  /// False if a line could not be written; the first failure is reported.
  bool Append(AuditLine line);
  [[nodiscard]] const std::string& error() const noexcept { return error_; }

 private:
  const std::string path_;
  std::vector<AuditLine> earlier_;
  std::string error_;
  bool torn_ = false;         // the file does not end with a line break
  std::size_t silences_ = 0;  // lines that report only silences
};

}  // namespace luff::actions
