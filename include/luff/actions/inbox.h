#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "luff/actions/gate.h"
#include "luff/actions/marks.h"
#include "luff/actions/requests.h"

namespace luff::actions {

/// A request without an answer, and why it is to be refused; "": nothing is known against it.
struct Heard {
  Asked asked;
  std::string refused;
};

/// The coordinator's view of what people have written into the run: requests to answer, and marks. Reads as
/// commands are read: only what the user wrote, and with a gate only what that admits. **Thread-compatible.**
class Inbox {
 public:
  /// `gate` may be null, and must outlive the inbox.
  Inbox(std::string run, Gate* gate) : run_(std::move(run)), gate_(gate) {}

  /// Requests that came since the last call and have no answer; looks at most four times a second. `now_ns`
  /// is monotonic.
  [[nodiscard]] std::vector<Heard> Look(std::int64_t now_ns);
  /// A record that this process wrote by itself, which needs no signature. Call it before Look() sees it.
  void Trust(std::uint64_t number) { own_.insert(number); }
  /// Marks and labels that were refused since the last call, each with why.
  [[nodiscard]] std::vector<std::string> TakeRefused() { return std::exchange(refused_, {}); }
  /// Answers a request. `state`: kDone, kRefused or kFailed. Errors: those of writing.
  [[nodiscard]] Status Reply(std::uint64_t request, Asked::State state, std::int64_t train_step,
                             const std::string& why) const;
  /// The mark of a finding; nullptr if it has none.
  [[nodiscard]] const Mark* MarkOfFinding(const std::string& finding) const;

 private:
  [[nodiscard]] std::vector<store::ControlRecord> Admitted(std::vector<store::ControlRecord> records,
                                                           std::map<std::uint64_t, std::string>* refused);

  const std::string run_;
  Gate* const gate_;
  /// Trusts marks and labels of before the run had keys, and labels of after its job had ended.
  void TrustEarlier(const std::vector<store::ControlRecord>& records);

  std::set<std::uint64_t> own_;
  std::vector<std::string> refused_;
  std::uint64_t read_ = 0;  // number of the last record
  std::int64_t next_ns_ = 0;
  std::map<std::string, Mark> marks_;
};

}  // namespace luff::actions
