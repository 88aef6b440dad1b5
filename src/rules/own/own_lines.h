#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "luff/base/result.h"
#include "luff/rules/finding.h"

namespace luff::rules {

/// One line from the process of a user's own rule (docs/spec/rule-child.md).
struct OwnLine {
  enum class Say : std::uint8_t { kReady, kFinding, kHeal, kDone, kState, kEnded, kError };
  Say say = Say::kReady;
  Finding finding;                           // kFinding; kHeal: its cause, tensor and last step
  std::size_t number = 0;                    // kDone
  std::optional<std::string> raised, lacks;  // kDone
  std::optional<std::string> state, why;     // kState: as JSON, or why it is unavailable; neither: no state
  std::string message;                       // kError
  bool again = false;                        // kError: a new process may succeed
};

/// Errors: kCorruption for a line that breaks the protocol.
[[nodiscard]] Result<OwnLine> ParseOwnLineUntrusted(std::string_view line);

}  // namespace luff::rules
