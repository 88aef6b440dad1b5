#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "luff/base/result.h"
#include "luff/store/control.h"

/// What people say of findings: records of kind "mark" in the run's control log. The finding itself stays as
/// it is; a mute silences notifications (webhooks, mails, commands), nothing else.
namespace luff::actions {

struct Mark {
  enum class As : std::uint8_t { kAcknowledge, kMute, kReopen };
  std::string finding;  // id
  As as = As::kAcknowledge;
  std::int64_t until_step = -1;  // kMute: the count of TRAIN steps at which it ends; -1: never
  std::string note;              // for people, or ""
  std::string author;
  std::int64_t unix_ns = 0;

  /// True if notifications of the finding are to be silent after `train_step` TRAIN steps.
  [[nodiscard]] bool mutes(std::int64_t train_step) const noexcept {
    return as == As::kMute && (until_step < 0 || train_step < until_step);
  }
};
/// "acknowledge", "mute", "reopen".
[[nodiscard]] std::string_view WordOf(Mark::As as) noexcept;
/// "mute until step 30 by me@here: known".
[[nodiscard]] std::string SaidOf(const Mark& mark);
[[nodiscard]] Result<Mark::As> ParseMark(std::string_view word);

/// Writes a mark; returns the number of its record. Errors: kNotFound (no such finding in the run, with those
/// that are), kInvalidArgument, kFailedPrecondition (another user's run), kIo, those of `sign`, which may be
/// null.
[[nodiscard]] Result<std::uint64_t> SetMark(const std::string& run, const Mark& mark,
                                            const store::RecordSigner& sign = {});

/// The mark that a record sets; kInvalidArgument if it is none.
[[nodiscard]] Result<Mark> MarkOf(const store::ControlRecord& record);
/// Brings the latest marks of findings up to date with records that came later; one that was opened again
/// leaves.
void TakeMarks(std::span<const store::ControlRecord> records, std::map<std::string, Mark>* marks);
/// By finding: the latest mark; findings that were opened again have none.
[[nodiscard]] std::map<std::string, Mark> MarksIn(std::span<const store::ControlRecord> records);

}  // namespace luff::actions
