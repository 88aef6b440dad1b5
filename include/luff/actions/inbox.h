#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "luff/actions/marks.h"
#include "luff/actions/requests.h"

namespace luff::actions {

/// The coordinator's view of what people have written into the run: requests to answer, and marks. Reads as
/// commands are read: only what the user wrote. **Thread-compatible.**
class Inbox {
 public:
  explicit Inbox(std::string run) : run_(std::move(run)) {}

  /// Requests that came since the last call and have no answer; looks at most four times a second. `now_ns`
  /// is monotonic.
  [[nodiscard]] std::vector<Asked> Look(std::int64_t now_ns);
  /// Answers a request. `state`: kDone, kRefused or kFailed. Errors: those of writing.
  [[nodiscard]] Status Reply(std::uint64_t request, Asked::State state, std::int64_t train_step,
                             const std::string& why) const;
  /// The mark of a finding; nullptr if it has none.
  [[nodiscard]] const Mark* MarkOfFinding(const std::string& finding) const;

 private:
  const std::string run_;
  std::uint64_t read_ = 0;  // number of the last record
  std::int64_t next_ns_ = 0;
  std::map<std::string, Mark> marks_;
};

}  // namespace luff::actions
