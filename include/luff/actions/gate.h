#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "luff/base/result.h"
#include "luff/store/control.h"

namespace luff::actions {

/// Decides which requests, marks and labels count, where a job has keys (`[control] keys` of luff.toml). The
/// room `keys` implements it, with libsodium, which only the executable has. **Thread-compatible.**
class Gate {
 public:
  virtual ~Gate() = default;
  /// The run whose commands are checked; call it before the others.
  virtual void SetRun(const std::string& run_id) = 0;
  /// Checks a record of kind request, mark or label. Returns it as it was signed, which is not always what
  /// its other members say; from then on a copy of it is a replay. Errors: kFailedPrecondition, with why it
  /// does nothing and what to do.
  [[nodiscard]] virtual Result<store::ControlRecord> Admit(const store::ControlRecord& record,
                                                           std::int64_t now_unix_ns) = 0;
  /// Takes note of a record that has its answer, so that a copy of it is a replay.
  virtual void Remember(const store::ControlRecord& record) = 0;
  /// The record that a request from a bucket makes; Admit() takes it. Same errors.
  [[nodiscard]] virtual Result<store::ControlRecord> Open(std::string_view object,
                                                          std::int64_t now_unix_ns) = 0;
  /// The body of the record `keys`: whose signatures count, and for what. Nothing of it is secret.
  [[nodiscard]] virtual std::string KeysJson() const = 0;
};

}  // namespace luff::actions
