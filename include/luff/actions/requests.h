#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"
#include "luff/store/control.h"

/// What people ask of a running job: records of kind "request" in the run's control log. Whoever coordinates
/// the run answers each once, with a record of kind "reply" (docs/spec/control.md).
namespace luff::actions {

/// What can be asked for.
inline constexpr std::string_view kRequestable[] = {"stop",       "capture",  "lower_lr",
                                                    "skip_batch", "rollback", "trace"};

/// A request, and what has become of it.
struct Asked {
  enum class State : std::uint8_t { kAsked, kProposed, kCommitted, kDone, kRefused, kFailed };
  std::uint64_t number = 0;  // of its record
  std::string action;        // one of kRequestable; another word in a log that a newer version wrote
  std::string arguments;     // JSON object text, by action: "capture": collections, for_steps; "lower_lr":
                             // factor; "rollback": step; "trace": steps, stacks
  std::string reason;        // for people, or ""
  std::string author;
  std::string key_id, signature;  // "": not signed. What is here was not checked
  std::uint64_t object = 0;       // its number in the bucket that it came from; 0: it was asked here
  std::int64_t asked_unix_ns = 0;
  State state = State::kAsked;
  std::uint64_t proposal = 0;    // number of its latest proposal; 0: none
  std::int64_t train_step = -1;  // of that proposal: the count of TRAIN steps after which all ranks act
  std::string why;               // kRefused, kFailed: why. kDone: a remark, or ""

  [[nodiscard]] bool answered() const noexcept { return state >= State::kDone; }
};
/// "asked", "proposed", "committed", "done", "refused", "failed".
[[nodiscard]] std::string_view StateName(Asked::State state) noexcept;

/// "name@host": the user and machine of this process, for records and audits.
[[nodiscard]] std::string Author();

/// The record of a request. `arguments`: JSON object text, or "". Errors: kInvalidArgument (an unknown
/// action, arguments that do not fit it).
[[nodiscard]] Result<store::ControlRecord> RequestRecord(std::string_view action,
                                                         const std::string& arguments,
                                                         const std::string& reason,
                                                         const std::string& author);
/// Writes a request into the run; returns its number. `sign` may be null. Errors: those of RequestRecord and
/// of `sign`; kFailedPrecondition (another user's run), kIo, kNotFound.
[[nodiscard]] Result<std::uint64_t> Ask(const std::string& run, std::string_view action,
                                        const std::string& arguments, const std::string& reason,
                                        const std::string& author, const store::RecordSigner& sign = {});
/// Same checks, for a record that somebody else wrote: kInvalidArgument if it cannot be carried out by
/// anybody.
[[nodiscard]] Status CheckRequest(const Asked& asked);

/// The requests of a control log in their order, each with its state. `records`: the whole log.
[[nodiscard]] std::vector<Asked> RequestsIn(std::span<const store::ControlRecord> records);

}  // namespace luff::actions
