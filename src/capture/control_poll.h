#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "capture/action_gate.h"
#include "luff/store/control.h"

namespace luff::capture {

/// Finds new control records cheaply. A poll is one stat of the directory; it reads new records when the
/// directory's time changed, shortly after that (times are coarse), and every second (network file systems
/// cache times). Decides an abort for a worker whose time is up. **Owned by the writer thread.**
class ControlPoll {
 public:
  using Read = std::function<Result<std::vector<store::ControlRecord>>(std::uint64_t after)>;
  using Decide = std::function<Result<store::ControlRecord>(const store::ControlRecord&)>;
  /// Ignores records up to `after`. Except in tests, `read` is store::ReadCommands and `decide`
  /// store::DecideControl; without `decide` nothing can be decided.
  ControlPoll(std::string directory, std::uint64_t after, Read read, Decide decide, ActionGate* gate)
      : directory_(std::move(directory)),
        after_(after),
        read_(std::move(read)),
        decide_(std::move(decide)),
        gate_(gate) {}

  /// Reads new records if needed. Appends answers to be written to `acks`.
  void Poll(std::int64_t steady_ns, std::vector<format::AckRow>* acks);

 private:
  void SettleAbort(std::int64_t steady_ns, std::vector<format::AckRow>* acks);

  std::string directory_;
  std::uint64_t after_;
  Read read_;
  Decide decide_;
  ActionGate* gate_;
  std::int64_t modified_ns_ = -1;
  std::int64_t look_until_ns_ = 0;
  std::int64_t next_full_ns_ = 0;
  std::int64_t next_decide_ns_ = 0;
};

}  // namespace luff::capture
