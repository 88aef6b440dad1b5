#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "luff/base/process.h"
#include "luff/base/status.h"

/// Uploads that end before their run has: when such a one is begun again, and what the run's directory says
/// of it. `python/luff/_verbs/_detach.py` does the same beside a training that no `luff run` watches
/// (docs/buckets.md).
namespace luff::cli {

// Exit codes of an upload: another one uploads the run now; it was told to end, and the run goes on.
inline constexpr int kUploadTakenOver = 4, kUploadToldToEnd = 7;

/// True if an upload that ended so may be begun again: it was killed, has failed in a way that nobody
/// foresaw, or was told to end (exit code 7). Not if it has done all, its call was wrong, another one uploads
/// the run now, the bucket refused it, or it had no time for the rest: docs/buckets.md has the exit codes.
[[nodiscard]] bool MayBeginAgain(const ExitState& state) noexcept;

/// When the next try of an upload begins: after 1 s, then 2 s, 5 s and so on up to 5 minutes, eight times in
/// a row. One that has lived for ten minutes ends the row.
class UploadTries {
 public:
  /// `first_pause_ns`: other pauses are longer in the same proportion.
  explicit UploadTries(std::int64_t first_pause_ns) : first_pause_ns_(first_pause_ns) {}
  /// Of an upload that has ended after `lived_ns`: how long to wait; nothing if it is not begun again.
  [[nodiscard]] std::optional<std::int64_t> After(std::int64_t lived_ns) noexcept;
  /// True after the first end of a row.
  [[nodiscard]] bool first() const noexcept { return in_row_ == 1; }

 private:
  std::int64_t first_pause_ns_;
  std::size_t in_row_ = 0;
};

/// One second, or what LUFF_UPLOAD_PAUSE_S says (0 to 60).
[[nodiscard]] std::int64_t FirstUploadPauseNs();

/// `sync/ends.json` of a run.
struct UploadEnds {
  std::string url;           // of the bucket
  std::uint64_t ends = 0;    // before the run's own
  std::string last;          // "signal 9", "exit code 1"
  std::int64_t unix_ns = 0;  // of the last
  bool again = false;        // it was begun again, or will be
  // What the command that goes on has to say, too: without it the copy might not be encrypted.
  std::string config = {}, job = {};  // luff.toml; of the hosts of a job; or ""
  std::int64_t training = 1;          // of the job
};

/// `luff sync RUN URL ...`, which uploads what is missing. What moves a cursor is shown, not sent.
[[nodiscard]] std::string UploadByHand(const std::string& run, const UploadEnds& ends);

/// "signal 9" or "exit code 1".
[[nodiscard]] std::string EndText(const ExitState& state);
/// Replaces what the run says of earlier ends. Not before there is a run. Errors: kIo, kResourceExhausted.
[[nodiscard]] Status WriteUploadEnds(const std::string& run, const UploadEnds& ends);
/// Nothing if there were none, or the file is damaged.
[[nodiscard]] std::optional<UploadEnds> ReadUploadEnds(const std::string& run);
/// Of an earlier job: its ends count for nothing any more.
void ForgetUploadEnds(const std::string& run) noexcept;

}  // namespace luff::cli
