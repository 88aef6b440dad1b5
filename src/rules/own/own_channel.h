#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"

namespace luff::rules {

/// The way to the process that runs a rule on one run: a process of its own, or a stream of one that many
/// runs share. Never waits, unless told so. **Thread-compatible.**
class OwnChannel {
 public:
  virtual ~OwnChannel() = default;

  /// Queues a line, a JSON object. False if too much is queued.
  virtual bool Send(std::string_view line) = 0;
  /// Appends lines that have arrived. Waits at most `wait_ms` for something to happen. True if anything came.
  virtual bool Receive(int wait_ms, std::vector<std::string>* lines) = 0;

  struct End {
    std::string how;   // "" while it runs; then how it ended, e.g. "exit code 1"
    bool ours = true;  // it ended while it worked for this run
  };
  [[nodiscard]] virtual End Ended() = 0;
  /// Steps that may be sent and not answered.
  [[nodiscard]] virtual std::size_t window() const noexcept = 0;
  /// What takes too long, or too much memory, is ended by the channel itself.
  [[nodiscard]] virtual bool has_limits() const noexcept = 0;
  [[nodiscard]] virtual std::size_t ResidentBytes() const { return 0; }
  /// Whether it sent a line that is too long.
  [[nodiscard]] virtual bool broken() const noexcept { return false; }
  /// The last line that the process printed; "" if none.
  [[nodiscard]] virtual std::string LastWords() const = 0;
  /// Why it is not kept from sending signals to others; "" if it is.
  [[nodiscard]] virtual std::string unshielded() const = 0;
};

}  // namespace luff::rules
